-- solejob cancel: ends a job as cancelled.
update jobs
set state = 'cancelled', finished_at = $3, cancel_requested = true
where app_id = $1 and job_id = $2
