-- solejob promote_due: jobs of these queues whose time has come get in line, the longest due first.
with due as materialized (
    select d.job_id
    from unnest($2::text[]) as q (queue)
    cross join lateral (
        select job_id
        from jobs
        where app_id = $1 and queue = q.queue and not ready and blocked_on is null
            and state in ('pending', 'retrying') and run_at <= clock_timestamp()
        order by run_at
        limit $3
        for update skip locked
    ) as d
)
update jobs as j
set ready = true
from due
where j.app_id = $1 and j.job_id = due.job_id
