-- solejob unblock_missed: jobs that wait for a resource key which has room get in line. A capacity may have
-- grown, a job that was to take the room may have been cancelled. The recursion steps from one resource key to
-- the next, however many jobs wait for each.
with recursive waited_for as (
    (select app_id, blocked_on as resource from jobs where blocked_on is not null order by app_id, blocked_on limit 1)
    union all
    select next.app_id, next.resource
    from waited_for as w
    cross join lateral (
        select app_id, blocked_on as resource
        from jobs
        where blocked_on is not null and (app_id, blocked_on) > (w.app_id, w.resource)
        order by app_id, blocked_on
        limit 1
    ) as next
), room as (
    select w.app_id, w.resource,
        coalesce(
            (select s.capacity from resource_scopes as s
                where s.app_id = w.app_id and s.scope = split_part(w.resource, ':', 1)),
            1
        ) - (select count(*) from resource_holds as h where h.app_id = w.app_id and h.resource = w.resource) as places
    from waited_for as w
), next as materialized (
    select j.app_id, j.job_id
    from room
    cross join lateral (
        select app_id, job_id
        from jobs
        where app_id = room.app_id and blocked_on = room.resource
        order by priority desc, run_at, job_id
        limit greatest(room.places, 0)
        for update skip locked
    ) as j
)
update jobs as j
set ready = true, blocked_on = null
from next
where j.app_id = next.app_id and j.job_id = next.job_id
returning j.app_id, j.queue
