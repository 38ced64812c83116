-- solejob past_attempts: the attempts before the last. Leases that were given back were none.
select a.job_id, a.attempt, a.worker, a.reserved_at, a.started_at, a.finished_at, a.error
from unnest($2::uuid[]) as asked (job_id)
join job_attempts as a on a.app_id = $1 and a.job_id = asked.job_id
where a.ended_by <> 'release'
order by a.job_id, a.reserved_at
