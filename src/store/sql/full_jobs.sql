-- solejob full_jobs: jobs as their readers see them, with the lease for who has just got it.
select
    job_id, name, queue, priority, state::text as state, payload, metadata::text as metadata, resource_keys, active_key,
    window_digest, parent_job_id, parent_attempt, max_attempts, backoff::text as backoff, backoff_initial_ms,
    backoff_factor, backoff_max_ms, backoff_jitter, timeout_ms, retention_ms, attempt, cancel_requested, dispatched_at,
    run_at, started_at, finished_at, result, error, worker, reserved_at, attempt_finished_at, attempt_error, lease_token,
    lease_expires_at
from jobs
where app_id = $1 and job_id = any($2::uuid[])
