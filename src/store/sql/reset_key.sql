-- solejob reset_key: frees a window key, if the job given (or any) still holds it.
delete from job_keys
where app_id = $1 and digest = $2 and expires_at > clock_timestamp() and ($3::uuid is null or job_id = $3)
returning job_id
