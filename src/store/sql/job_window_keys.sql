-- solejob job_window_keys: the window keys that still lead to a job: its own, and those linked to it. Its own
-- is among the latter if its window was over and the job was asked for with it again.
select name, scope, key, expires_at
from job_keys
where app_id = $1 and digest = $3 and job_id = $2 and not linked and expires_at > clock_timestamp()
union all
select name, scope, key, expires_at
from job_keys
where app_id = $1 and job_id = $2 and linked and expires_at > clock_timestamp()
order by expires_at, scope, key
