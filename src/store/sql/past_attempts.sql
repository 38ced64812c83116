-- solejob past_attempts: the attempts before the last. Leases that were given back were none.
select job_id, attempt, worker, reserved_at, started_at, finished_at, error
from job_attempts
where app_id = $1 and job_id = any($2::uuid[]) and ended_by <> 'release'
