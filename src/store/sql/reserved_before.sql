-- solejob reserved_before: the jobs that a reserve with this id was given, while their leases live, locked.
select job_id
from jobs
where app_id = $1 and reserve_id = $2 and lease_token is not null
    and least(lease_expires_at, attempt_ends_at) > clock_timestamp()
order by priority desc, run_at, job_id
for update
