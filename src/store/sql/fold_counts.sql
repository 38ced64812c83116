-- solejob fold_counts: adds the changes of queue counts up, for those queues that have several.
with gone as (
    delete from queue_counts
    where (app_id, queue, state) in (
        select app_id, queue, state from queue_counts group by app_id, queue, state having count(*) > 1
    )
    returning app_id, queue, state, jobs
)
insert into queue_counts (app_id, queue, state, jobs)
select app_id, queue, state, sum(jobs) from gone group by app_id, queue, state having sum(jobs) <> 0
