-- solejob save_job_types: declares types in place of what was declared for these names. The version goes up only if
-- something has changed.
with saved as (
    insert into job_types (app_id, name, definition, updated_at)
    select $1, name, definition, $4
    from unnest($2::text[], $3::text[]) as declared (name, definition)
    on conflict (app_id, name) do update
        set definition = excluded.definition, updated_at = excluded.updated_at
        where job_types.definition <> excluded.definition
    returning xmax = 0 as created
),
raised as (
    update applications set types_version = types_version + 1 where app_id = $1 and exists (select from saved)
)
select count(*) as changed, coalesce(bool_or(created), false) as created from saved
