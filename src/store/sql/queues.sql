-- solejob queues: what each queue has, and for how long its oldest due job has waited. That one is the first of
-- some priority: the recursion steps from one priority to the next.
select
    q.queue,
    exists (select from paused_queues as p where p.app_id = $1 and p.queue = q.queue) as paused,
    (
        select coalesce(jsonb_object_agg(state, jobs), '{}')
        from (
            select state, sum(jobs) as jobs from queue_counts
            where app_id = $1 and queue = q.queue
            group by state
        ) as counted
        where jobs <> 0
    )::text as counts,
    (
        with recursive first as (
            (
                select priority, run_at from jobs
                where app_id = $1 and queue = q.queue and ready
                order by priority desc, run_at, job_id limit 1
            )
            union all
            select next.priority, next.run_at
            from first as f
            cross join lateral (
                select priority, run_at from jobs
                where app_id = $1 and queue = q.queue and ready and priority < f.priority
                order by priority desc, run_at, job_id limit 1
            ) as next
        )
        select extract(epoch from clock_timestamp() - least(
            min(run_at),
            -- Its time has come, and nobody has looked since.
            (
                select run_at from jobs
                where app_id = $1 and queue = q.queue and not ready and blocked_on is null
                    and state in ('pending', 'retrying') and run_at <= statement_timestamp()
                order by run_at limit 1
            )
        ))::double precision
        from first
    ) as oldest_pending_seconds
from (
    select queue from queue_counts where app_id = $1
    union
    select queue from paused_queues where app_id = $1
) as q
order by q.queue
