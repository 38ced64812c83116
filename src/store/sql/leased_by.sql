-- solejob leased_by: whether a job was last leased with this token.
select from jobs where app_id = $1 and job_id = $2 and leased_by = $3
