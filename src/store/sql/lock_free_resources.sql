-- solejob lock_free_resources: the same for those that nobody has locked, without a wait.
select resource
from resource_keys
where app_id = $1 and resource = any($2::text[])
order by resource
for update skip locked
