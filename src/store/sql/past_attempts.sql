-- solejob past_attempts: the attempts before the last. Leases that were given back were none.
select a.job_id, a.attempt, a.worker, a.reserved_at, a.started_at, a.finished_at, a.error
from unnest($1::bigint[], $2::uuid[]) as asked (app_id, job_id)
join job_attempts as a on a.app_id = asked.app_id and a.job_id = asked.job_id
where a.ended_by <> 'release'
