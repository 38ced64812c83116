-- solejob settle_alone: after a write that was its own transaction and whose answer was lost, when the job was dispatched
-- that it was to create: nothing if it is not there. Of its id all is known but the instant, which lies between two.
select j.dispatched_at
from jobs as j
where j.app_id = $1 and j.job_id >= $2 and j.job_id < $3 and right(j.job_id::text, 17) = $4
