-- solejob write: the jobs that a group creates, counted, and the keys that it claims, in the order of their digests.
with created as (
    insert into jobs (
        app_id, job_id, name, queue, priority, state, payload, metadata, resource_keys, active_key, active_digest,
        window_digest, parent_job_id, parent_attempt, max_attempts, backoff, backoff_initial_ms, backoff_factor,
        backoff_max_ms, backoff_jitter, timeout_ms, retention_ms, dispatched_at, run_at, ready, attempt_limit
    )
    select
        app_id, job_id, name, queue, priority, 'pending', payload, metadata::jsonb, resource_keys::text[], active_key,
        active_digest, window_digest, parent_job_id, parent_attempt, max_attempts, backoff::backoff_kind,
        backoff_initial_ms, backoff_factor, backoff_max_ms, backoff_jitter, timeout_ms, retention_ms, $1, run_at,
        run_at <= $1, max_attempts
    from unnest(
        $2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::uuid[], $12::uuid[], $13::uuid[], $14::integer[], $15::integer[], $16::text[],
        $17::bigint[], $18::double precision[], $19::bigint[], $20::boolean[], $21::bigint[], $22::bigint[],
        $23::timestamptz[]
    ) as job (
        app_id, job_id, name, queue, priority, payload, metadata, resource_keys, active_key, active_digest,
        window_digest, parent_job_id, parent_attempt, max_attempts, backoff, backoff_initial_ms, backoff_factor,
        backoff_max_ms, backoff_jitter, timeout_ms, retention_ms, run_at
    )
    returning app_id, queue, state
), counted as (
    insert into queue_counts (app_id, queue, state, jobs)
    select app_id, queue, state, count(*) from created group by app_id, queue, state
)
insert into job_keys (
    app_id, digest, dimension, name, scope, key, job_id, since, expires_at, fingerprint, release_on, linked,
    job_dispatched_at, job_active_key
)
select
    app_id, digest, dimension::key_dimension, name, scope, key, job_id, $1, expires_at, fingerprint, release_on,
    linked, job_dispatched_at, job_active_key
from unnest(
    $24::bigint[], $25::uuid[], $26::text[], $27::text[], $28::text[], $29::text[], $30::uuid[], $31::timestamptz[],
    $32::bytea[], $33::smallint[], $34::boolean[], $35::timestamptz[], $36::text[]
) as claim (
    app_id, digest, dimension, name, scope, key, job_id, expires_at, fingerprint, release_on, linked,
    job_dispatched_at, job_active_key
)
