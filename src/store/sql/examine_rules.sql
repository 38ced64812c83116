-- solejob examine_rules: what must not be in the tables, whatever was done to them, and what nobody works on. All of it
-- is seen in one snapshot, so that a transaction that is under way breaks no rule.
with live as not materialized (
    select app_id, job_id, name, queue, state, active_key, active_digest, resource_keys, run_at, ready, blocked_on,
        lease_token, lease_expires_at, attempt_ends_at
    from jobs
    where finished_at is null
), found (rule, what) as (
    select 'active_key_shared', format('%s %s: %s jobs', name, active_key, count(*))
    from live
    where active_key is not null
    group by app_id, name, active_key
    having count(*) > 1

    union all
    select 'active_key_not_held', format('job %s', j.job_id)
    from live as j
    where j.active_key is not null and not exists (
        select from job_keys as k
        where k.app_id = j.app_id and k.digest = j.active_digest and k.job_id = j.job_id
    )

    union all
    select 'active_key_left', format('job %s', k.job_id)
    from job_keys as k
    where k.dimension = 'active' and not exists (
        select from live as j
        where j.app_id = k.app_id and j.job_id = k.job_id and j.active_digest = k.digest
    )

    union all
    select 'hold_without_lease', format('job %s', h.job_id)
    from resource_holds as h
    where not exists (
        select from live as j
        where j.app_id = h.app_id and j.job_id = h.job_id and j.lease_token is not null
            and h.resource = any (j.resource_keys)
    )

    union all
    select 'lease_without_hold', format('job %s', j.job_id)
    from live as j
    cross join unnest(j.resource_keys) as r (resource)
    where j.lease_token is not null and not exists (
        select from resource_holds as h
        where h.app_id = j.app_id and h.job_id = j.job_id and h.resource = r.resource
    )

    union all
    select 'counts_differ', format('queue %s, %s: %s counted, %s there', queue, state, coalesce(c.jobs, 0), coalesce(r.jobs, 0))
    from (select app_id, queue, state, sum(jobs) as jobs from queue_counts group by app_id, queue, state) as c
    full join (select app_id, queue, state, count(*) as jobs from jobs group by app_id, queue, state) as r
        using (app_id, queue, state)
    where coalesce(c.jobs, 0) <> coalesce(r.jobs, 0)

    union all
    select 'lease_over', format('job %s', job_id)
    from live
    where lease_token is not null
        and least(lease_expires_at, attempt_ends_at) < statement_timestamp() - interval '30 seconds'

    union all
    select 'overdue', format('queue %s: %s jobs, the oldest due since %s', queue, count(*), min(run_at))
    from live as j
    where state in ('pending', 'retrying') and blocked_on is null
        and run_at < statement_timestamp() - interval '5 minutes'
        and not exists (select from paused_queues as p where p.app_id = j.app_id and p.queue = j.queue)
    group by app_id, queue

    union all
    select 'queue_paused', format('queue %s: %s jobs, paused since %s', p.queue, count(*), p.paused_at)
    from live as j
    inner join paused_queues as p on p.app_id = j.app_id and p.queue = j.queue
    where j.state in ('pending', 'retrying') and j.run_at < statement_timestamp() - interval '5 minutes'
    group by p.app_id, p.queue, p.paused_at

    union all
    select 'blocked_with_room', format('job %s', j.job_id)
    from live as j
    where j.blocked_on is not null and j.run_at < statement_timestamp() - interval '30 seconds'
        and (select count(*) from resource_holds as h where h.app_id = j.app_id and h.resource = j.blocked_on)
            < coalesce((
                select s.capacity from resource_scopes as s
                where s.app_id = j.app_id and s.scope = split_part(j.blocked_on, ':', 1)
            ), 1)

    union all
    select 'not_swept', format('%s jobs, the oldest should be gone since %s', count(*), min(delete_after))
    from jobs
    where delete_after < statement_timestamp() - interval '1 hour'
    having count(*) > 0

    union all
    select 'long_transaction', format(
        'process %s of %s (%s), open for %s s: end it with select pg_terminate_backend(%s)',
        pid, usename, coalesce(nullif(application_name, ''), 'no name'),
        floor(extract(epoch from clock_timestamp() - xact_start)), pid
    )
    from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
        and clock_timestamp() - xact_start > make_interval(secs => $1)

    union all
    select 'dead_rows', format('table %s: %s dead, %s live', relname, n_dead_tup, n_live_tup)
    from pg_stat_user_tables
    where schemaname = current_schema() and n_dead_tup > 10000 and n_dead_tup > n_live_tup / 2

    union all
    select 'autovacuum_off', 'the whole server'
    where current_setting('autovacuum') = 'off' or current_setting('track_counts') = 'off'

    union all
    select 'autovacuum_off', format('table %s', c.relname)
    from pg_class as c
    where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
        and 'autovacuum_enabled=false' = any (c.reloptions)

    union all
    select 'transaction_ids_run_out', format('%s of 2,000,000,000 used', age(datfrozenxid))
    from pg_database
    where datname = current_database() and age(datfrozenxid) > 1000000000
)
select rule, count(*) as times, (array_agg(what order by what))[1:5] as examples
from found
group by rule
order by rule
