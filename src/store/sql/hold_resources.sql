-- solejob hold_resources: leased jobs hold their resource keys.
insert into resource_holds (app_id, resource, job_id)
select $1, resource, job_id from unnest($2::text[], $3::uuid[]) as hold (resource, job_id)
