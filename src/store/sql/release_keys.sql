-- solejob release_keys: frees the keys of jobs that end: their active keys, and the window keys whose
-- release_on names this end. Only rows that name the job: a key may belong to a newer one by now. The rows
-- are locked in the order of their digests, as everybody's are.
with ended as (
    select *
    from unnest($1::bigint[], $2::uuid[], $3::uuid[], $4::uuid[], $5::smallint[])
        as ended (app_id, job_id, active_digest, window_digest, end_bit)
), freed as materialized (
    select k.app_id, k.digest
    from ended as e
    cross join lateral (
        select k.app_id, k.digest
        from job_keys as k
        where k.app_id = e.app_id and k.digest = e.active_digest and k.job_id = e.job_id
        union all
        select k.app_id, k.digest
        from job_keys as k
        where k.app_id = e.app_id and k.digest = e.window_digest and k.job_id = e.job_id and k.release_on & e.end_bit <> 0
        union all
        select k.app_id, k.digest
        from job_keys as k
        where k.app_id = e.app_id and k.job_id = e.job_id and k.linked and k.release_on & e.end_bit <> 0
    ) as k
), locked as materialized (
    select k.app_id, k.digest, k.job_id
    from job_keys as k
    where (k.app_id, k.digest) in (select app_id, digest from freed)
    order by k.app_id, k.digest
    for update
)
delete from job_keys as k
using locked as l, ended as e
where k.app_id = l.app_id and k.digest = l.digest and e.app_id = k.app_id and e.job_id = k.job_id
