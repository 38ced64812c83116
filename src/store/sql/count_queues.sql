-- solejob count_queues: how the numbers of jobs in queues have changed.
insert into queue_counts (app_id, queue, state, jobs)
select app_id, queue, state::job_state, jobs
from unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[]) as change (app_id, queue, state, jobs)
