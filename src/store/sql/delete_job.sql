-- solejob delete_job: forgets a finished job. Its window keys stay and answer for it.
delete from jobs
where app_id = $1 and job_id = $2 and finished_at is not null
returning queue, state::text as state
