-- solejob window_keys: the window keys that still lead to jobs: their own, and those linked to them.
select k.job_id, k.scope, k.key, k.expires_at
from unnest($1::bigint[], $2::uuid[], $3::uuid[]) as asked (app_id, job_id, window_digest)
cross join lateral (
    select k.job_id, k.scope, k.key, k.expires_at
    from job_keys as k
    where k.app_id = asked.app_id and k.digest = asked.window_digest and k.job_id = asked.job_id and not k.linked
        and k.expires_at > clock_timestamp()
    union all
    select k.job_id, k.scope, k.key, k.expires_at
    from job_keys as k
    where k.app_id = asked.app_id and k.job_id = asked.job_id and k.linked and k.expires_at > clock_timestamp()
) as k
order by k.expires_at, k.scope, k.key
