-- solejob request_cancel: asks the worker that has the job to let go.
update jobs
set cancel_requested = true
where app_id = $1 and job_id = $2
