-- solejob job_states: where jobs are in their lives.
select j.app_id, j.job_id, j.state::text as state
from unnest($1::bigint[], $2::uuid[]) as asked (app_id, job_id)
join jobs as j on j.app_id = asked.app_id and j.job_id = asked.job_id
