-- solejob block_jobs: jobs whose resource keys have no room leave the line until one is given back.
with b as materialized (
    select $1::bigint as app_id, b.* from unnest($2::uuid[], $3::text[]) as b (job_id, resource)
)
update jobs as j
set ready = false, blocked_on = b.resource
from b
where j.app_id = b.app_id and j.job_id = b.job_id
