-- solejob lock_keys: takes the advisory locks, given in ascending order, then reads the clock.
-- A statement of its own: what is looked up in the same one would be seen as it was before the wait.
-- The filter makes the clock depend on the locks.
select clock_timestamp() as decided_at
from (select count(pg_advisory_xact_lock(id)) as taken from unnest($1::bigint[]) as id) as locked
where taken >= 0
