-- solejob lock_lives: the parts of jobs that their life changes, each locked, in the order of their ids. The
-- clock of each row is read after its lock.
with locked as materialized (
    select j.*
    from unnest($1::bigint[], $2::uuid[]) as asked (app_id, job_id)
    join jobs as j on j.app_id = asked.app_id and j.job_id = asked.job_id
    order by j.app_id, j.job_id
    for update of j
)
select
    app_id, job_id, name, queue, state::text as state, attempt, attempt_limit, max_attempts, backoff::text as backoff,
    backoff_initial_ms, backoff_factor, backoff_max_ms, backoff_jitter, timeout_ms, retention_ms, run_at, lease_token,
    lease_expires_at, attempt_ends_at, worker, reserved_at, started_at, attempt_finished_at, attempt_error, ended_token,
    ended_by::text as ended_by, cancel_requested, result, error, finished_at, active_digest, window_digest,
    resource_keys, clock_timestamp() as locked_at
from locked
