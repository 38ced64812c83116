-- solejob job_exists: whether the application has such a job.
select from jobs where app_id = $1 and job_id = $2
