-- solejob reserved_before: the jobs that reserves with these ids were given, while their leases live, locked in the
-- order of their ids, as everybody's are.
select job_id, priority, run_at, reserve_id
from jobs
where app_id = $1 and reserve_id = any($2::text[]) and lease_token is not null
    and least(lease_expires_at, attempt_ends_at) > clock_timestamp()
order by job_id
for update
