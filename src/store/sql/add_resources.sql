-- solejob add_resources: a row to lock for each resource key that was never held.
insert into resource_keys (app_id, resource)
select $1, resource from unnest($2::text[]) as resource
order by resource
on conflict do nothing
