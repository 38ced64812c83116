-- solejob release_keys: frees the keys of a job that ends: its active key, and the window keys whose
-- release_on names this end. Only rows that name the job: a key may belong to a newer one by now.
-- The digests are gathered first, so that each row is reached by the primary key.
delete from job_keys
where app_id = $1
    and digest = any (array(
        select $3::uuid
        union all
        select $4::uuid
        union all
        select digest from job_keys where app_id = $1 and job_id = $2 and linked
    ))
    and job_id = $2
    and (dimension = 'active' or release_on & $5 <> 0)
