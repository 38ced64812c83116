-- solejob unblock: for each resource key that was given back once, the best job that waits for it becomes ready.
-- One that somebody has locked is passed over; a sweep makes up for it.
with freed as (
    select resource, count(*) as room from unnest($2::text[]) as resource group by resource
), next as materialized (
    select $1::bigint as app_id, j.job_id
    from freed
    cross join lateral (
        select job_id
        from jobs
        where app_id = $1 and blocked_on = freed.resource
        order by priority desc, run_at, job_id
        limit freed.room
        for update skip locked
    ) as j
)
update jobs as j
set ready = true, blocked_on = null
from next
where j.app_id = next.app_id and j.job_id = next.job_id
returning j.queue
