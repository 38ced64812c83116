-- solejob expired_leases: jobs whose lease or timeout is over. Read without locks: who ends them looks again.
select app_id, job_id
from jobs
where lease_token is not null and least(lease_expires_at, attempt_ends_at) <= clock_timestamp()
limit $1
