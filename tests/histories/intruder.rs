//! Somebody who makes a finished job pending by writing into the tables, without any lock: a server that maps keys to
//! locks otherwise would do no worse. What stands between it and a second job is the constraint alone.

use std::time::Duration;

use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::record::Outcome;

/// Long enough for dispatches to look at the key meanwhile, and to find it free.
const LINGER: Duration = Duration::from_millis(200);

const RUN_AGAIN: &str = "
    with job as (
        select app_id, job_id, queue, state as was, attempt, worker, reserved_at, started_at, attempt_finished_at,
            attempt_error, ended_token, ended_by
        from jobs where job_id = $1 and finished_at is not null for update
    ), kept as (
        insert into job_attempts
            (app_id, job_id, lease_token, attempt, worker, reserved_at, started_at, finished_at, ended_by, error)
        select app_id, job_id, ended_token, attempt, worker, reserved_at, started_at, attempt_finished_at, ended_by,
            attempt_error
        from job where reserved_at is not null
    ), counted as (
        insert into queue_counts (app_id, queue, state, jobs)
        select app_id, queue, was, -1 from job union all select app_id, queue, 'pending', 1 from job
    )
    update jobs as j
    set state = 'pending', ready = true, attempt_limit = j.attempt + max_attempts, run_at = clock_timestamp(),
        cancel_requested = false, result = null, error = null, finished_at = null, delete_after = null, worker = null,
        reserved_at = null, started_at = null, attempt_ends_at = null, attempt_finished_at = null,
        attempt_error = null, ended_token = null, ended_by = null
    from job
    where j.app_id = job.app_id and j.job_id = job.job_id";

const CLAIM: &str = "
    insert into job_keys (app_id, digest, dimension, name, scope, key, job_id, since, release_on, linked,
        job_dispatched_at, job_active_key)
    select app_id, active_digest, 'active', name, 'global', active_key, job_id, clock_timestamp(), 0, false,
        dispatched_at, active_key
    from jobs where job_id = $1 and active_key is not null";

/// What became of it; `None` if there was no finished job, or nothing was written.
pub(crate) async fn run_again(pool: &PgPool, job: Uuid) -> Option<Outcome> {
    let mut connection = pool.acquire().await.ok()?;
    let done = async {
        sqlx::raw_sql("begin; set local lock_timeout = '2s'")
            .execute(&mut *connection)
            .await?;
        let found = sqlx::query(RUN_AGAIN).bind(job).execute(&mut *connection).await?;
        if found.rows_affected() == 1 {
            sqlx::query(CLAIM).bind(job).execute(&mut *connection).await?;
            tokio::time::sleep(LINGER).await;
        }
        Ok::<_, sqlx::Error>(found.rows_affected() == 1)
    };
    match done.await {
        Ok(true) => {}
        Err(error)
            if error
                .as_database_error()
                .is_some_and(|error| error.is_unique_violation()) =>
        {
            sqlx::raw_sql("rollback").execute(&mut *connection).await.ok()?;
            let body = json!({"code": "active_key_held"});
            return Some(Outcome::Answered { status: 409, body });
        }
        Ok(false) | Err(_) => {
            let _gone = sqlx::raw_sql("rollback").execute(&mut *connection).await;
            return None;
        }
    }
    Some(match sqlx::raw_sql("commit").execute(&mut *connection).await {
        Ok(_) => Outcome::Answered {
            status: 200,
            body: json!({}),
        },
        Err(error) => Outcome::Unknown(error.to_string()),
    })
}
