-- solejob types_versions: the versions of the job types of one application, or of all that have ever had any.
select app_id, types_version from applications where types_version > 0 and ($1::bigint is null or app_id = $1)
