-- solejob lock_resources: nobody else takes or gives back these resource keys until this transaction ends.
select resource
from resource_keys
where app_id = $1 and resource = any($2::text[])
order by resource
for update
