-- solejob free_resources: jobs whose lease ended no longer hold their resource keys.
delete from resource_holds
where app_id = $1 and (resource, job_id) in (select * from unnest($2::text[], $3::uuid[]))
