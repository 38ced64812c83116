-- solejob lock_job: keeps a job as it is until this transaction ends. The row before its keys, always.
select state::text as state, active_digest, window_digest, cancel_requested, clock_timestamp() as locked_at
from jobs
where app_id = $1 and job_id = $2
for update
