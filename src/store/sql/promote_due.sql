-- solejob promote_due: jobs of these queues whose time has come get in line, the longest due first. The time is the
-- statement's: one that moves within it would be compared with every job that waits for its time.
with due as materialized (
    select $1::bigint as app_id, d.job_id
    from unnest($2::text[]) as q (queue)
    cross join lateral (
        select job_id
        from jobs
        where app_id = $1 and queue = q.queue and not ready and blocked_on is null
            and state in ('pending', 'retrying') and run_at <= statement_timestamp()
        order by run_at
        limit $3
        for update skip locked
    ) as d
)
update jobs as j
set ready = true
from due
where j.app_id = due.app_id and j.job_id = due.job_id
