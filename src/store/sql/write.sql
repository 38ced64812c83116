-- solejob write: the jobs that a group creates, counted, and the keys that it claims, in the order of their digests.
--
-- A transaction that has its locks gives its instant, $1. Without one, this statement is a transaction of its own: it
-- tries for the gate and for the locks, and writes nothing unless it gets all of them at once. Nor does it write if a key
-- has a row then, if job types have another version than the dispatches were prepared by, or after $3: whoever lost the
-- answer has to know when it can no longer begin.
--
-- Ids are made here, since only here is the instant known. They are the ones of JobIds.
with locked as materialized (
    select case
        when $1::timestamptz is not null then true
        when pg_try_advisory_xact_lock_shared(3819039144699723632)
            then (select bool_and(pg_try_advisory_xact_lock(id)) from unnest($2::bigint[]) as id)
        else false
    end as taken
), held as materialized (
    -- Once the locks are taken, this sees what was stored under them, though the statement began before.
    select $1 is null and taken and any_key_is_held($29::bigint[], $30::uuid[]) as by_somebody
    from locked
), begun as materialized (
    select coalesce($1, clock_timestamp()) as decided_at
    from locked, held
    where taken and not by_somebody and ($1 is not null or clock_timestamp() < $3::timestamptz and not exists (
        select
        from unnest($4::bigint[], $5::bigint[]) as known (app_id, types_version)
        left join applications as a on a.app_id = known.app_id
        where coalesce(a.types_version, 0) <> known.types_version
    ))
), now as materialized (
    select
        decided_at,
        lpad(to_hex(micros / 1000), 12, '0') || to_hex(x'7000'::bigint + micros % 1000 * 4096 / 1000) as id_head
    from begun, lateral (select (extract(epoch from decided_at) * 1000000)::bigint as micros) as clock
), created as (
    insert into jobs (
        app_id, job_id, name, queue, priority, state, payload, metadata, resource_keys, active_key, active_digest,
        window_digest, parent_job_id, parent_attempt, max_attempts, backoff, backoff_initial_ms, backoff_factor,
        backoff_max_ms, backoff_jitter, timeout_ms, retention_ms, dispatched_at, run_at, ready, attempt_limit
    )
    select
        app_id, (id_head || id_tail)::uuid, name, queue, priority, 'pending', payload, metadata::jsonb,
        resource_keys::text[], active_key, active_digest, window_digest, parent_job_id, parent_attempt, max_attempts,
        backoff::backoff_kind, backoff_initial_ms, backoff_factor, backoff_max_ms, backoff_jitter, timeout_ms,
        retention_ms, decided_at, run_at, run_at <= decided_at, max_attempts
    from now
    cross join unnest(
        $6::bigint[], $7::text[], $8::text[], $9::text[], $10::smallint[], $11::text[], $12::text[], $13::text[],
        $14::text[], $15::uuid[], $16::uuid[], $17::uuid[], $18::integer[], $19::integer[], $20::text[], $21::bigint[],
        $22::double precision[], $23::bigint[], $24::boolean[], $25::bigint[], $26::bigint[], $27::bigint[],
        $28::timestamptz[]
    ) as job (
        app_id, id_tail, name, queue, priority, payload, metadata, resource_keys, active_key, active_digest,
        window_digest, parent_job_id, parent_attempt, max_attempts, backoff, backoff_initial_ms, backoff_factor,
        backoff_max_ms, backoff_jitter, timeout_ms, retention_ms, delay_ms, start_at
    )
    -- A start in the past means now. greatest passes over what is null.
    cross join lateral (
        select greatest(start_at, decided_at + delay_ms * interval '1 millisecond', decided_at) as run_at
    ) as start
    returning app_id, queue, state
), counted as (
    insert into queue_counts (app_id, queue, state, jobs)
    select app_id, queue, state, count(*) from created group by app_id, queue, state
), claimed as (
    insert into job_keys (
        app_id, digest, dimension, name, scope, key, job_id, since, expires_at, fingerprint, release_on, linked,
        job_dispatched_at, job_active_key
    )
    select
        app_id, digest, dimension::key_dimension, name, scope, key, coalesce(job_id, (id_head || id_tail)::uuid),
        decided_at, decided_at + window_ms * interval '1 millisecond', fingerprint, release_on, linked,
        coalesce(job_dispatched_at, decided_at), job_active_key
    from now
    cross join unnest(
        $29::bigint[], $30::uuid[], $31::text[], $32::text[], $33::text[], $34::text[], $35::uuid[], $36::text[],
        $37::bigint[], $38::bytea[], $39::smallint[], $40::boolean[], $41::timestamptz[], $42::text[]
    ) as claim (
        app_id, digest, dimension, name, scope, key, job_id, id_tail, window_ms, fingerprint, release_on, linked,
        job_dispatched_at, job_active_key
    )
)
select now.decided_at, held.by_somebody from held left join now on true
