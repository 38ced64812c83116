-- solejob reserve: gives the first jobs in line of these queues out, in one statement that is its own transaction. If one
-- of them has resource keys, it gives out none (plain is false): whether those have room is for who holds their locks.
--
-- Jobs that somebody else has locked are passed over. Materialised: a limit with a lock must run once for each queue
-- and never again. The attempt before, if one is still shown, is kept apart. $5 has a token for each job, $6 says for
-- each job whose wish it is, $7 to $9 have a member for each wish.
with clock as materialized (
    select clock_timestamp() as now
), open as materialized (
    select q.queue
    from unnest($2::text[]) as q (queue)
    where (select count(*) from paused_queues as paused where paused.app_id = $1 and paused.queue = q.queue) = 0
), picked as materialized (
    select p.*
    from open
    cross join lateral (
        select app_id, job_id, queue, priority, run_at, state, resource_keys, attempt, worker, reserved_at, started_at,
            attempt_finished_at, attempt_error, ended_token, ended_by
        from jobs
        where app_id = $1 and queue = open.queue and ready and ($3::text[] is null or name = any($3))
        order by priority desc, run_at, job_id
        limit $4
        for update skip locked
    ) as p
), line as materialized (
    select *, row_number() over (order by priority desc, run_at, job_id) as place
    from picked
    order by priority desc, run_at, job_id
    limit $4
), line_kind as materialized (
    select count(resource_keys) = 0 as plain from line
), kept as (
    insert into job_attempts (
        app_id, job_id, lease_token, attempt, worker, reserved_at, started_at, finished_at, ended_by, error
    )
    select $1, job_id, ended_token, attempt, worker, reserved_at, started_at, attempt_finished_at, ended_by, attempt_error
    from line, line_kind
    where plain and reserved_at is not null
), leased as (
    update jobs as j
    set state = 'reserved', ready = false, attempt = j.attempt + 1, lease_token = ($5::uuid[])[line.place],
        lease_expires_at = clock.now + make_interval(secs => ($7::bigint[])[($6::integer[])[line.place]] / 1000.0),
        worker = ($8::text[])[($6::integer[])[line.place]], reserved_at = clock.now, started_at = null,
        attempt_ends_at = clock.now + make_interval(secs => j.timeout_ms / 1000.0), attempt_finished_at = null,
        attempt_error = null, leased_by = ($9::text[])[($6::integer[])[line.place]], ended_token = null, ended_by = null
    from line_kind, line, clock
    where line_kind.plain and j.app_id = line.app_id and j.job_id = line.job_id
    returning j.*, line.place, line.state as was, line.attempt as before_attempt, line.worker as before_worker,
        line.reserved_at as before_reserved_at, line.started_at as before_started_at,
        line.attempt_finished_at as before_finished_at, line.attempt_error as before_error
), counted as (
    insert into queue_counts (app_id, queue, state, jobs)
    select $1, moved.queue, moved.state, sum(moved.jobs)
    from leased
    cross join lateral (values (leased.queue, leased.was, -1), (leased.queue, leased.state, 1)) as moved (queue, state, jobs)
    group by moved.queue, moved.state
)
select
    line_kind.plain, j.place::integer as place, j.job_id, j.name, j.queue, j.priority, j.state::text as state, j.payload,
    j.metadata::text as metadata, j.resource_keys, j.active_key, j.parent_job_id, j.parent_attempt, j.max_attempts,
    j.backoff::text as backoff, j.backoff_initial_ms, j.backoff_factor, j.backoff_max_ms, j.backoff_jitter,
    j.timeout_ms, j.retention_ms, j.attempt, j.cancel_requested, j.dispatched_at, j.run_at, j.started_at,
    j.finished_at, j.result, j.error, j.worker, j.reserved_at, j.attempt_finished_at, j.attempt_error,
    j.lease_token, j.lease_expires_at, windows.*, past.*,
    j.before_attempt, j.before_worker, j.before_reserved_at, j.before_started_at, j.before_finished_at, j.before_error
from line_kind
left join leased as j on true
cross join lateral (
    select array_agg(k.scope) as window_scopes, array_agg(k.key) as window_keys, array_agg(k.expires_at) as window_ends
    from (
        select k.scope, k.key, k.expires_at
        from job_keys as k
        where k.app_id = $1 and k.digest = j.window_digest and k.job_id = j.job_id and not k.linked
            and k.expires_at > clock_timestamp()
        union all
        select k.scope, k.key, k.expires_at
        from job_keys as k
        where k.app_id = $1 and k.job_id = j.job_id and k.linked and k.expires_at > clock_timestamp()
    ) as k
) as windows
cross join lateral (
    select array_agg(a.attempt) as past_attempts, array_agg(a.worker) as past_workers,
        array_agg(a.reserved_at) as past_reserved, array_agg(a.started_at) as past_started,
        array_agg(a.finished_at) as past_finished, array_agg(a.error) as past_errors
    from job_attempts as a
    where j.attempt > 1 and a.app_id = $1 and a.job_id = j.job_id and a.ended_by <> 'release'
) as past
order by j.place
