-- solejob resource_room: how many holders each resource key has, and how many it may have.
select
    asked.resource,
    (select count(*) from resource_holds as h where h.app_id = $1 and h.resource = asked.resource) as held,
    coalesce(
        (select s.capacity from resource_scopes as s where s.app_id = $1 and s.scope = split_part(asked.resource, ':', 1)),
        1
    ) as capacity
from unnest($2::text[]) as asked (resource)
