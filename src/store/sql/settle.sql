-- solejob settle: after a COMMIT whose answer was lost, whether what it was to write is there: a job, or a
-- key that was given to a job. That job was there before, so that it says nothing by itself.
select case
    when $3::uuid is null then exists (select from jobs where app_id = $1 and job_id = $2)
    else exists (select from job_keys where app_id = $1 and digest = $3 and job_id = $2 and since = $4)
end as stored
