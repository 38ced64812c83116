-- solejob full_jobs: jobs as their readers see them, with the lease for who has just got it; the window keys that still
-- lead to them, their own and those linked to them; and the attempts before the last (leases that were given back were
-- none).
select
    j.job_id, j.name, j.queue, j.priority, j.state::text as state, j.payload, j.metadata::text as metadata,
    j.resource_keys, j.active_key, j.parent_job_id, j.parent_attempt, j.max_attempts,
    j.backoff::text as backoff, j.backoff_initial_ms, j.backoff_factor, j.backoff_max_ms, j.backoff_jitter,
    j.timeout_ms, j.retention_ms, j.attempt, j.cancel_requested, j.dispatched_at, j.run_at, j.started_at,
    j.finished_at, j.result, j.error, j.worker, j.reserved_at, j.attempt_finished_at, j.attempt_error,
    j.lease_token, j.lease_expires_at, windows.*, past.*
from unnest($1::bigint[], $2::uuid[]) as asked (app_id, job_id)
join jobs as j on j.app_id = asked.app_id and j.job_id = asked.job_id
cross join lateral (
    select array_agg(k.scope) as window_scopes, array_agg(k.key) as window_keys, array_agg(k.expires_at) as window_ends
    from (
        select k.scope, k.key, k.expires_at
        from job_keys as k
        where k.app_id = j.app_id and k.digest = j.window_digest and k.job_id = j.job_id and not k.linked
            and k.expires_at > clock_timestamp()
        union all
        select k.scope, k.key, k.expires_at
        from job_keys as k
        where k.app_id = j.app_id and k.job_id = j.job_id and k.linked and k.expires_at > clock_timestamp()
    ) as k
) as windows
cross join lateral (
    select array_agg(a.attempt) as past_attempts, array_agg(a.worker) as past_workers,
        array_agg(a.reserved_at) as past_reserved, array_agg(a.started_at) as past_started,
        array_agg(a.finished_at) as past_finished, array_agg(a.error) as past_errors
    from job_attempts as a
    where j.attempt > 0 and a.app_id = j.app_id and a.job_id = j.job_id and a.ended_by <> 'release'
) as past
