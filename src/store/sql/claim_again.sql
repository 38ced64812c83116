-- solejob claim_again: the active key of a finished job that is to run again.
insert into job_keys (
    app_id, digest, dimension, name, scope, key, job_id, since, release_on, linked, job_dispatched_at, job_active_key
)
select app_id, active_digest, 'active', name, 'global', active_key, job_id, $3, 0, false, dispatched_at, active_key
from jobs
where app_id = $1 and job_id = $2
on conflict do nothing
