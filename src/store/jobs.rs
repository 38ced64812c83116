//! Jobs one by one: read, listed, cancelled, deleted.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::duration::Millis;
use crate::job::{AppId, FinalState, FinalStates, Instant, JobId, Parent, Policy, State};
use crate::store::rows::{JobRow, LockedJobRow, millis};
use crate::store::{Error, Store, statements};

/// A job as its readers see it.
#[derive(Clone, PartialEq, Debug)]
pub struct JobView {
    pub id: JobId,
    pub name: String,
    pub queue: String,
    pub priority: i16,
    pub state: State,
    /// JSON text, as posted.
    pub payload: String,
    /// A JSON object, or nothing where there is no metadata.
    pub metadata: Option<String>,
    pub resource_keys: Vec<String>,
    pub active_key: Option<String>,
    pub parent: Option<Parent>,
    pub policy: Policy,
    pub retention: Millis,
    pub attempt: i32,
    pub cancel_requested: bool,
    pub dispatched_at: Instant,
    pub run_at: Instant,
    pub started_at: Option<Instant>,
    pub finished_at: Option<Instant>,
    window_digest: Option<Uuid>,
}

/// A window key that still leads to a job.
#[derive(Clone, PartialEq, Debug)]
pub struct JobWindowKey {
    pub key: String,
    pub scope: String,
    pub expires_at: Instant,
}

/// Which jobs a list shows: those that pass every filter that is given.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ListFilter {
    pub name: Option<String>,
    pub queue: Option<String>,
    pub state: Option<State>,
    pub active_key: Option<String>,
    /// Name and value, all of which a job must have.
    pub metadata: Vec<(String, String)>,
    /// Strictly later than this.
    pub dispatched_after: Option<Instant>,
    /// Strictly earlier than this.
    pub dispatched_before: Option<Instant>,
}

/// What became of a cancel.
#[derive(Clone, PartialEq, Debug)]
pub enum Cancelled {
    /// The job is cancelled, or asked to be.
    Done,
    /// It has succeeded or failed before.
    Finished(State),
    NotFound,
}

/// What became of a delete.
#[derive(Clone, PartialEq, Debug)]
pub enum Deleted {
    Done,
    /// It is still live.
    Live(State),
    NotFound,
}

impl TryFrom<JobRow> for JobView {
    type Error = Error;

    fn try_from(row: JobRow) -> Result<JobView, Error> {
        let state = row.state()?;
        let JobRow {
            job_id,
            name,
            queue,
            priority,
            payload,
            metadata,
            resource_keys,
            active_key,
            window_digest,
            parent_job_id,
            parent_attempt,
            policy,
            retention_ms,
            attempt,
            cancel_requested,
            dispatched_at,
            run_at,
            started_at,
            finished_at,
            ..
        } = row;
        Ok(JobView {
            id: JobId(job_id),
            name,
            queue,
            priority,
            state,
            payload,
            metadata,
            resource_keys: resource_keys.unwrap_or_default(),
            active_key,
            parent: parent_job_id.map(|id| Parent {
                job_id: JobId(id),
                attempt: parent_attempt,
            }),
            policy: policy.policy()?,
            retention: millis(retention_ms, "retention_ms")?,
            attempt,
            cancel_requested,
            dispatched_at,
            run_at,
            started_at,
            finished_at,
            window_digest,
        })
    }
}

impl Store {
    pub async fn job(&self, app: AppId, id: JobId) -> Result<Option<(JobView, Vec<JobWindowKey>)>, Error> {
        let row: Option<JobRow> = sqlx::query_as(statements::JOB)
            .bind(app.0)
            .bind(id.0)
            .fetch_optional(&self.general)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let job = JobView::try_from(row)?;
        let keys = sqlx::query(statements::JOB_WINDOW_KEYS)
            .bind(app.0)
            .bind(id.0)
            .bind(job.window_digest)
            .fetch_all(&self.general)
            .await?;
        let keys = keys.iter().map(|row| {
            Ok(JobWindowKey {
                key: row.try_get("key")?,
                scope: row.try_get("scope")?,
                expires_at: row.try_get("expires_at")?,
            })
        });
        let keys = keys.collect::<Result<_, sqlx::Error>>()?;
        Ok(Some((job, keys)))
    }

