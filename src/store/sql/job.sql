-- solejob job: one job, as its readers see it.
select
    job_id, name, queue, priority, state::text as state, payload, metadata::text as metadata, resource_keys, active_key,
    window_digest, parent_job_id, parent_attempt, max_attempts, backoff::text as backoff, backoff_initial_ms,
    backoff_factor, backoff_max_ms, backoff_jitter, timeout_ms, retention_ms, attempt, cancel_requested, dispatched_at,
    run_at, started_at, finished_at
from jobs
where app_id = $1 and job_id = $2
