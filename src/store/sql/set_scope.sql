-- solejob set_scope: how many jobs with one resource key of this scope may be leased at once.
insert into resource_scopes (app_id, scope, capacity)
values ($1, $2, $3)
on conflict (app_id, scope) do update set capacity = excluded.capacity
returning xmax = 0 as created
