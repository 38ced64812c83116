-- solejob release_keys: frees the keys of a job that ends: its active key, and the window keys whose
-- release_on names this end. Only rows that name the job: a key may belong to a newer one by now.
delete from job_keys
where app_id = $1 and job_id = $2
    and (
        (digest = $3 and dimension = 'active')
        or (dimension = 'window' and release_on & $5 <> 0 and (digest = $4 or linked))
    )
