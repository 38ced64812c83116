-- solejob next_due: how long until another job of these queues gets in line, in milliseconds.
select min(extract(epoch from due.run_at - clock_timestamp()) * 1000)::double precision as wait_ms
from unnest($2::text[]) as q (queue)
cross join lateral (
    select run_at
    from jobs
    where app_id = $1 and queue = q.queue and not ready and blocked_on is null and state in ('pending', 'retrying')
    order by run_at
    limit 1
) as due
