-- solejob left: what these queues have left for later: jobs in line that somebody else had locked, and how long
-- until another job gets in line, in milliseconds.
select
    exists (
        select
        from unnest($2::text[]) as q (queue)
        cross join lateral (
            select from jobs
            where app_id = $1 and queue = q.queue and ready and ($3::text[] is null or name = any($3))
            order by priority desc, run_at, job_id -- the order of the index that is to be used
            limit 1
        ) as first
        where (select count(*) from paused_queues as paused where paused.app_id = $1 and paused.queue = q.queue) = 0
    ) as passed_over,
    (
        select min(extract(epoch from due.run_at - clock_timestamp()) * 1000)::double precision
        from unnest($2::text[]) as q (queue)
        cross join lateral (
            select run_at
            from jobs
            where app_id = $1 and queue = q.queue and not ready and blocked_on is null
                and state in ('pending', 'retrying')
            order by run_at
            limit 1
        ) as due
    ) as wait_ms
