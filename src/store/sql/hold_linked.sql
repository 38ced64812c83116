-- solejob hold_linked: keeps the jobs that window keys are being linked to from ending until this
-- transaction does. Finishing a job takes no key lock, so the job may have ended since it was looked up.
select j.job_id
from jobs as j
where (j.app_id, j.job_id) in (select * from unnest($1::bigint[], $2::uuid[]))
    and j.state in ('pending', 'reserved', 'running', 'retrying')
order by j.app_id, j.job_id
for share
