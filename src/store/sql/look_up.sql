-- solejob look_up: who holds these keys, and what their jobs look like now; with the clock, and the versions of the job
-- types of the applications in $3, in one picture. One row at least: without a key if nobody holds any.
select
    seen.seen_at, seen.types_versions, k.app_id, k.digest, k.dimension::text as dimension, k.name, k.scope, k.key, k.job_id,
    k.since, k.expires_at, k.fingerprint, k.job_dispatched_at, k.job_active_key,
    j.state::text as state, j.max_attempts, j.backoff::text as backoff, j.backoff_initial_ms, j.backoff_factor,
    j.backoff_max_ms, j.backoff_jitter, j.timeout_ms
from (
    select
        clock_timestamp() as seen_at,
        array(
            select coalesce(a.types_version, 0)
            from unnest($3::bigint[]) with ordinality as asked (app_id, place)
            left join applications as a on a.app_id = asked.app_id
            order by asked.place
        ) as types_versions
) as seen
left join (
    unnest($1::bigint[], $2::uuid[]) as asked (app_id, digest)
    join job_keys as k on k.app_id = asked.app_id and k.digest = asked.digest
    left join jobs as j on j.app_id = k.app_id and j.job_id = k.job_id
) on true
