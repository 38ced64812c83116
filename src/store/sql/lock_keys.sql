-- solejob lock_keys: takes the advisory locks, given in ascending order, then reads the clock.
-- A statement of its own: what is looked up in the same one would be seen as it was before the wait.
-- The filter makes the clock depend on the locks.
-- The versions of job types may be read here: they only change under the gate, which is held already.
select
    clock_timestamp() as decided_at,
    array(
        select coalesce(a.types_version, 0)
        from unnest($2::bigint[]) with ordinality as asked (app_id, place)
        left join applications as a on a.app_id = asked.app_id
        order by asked.place
    ) as types_versions
from (select count(pg_advisory_xact_lock(id)) as taken from unnest($1::bigint[]) as id) as locked
where taken >= 0
