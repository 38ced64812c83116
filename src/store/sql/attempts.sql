-- solejob attempts: the attempts that jobs are at.
select j.job_id, j.attempt
from unnest($1::bigint[], $2::uuid[]) as asked (app_id, job_id)
join jobs as j on j.app_id = asked.app_id and j.job_id = asked.job_id
