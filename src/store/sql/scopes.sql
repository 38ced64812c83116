-- solejob scopes: the scopes that have a capacity of their own or are in use, with what is in use.
select
    scope.scope,
    s.capacity,
    coalesce((
        select jsonb_object_agg(use.key, use.jobs)
        from (
            select substr(h.resource, length(scope.scope) + 2) as key, count(*) as jobs
            from resource_holds as h
            where h.app_id = $1 and split_part(h.resource, ':', 1) = scope.scope
            group by h.resource
            order by count(*) desc, h.resource
            limit 1000
        ) as use
    ), '{}')::text as in_use
from (
    select scope from resource_scopes where app_id = $1
    union
    select split_part(resource, ':', 1) from resource_holds where app_id = $1
) as scope
left join resource_scopes as s on s.app_id = $1 and s.scope = scope.scope
where $2::text is null or scope.scope = $2
order by scope.scope
