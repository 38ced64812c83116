-- solejob sweep_keys: forgets window keys whose window is over, in one stretch of the table's pages: no index
-- is needed for it, which every dispatch would have to pay for. One that somebody has locked is passed over: it is
-- being taken over or freed, and whoever waits here while holding others would be waited for.
-- Not at once: a dispatch that has read the clock may still be about to look, and has to find who held the key then.
-- No transaction waits a minute between the two; its statements end after ten seconds.
with over as materialized (
    select app_id, digest
    from job_keys
    where ctid >= format('(%s,0)', $1::bigint)::tid and ctid < format('(%s,0)', $2::bigint)::tid
        and expires_at <= clock_timestamp() - interval '1 minute'
    for update skip locked
)
delete from job_keys as k
using over
where k.app_id = over.app_id and k.digest = over.digest
