-- solejob block_jobs: jobs whose resource keys have no room leave the line until one is given back.
update jobs as j
set ready = false, blocked_on = b.resource
from unnest($2::uuid[], $3::text[]) as b (job_id, resource)
where j.app_id = $1 and j.job_id = b.job_id
