-- solejob settle: after a COMMIT whose answer was lost, whether what it was to write is there.
select
    exists (select from jobs where app_id = $1 and job_id = $2)
    or exists (select from job_keys where app_id = $1 and digest = $3 and job_id = $2 and since = $4) as stored
