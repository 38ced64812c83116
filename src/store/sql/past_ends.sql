-- solejob past_ends: how earlier attempts ended, by their tokens: a call that comes again is answered again.
select a.app_id, a.job_id, a.lease_token, a.ended_by::text as ended_by
from unnest($1::bigint[], $2::uuid[], $3::uuid[]) as asked (app_id, job_id, lease_token)
join job_attempts as a
    on a.app_id = asked.app_id and a.job_id = asked.job_id and a.lease_token = asked.lease_token