    /// The newest jobs that pass the filter, older than `before`, at most `limit` of them.
    pub async fn list(
        &self,
        app: AppId,
        filter: &ListFilter,
        before: Option<JobId>,
        limit: u32,
    ) -> Result<Vec<JobView>, Error> {
        let ListFilter {
            name,
            queue,
            state,
            active_key,
            metadata,
            dispatched_after,
            dispatched_before,
        } = filter;
        let metadata: Option<serde_json::Map<String, serde_json::Value>> = (!metadata.is_empty()).then(|| {
            metadata
                .iter()
                .map(|(name, value)| (name.clone(), value.clone().into()))
                .collect()
        });
        let rows: Vec<JobRow> = sqlx::query_as(statements::LIST)
            .bind(app.0)
            .bind(before.map_or(Uuid::max(), |id| id.0))
            .bind(name)
            .bind(queue)
            .bind(state.map(State::as_str))
            .bind(active_key)
            .bind(metadata.map(|members| serde_json::Value::Object(members).to_string()))
            .bind(dispatched_after)
            .bind(dispatched_before)
            .bind(i64::from(limit))
            .fetch_all(&self.general)
            .await?;
        rows.into_iter().map(JobView::try_from).collect()
    }

    /// Whether the application has such a job.
    pub async fn job_exists(&self, app: AppId, id: JobId) -> Result<bool, Error> {
        let row = sqlx::query(statements::JOB)
            .bind(app.0)
            .bind(id.0)
            .fetch_optional(&self.general)
            .await?;
        Ok(row.is_some())
    }

    /// Cancels a job that nobody works on, in the transaction that frees its keys; asks the worker of one that
    /// somebody works on, unless `force` takes it away.
    pub async fn cancel(&self, app: AppId, id: JobId, force: bool) -> Result<Cancelled, Error> {
        let mut tx = self.general.begin_with("begin isolation level read committed").await?;
        let Some(job) = lock_job(&mut tx, app, id).await? else {
            return Ok(Cancelled::NotFound);
        };
        match job.state()? {
            State::Cancelled => {}
            state @ (State::Succeeded | State::Failed) => return Ok(Cancelled::Finished(state)),
            State::Reserved | State::Running if !force => {
                if !job.cancel_requested {
                    sqlx::query(statements::REQUEST_CANCEL)
                        .bind(app.0)
                        .bind(id.0)
                        .execute(&mut *tx)
                        .await?;
                }
            }
            State::Pending | State::Retrying | State::Reserved | State::Running => {
                let cancel = sqlx::query(statements::CANCEL)
                    .bind(app.0)
                    .bind(id.0)
                    .bind(job.locked_at);
                cancel.execute(&mut *tx).await?;
                release_keys(&mut tx, app, id, &job, FinalState::Cancelled).await?;
            }
        }
        tx.commit().await.map_err(Error::of_commit)?;
        Ok(Cancelled::Done)
    }

    /// Forgets a finished job. Its window keys stay, and answer for it.
    pub async fn delete(&self, app: AppId, id: JobId) -> Result<Deleted, Error> {
        let mut tx = self.general.begin_with("begin isolation level read committed").await?;
        let Some(job) = lock_job(&mut tx, app, id).await? else {
            return Ok(Deleted::NotFound);
        };
        let state = job.state()?;
        if state.is_live() {
            return Ok(Deleted::Live(state));
        }
        sqlx::query(statements::DELETE_JOB)
            .bind(app.0)
            .bind(id.0)
            .execute(&mut *tx)
            .await?;
        tx.commit().await.map_err(Error::of_commit)?;
        Ok(Deleted::Done)
    }
}

/// The row before its keys, in every transaction that touches both.
async fn lock_job(tx: &mut PgConnection, app: AppId, id: JobId) -> Result<Option<LockedJobRow>, Error> {
    Ok(sqlx::query_as(statements::LOCK_JOB)
        .bind(app.0)
        .bind(id.0)
        .fetch_optional(tx)
        .await?)
}

/// Frees what a job held that ends as `end`.
async fn release_keys(
    tx: &mut PgConnection,
    app: AppId,
    id: JobId,
    job: &LockedJobRow,
    end: FinalState,
) -> Result<(), Error> {
    sqlx::query(statements::RELEASE_KEYS)
        .bind(app.0)
        .bind(id.0)
        .bind(job.active_digest)
        .bind(job.window_digest)
        .bind(i16::from(FinalStates::of(end).bits()))
        .execute(tx)
        .await?;
    Ok(())
}
