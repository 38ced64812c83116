-- solejob full_jobs: jobs as their readers see them, with the lease for who has just got it.
select
    j.job_id, j.name, j.queue, j.priority, j.state::text as state, j.payload, j.metadata::text as metadata,
    j.resource_keys, j.active_key, j.window_digest, j.parent_job_id, j.parent_attempt, j.max_attempts,
    j.backoff::text as backoff, j.backoff_initial_ms, j.backoff_factor, j.backoff_max_ms, j.backoff_jitter,
    j.timeout_ms, j.retention_ms, j.attempt, j.cancel_requested, j.dispatched_at, j.run_at, j.started_at,
    j.finished_at, j.result, j.error, j.worker, j.reserved_at, j.attempt_finished_at, j.attempt_error,
    j.lease_token, j.lease_expires_at
from unnest($1::bigint[], $2::uuid[]) as asked (app_id, job_id)
join jobs as j on j.app_id = asked.app_id and j.job_id = asked.job_id
