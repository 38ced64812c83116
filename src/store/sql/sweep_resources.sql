-- solejob sweep_resources: forgets rows to lock for resource keys that nobody holds or waits for, in one stretch of
-- the table's pages. One that is missing is added when it is asked for.
with idle as materialized (
    select app_id, resource
    from resource_keys as r
    where ctid >= format('(%s,0)', $1::bigint)::tid and ctid < format('(%s,0)', $2::bigint)::tid
        and not exists (select from resource_holds as h where h.app_id = r.app_id and h.resource = r.resource)
        and not exists (select from jobs as j where j.app_id = r.app_id and j.blocked_on = r.resource)
    for update skip locked
)
delete from resource_keys as r
using idle
where r.app_id = idle.app_id and r.resource = idle.resource
