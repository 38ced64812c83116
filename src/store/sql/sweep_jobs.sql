-- solejob sweep_jobs: forgets finished jobs whose retention is over. Their window keys stay. The time is the
-- statement's: one that moves within it would be compared with every finished job.
with over as materialized (
    select j.app_id, j.job_id
    from unnest($1::bigint[]) as app (app_id)
    cross join lateral (
        select app_id, job_id
        from jobs
        where app_id = app.app_id and delete_after <= statement_timestamp()
        order by delete_after
        limit $2
        for update skip locked
    ) as j
)
delete from jobs as j
using over
where j.app_id = over.app_id and j.job_id = over.job_id
returning j.app_id, j.queue, j.state::text as state
