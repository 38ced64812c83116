-- solejob write_lives: what calls made of jobs that this transaction has locked, and what follows from it: attempts that
-- a row no longer shows, keys of jobs that end (their active keys, and the window keys whose release_on names this end),
-- and how the numbers of jobs in queues change.
--
-- Only key rows that name the job are freed: a key may belong to a newer one by now. They are locked in the order of
-- their digests, as everybody's are.
with kept as (
    insert into job_attempts (
        app_id, job_id, lease_token, attempt, worker, reserved_at, started_at, finished_at, ended_by, error
    )
    select app_id, job_id, lease_token, attempt, worker, reserved_at, started_at, finished_at, ended_by::attempt_end, error
    from unnest(
        $23::bigint[], $24::uuid[], $25::uuid[], $26::integer[], $27::text[], $28::timestamptz[], $29::timestamptz[],
        $30::timestamptz[], $31::text[], $32::text[]
    ) as a (app_id, job_id, lease_token, attempt, worker, reserved_at, started_at, finished_at, ended_by, error)
), ended as (
    select *
    from unnest($33::bigint[], $34::uuid[], $35::uuid[], $36::uuid[], $37::smallint[])
        as ended (app_id, job_id, active_digest, window_digest, end_bit)
), freed as materialized (
    select k.app_id, k.digest, k.job_id
    from ended as e
    cross join lateral (
        select k.app_id, k.digest, k.job_id
        from job_keys as k
        where k.app_id = e.app_id and k.digest = e.active_digest and k.job_id = e.job_id
        union all
        select k.app_id, k.digest, k.job_id
        from job_keys as k
        where k.app_id = e.app_id and k.digest = e.window_digest and k.job_id = e.job_id and k.release_on & e.end_bit <> 0
        union all
        select k.app_id, k.digest, k.job_id
        from job_keys as k
        where k.app_id = e.app_id and k.job_id = e.job_id and k.linked and k.release_on & e.end_bit <> 0
    ) as k
), locked as materialized (
    select k.app_id, k.digest, freed.job_id
    from freed
    join job_keys as k on k.app_id = freed.app_id and k.digest = freed.digest
    order by k.app_id, k.digest
    for update of k
), released as (
    delete from job_keys as k
    using locked as l
    where k.app_id = l.app_id and k.digest = l.digest and k.job_id = l.job_id
), counted as (
    insert into queue_counts (app_id, queue, state, jobs)
    select app_id, queue, state::job_state, jobs
    from unnest($38::bigint[], $39::text[], $40::text[], $41::bigint[]) as change (app_id, queue, state, jobs)
)
update jobs as j
set state = c.state::job_state, ready = c.ready, blocked_on = null, attempt = c.attempt,
    attempt_limit = c.attempt_limit, run_at = c.run_at, lease_token = c.lease_token,
    lease_expires_at = c.lease_expires_at, attempt_ends_at = c.attempt_ends_at, worker = c.worker,
    reserved_at = c.reserved_at, started_at = c.started_at, attempt_finished_at = c.attempt_finished_at,
    attempt_error = c.attempt_error, ended_token = c.ended_token, ended_by = c.ended_by::attempt_end,
    cancel_requested = c.cancel_requested, result = c.result, error = c.error, finished_at = c.finished_at,
    delete_after = c.delete_after,
    reserve_id = case when c.lease_token is null then null else j.reserve_id end
from unnest(
    $1::bigint[], $2::uuid[], $3::text[], $4::boolean[], $5::integer[], $6::integer[], $7::timestamptz[], $8::uuid[],
    $9::timestamptz[], $10::timestamptz[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::timestamptz[],
    $15::text[], $16::uuid[], $17::text[], $18::boolean[], $19::text[], $20::text[], $21::timestamptz[],
    $22::timestamptz[]
) as c (
    app_id, job_id, state, ready, attempt, attempt_limit, run_at, lease_token, lease_expires_at, attempt_ends_at,
    worker, reserved_at, started_at, attempt_finished_at, attempt_error, ended_token, ended_by, cancel_requested,
    result, error, finished_at, delete_after
)
where j.app_id = c.app_id and j.job_id = c.job_id
