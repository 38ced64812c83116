-- solejob pick: the first jobs in line of these queues, locked; those that somebody else has locked are passed
-- over. Materialised: a limit with a lock must run once for each queue and never again.
with open as materialized (
    select q.queue
    from unnest($2::text[]) as q (queue)
    where (select count(*) from paused_queues as paused where paused.app_id = $1 and paused.queue = q.queue) = 0
), picked as materialized (
    select p.*
    from open
    cross join lateral (
        select job_id, priority, run_at, resource_keys
        from jobs
        where app_id = $1 and queue = open.queue and ready and ($3::text[] is null or name = any($3))
        order by priority desc, run_at, job_id
        limit $4
        for update skip locked
    ) as p
)
select job_id, resource_keys
from picked
order by priority desc, run_at, job_id
limit $4
