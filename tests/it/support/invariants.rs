//! What must be true of the data whatever was done to it.

use std::fmt::Write;

use sqlx::{AssertSqlSafe, PgPool};

use super::wait::eventually;

const LIVE: &str = "('pending', 'reserved', 'running', 'retrying')";

/// Each query lists the rows that break a rule, as text.
pub(super) const RULES: &[(&str, &str)] = &[
    (
        "two live jobs share an active key",
        "select format('%s %s: %s jobs', name, active_key, count(*)) from jobs
         where state in LIVE and active_key is not null
         group by app_id, name, active_key having count(*) > 1",
    ),
    (
        "a live job does not hold exactly its active key",
        "select format('%s %s holds %s', job_id, active_key, array_agg(k.key)) from jobs j
         left join job_keys k using (app_id, job_id)
         where j.state in LIVE and (k.dimension = 'active' or k.dimension is null)
         group by app_id, job_id, active_key
         having (case when active_key is null then array[]::text[] else array[active_key] end)
             is distinct from coalesce(array_agg(k.key) filter (where k.dimension = 'active'), array[]::text[])",
    ),
    (
        "a live job with an active key has no row for it",
        "select format('%s %s', job_id, active_key) from jobs j
         where state in LIVE and active_key is not null and not exists (
             select from job_keys k where k.app_id = j.app_id and k.job_id = j.job_id
                 and k.dimension = 'active' and k.name = j.name and k.key = j.active_key)",
    ),
    (
        "an active key is held by a job that is finished, gone or another one",
        "select format('%s %s of %s', k.name, k.key, k.job_id) from job_keys k
         where k.dimension = 'active' and not exists (
             select from jobs j where j.app_id = k.app_id and j.job_id = k.job_id
                 and j.state in LIVE and j.name = k.name and j.active_key = k.key)",
    ),
    (
        "a window key names a job that was never stored",
        "select format('%s %s of %s', k.name, k.key, k.job_id) from job_keys k
         where k.dimension = 'window'
             and not exists (select from jobs j where j.app_id = k.app_id and j.job_id = k.job_id)
             and not exists (select from harness.deleted_jobs d where d.app_id = k.app_id and d.job_id = k.job_id)",
    ),
    (
        "a window key remembers its job wrongly",
        "select format('%s %s of %s', k.name, k.key, k.job_id) from job_keys k
         join jobs j using (app_id, job_id)
         where k.dimension = 'window'
             and (k.name, k.job_dispatched_at) is distinct from (j.name, j.dispatched_at)
             or k.job_active_key is distinct from j.active_key",
    ),
    (
        "two rows hold one key",
        "select format('%s %s %s %s', dimension, name, scope, key) from job_keys
         group by app_id, dimension, name, scope, key having count(*) > 1",
    ),
    (
        "finished and finished_at do not agree",
        "select format('%s is %s, finished at %s', job_id, state, finished_at) from jobs
         where (state not in LIVE) <> (finished_at is not null)",
    ),
    (
        "leased and lease_token do not agree",
        "select format('%s is %s, token %s', job_id, state, lease_token) from jobs
         where (state in ('reserved', 'running')) <> (lease_token is not null)",
    ),
    (
        "a resource is held by a job that is not leased",
        "select format('%s by %s', h.resource, h.job_id) from resource_holds h
         where not exists (select from jobs j where j.app_id = h.app_id and j.job_id = h.job_id
             and j.state in ('reserved', 'running') and h.resource = any(j.resource_keys))",
    ),
    (
        "a leased job does not hold its resource",
        "select format('%s by %s', r.resource, j.job_id) from jobs j, unnest(j.resource_keys) r (resource)
         where j.state in ('reserved', 'running') and not exists (
             select from resource_holds h where h.app_id = j.app_id and h.job_id = j.job_id and h.resource = r.resource)",
    ),
    (
        "the counts of a queue are not those of its jobs",
        "select format('%s %s: %s counted, %s there', queue, state, coalesce(c.jobs, 0), coalesce(r.jobs, 0))
         from (select app_id, queue, state, sum(jobs) as jobs from queue_counts group by 1, 2, 3) c
         full join (select app_id, queue, state, count(*) as jobs from jobs group by 1, 2, 3) r
             using (app_id, queue, state)
         where coalesce(c.jobs, 0) <> coalesce(r.jobs, 0)",
    ),
    (
        "a job in line is not due",
        "select format('%s is %s, due at %s', job_id, state, run_at) from jobs
         where ready and (state not in ('pending', 'retrying') or run_at > clock_timestamp() or blocked_on is not null)",
    ),
    (
        "the attempts of a job are not numbered from one to the last",
        "select format('%s at %s: %s', j.job_id, j.attempt, array_agg(a.attempt order by a.attempt)) from jobs j
         left join lateral (
             select attempt from job_attempts a
                 where a.app_id = j.app_id and a.job_id = j.job_id and a.ended_by <> 'release'
             union all select j.attempt where j.reserved_at is not null) a on true
         group by j.app_id, j.job_id, j.attempt
         having coalesce(array_agg(a.attempt order by a.attempt) filter (where a.attempt is not null), '{}')
             <> array(select generate_series(1, j.attempt))",
    ),
];

/// These may take a moment to be true after the last answer.
pub(super) const SOON: &[(&str, &str)] = &[
    (
        "an advisory lock is left",
        "select format('%s %s of %s', classid, objid, pid) from pg_locks
         where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())",
    ),
    (
        "a session sits in an open transaction",
        "select format('%s %s: %s', pid, state, query) from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid() and state like 'idle in transaction%'",
    ),
];

pub(super) async fn check(pool: &PgPool) {
    eventually("the sessions to come to rest", async || {
        let broken = broken(pool, SOON).await.map_err(|error| error.to_string())?;
        if broken.is_empty() { Ok(()) } else { Err(broken) }
    })
    .await;
    let broken = broken(pool, RULES).await.expect("the rules can be asked for");
    assert!(broken.is_empty(), "the data is not what it must be:\n{broken}");
}

/// The rules that do not hold, with some of the rows that break them.
pub(super) async fn broken(pool: &PgPool, rules: &[(&str, &str)]) -> Result<String, sqlx::Error> {
    let mut found = String::new();
    for (rule, sql) in rules {
        let sql = sql.replace("LIVE", LIVE);
        let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(pool).await?;
        for row in rows.iter().take(5) {
            let _ = writeln!(found, "  {rule}: {row}");
        }
        if rows.len() > 5 {
            let _ = writeln!(found, "  … and {} more", rows.len() - 5);
        }
    }
    Ok(found)
}
