//! Jobs one by one: read, listed, deleted.

use std::collections::HashMap;

use sqlx::Row;
use uuid::Uuid;

use crate::duration::Millis;
use crate::job::{AppId, Instant, JobId, Parent, Policy, State};
use crate::store::connection::Connection;
use crate::store::lives::Counts;
use crate::store::rows::{FullJobRow, JobRow, millis, state};
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
    /// JSON text, as the worker gave it.
    pub result: Option<String>,
    /// JSON text.
    pub error: Option<String>,
}

/// A window key that still leads to a job.
#[derive(Clone, PartialEq, Debug)]
pub struct JobWindowKey {
    pub key: String,
    pub scope: String,
    pub expires_at: Instant,
}

/// An attempt as its readers see it.
#[derive(Clone, PartialEq, Debug)]
pub struct AttemptView {
    pub attempt: i32,
    pub worker: Option<String>,
    pub reserved_at: Instant,
    pub started_at: Option<Instant>,
    pub finished_at: Option<Instant>,
    /// JSON text.
    pub error: Option<String>,
}

/// A job with everything about it.
#[derive(Clone, PartialEq, Debug)]
pub struct FullJob {
    pub job: JobView,
    pub window_keys: Vec<JobWindowKey>,
    /// Oldest first.
    pub attempts: Vec<AttemptView>,
    /// Token and end of its lease: for nobody but the worker that has just got it.
    pub lease: Option<(Uuid, Instant)>,
}

/// Which jobs a list shows: those that pass every filter that is given. Of several names, queues or states a job has
/// one; of none it has none.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ListFilter {
    pub names: Option<Vec<String>>,
    pub queues: Option<Vec<String>>,
    pub states: Option<Vec<State>>,
    /// Of those that are pending, only the ones whose time is still to come (true), or has come (false).
    pub delayed: Option<bool>,
    pub active_key: Option<String>,
    /// Name and value, all of which a job must have.
    pub metadata: Vec<(String, String)>,
    /// Strictly later than this.
    pub dispatched_after: Option<Instant>,
    /// Strictly earlier than this.
    pub dispatched_before: Option<Instant>,
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
            result,
            error,
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
            result,
            error,
        })
    }
}

/// Jobs of one application with everything about them, as the connection sees them.
pub(super) async fn full_jobs(
    connection: &mut Connection,
    app: AppId,
    ids: &[JobId],
) -> Result<HashMap<JobId, FullJob>, Error> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    // The application beside each id: both are then one look into the primary key, whatever plan was made when.
    let rows: Vec<FullJobRow> = sqlx::query_as(statements::FULL_JOBS)
        .bind(vec![app.0; ids.len()])
        .bind(ids)
        .fetch_all(connection)
        .await?;
    let full = |row: FullJobRow| row.full().map(|full| (full.job.id, full));
    rows.into_iter().map(full).collect()
}

impl Store {
    pub async fn job(&self, app: AppId, id: JobId) -> Result<Option<FullJob>, Error> {
        Ok(self.jobs(app, &[id]).await?.remove(&id))
    }

    /// Jobs of one application with everything about them; one that is not there is missing.
    pub async fn jobs(&self, app: AppId, ids: &[JobId]) -> Result<HashMap<JobId, FullJob>, Error> {
        let mut connection = self.general.acquire().await?;
        full_jobs(&mut connection, app, ids).await
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
            names,
            queues,
            states,
            delayed,
            active_key,
            metadata,
            dispatched_after,
            dispatched_before,
        } = filter;
        let states = states.as_ref();
        let states = states.map(|states| states.iter().map(|state| state.as_str()).collect::<Vec<_>>());
        let metadata: Option<serde_json::Map<String, serde_json::Value>> = (!metadata.is_empty()).then(|| {
            metadata
                .iter()
                .map(|(name, value)| (name.clone(), value.clone().into()))
                .collect()
        });
        let rows: Vec<JobRow> = sqlx::query_as(statements::LIST)
            .bind(app.0)
            .bind(before.map_or(Uuid::max(), |id| id.0))
            .bind(names)
            .bind(queues)
            .bind(states)
            .bind(active_key)
            .bind(metadata.map(|members| serde_json::Value::Object(members).to_string()))
            .bind(dispatched_after)
            .bind(dispatched_before)
            .bind(i64::from(limit))
            .bind(delayed)
            .fetch_all(&self.general)
            .await?;
        rows.into_iter().map(JobView::try_from).collect()
    }

    /// The attempt that each of these jobs is at; one that is not there is missing.
    pub async fn attempts(&self, app: AppId, ids: &[JobId]) -> Result<HashMap<JobId, i32>, Error> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let attempts = sqlx::query(statements::ATTEMPTS).bind(vec![app.0; ids.len()]).bind(ids);
        let rows = attempts.fetch_all(&self.general).await?;
        rows.iter()
            .map(|row| Ok((JobId(row.try_get("job_id")?), row.try_get("attempt")?)))
            .collect()
    }

    /// Whether a job was last leased with this token.
    pub async fn leased_by(&self, app: AppId, id: JobId, token_id: Option<&str>) -> Result<bool, Error> {
        let row = sqlx::query(statements::LEASED_BY).bind(app.0).bind(id.0).bind(token_id);
        Ok(row.fetch_optional(&self.general).await?.is_some())
    }

    /// Where jobs are in their lives; one that is not there is missing.
    pub async fn job_states(&self, jobs: &[(AppId, JobId)]) -> Result<HashMap<(AppId, JobId), State>, Error> {
        let (apps, ids): (Vec<i64>, Vec<Uuid>) = jobs.iter().map(|(app, id)| (app.0, id.0)).unzip();
        let rows = sqlx::query(statements::JOB_STATES)
            .bind(apps)
            .bind(ids)
            .fetch_all(&self.general)
            .await?;
        let entry = |row: &sqlx::postgres::PgRow| {
            let text: &str = row.try_get("state")?;
            Ok((
                (AppId(row.try_get("app_id")?), JobId(row.try_get("job_id")?)),
                state(text)?,
            ))
        };
        rows.iter().map(entry).collect()
    }

    /// Forgets a finished job. Its window keys stay, and answer for it.
    pub async fn delete(&self, app: AppId, id: JobId) -> Result<Deleted, Error> {
        let mut tx = self.general.begin_with("begin isolation level read committed").await?;
        let deleted = sqlx::query(statements::DELETE_JOB)
            .bind(app.0)
            .bind(id.0)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(row) = deleted else {
            drop(tx);
            let states = self.job_states(&[(app, id)]).await?;
            return Ok(states
                .get(&(app, id))
                .map_or(Deleted::NotFound, |state| Deleted::Live(*state)));
        };
        let was: &str = row.try_get("state")?;
        let mut counts = Counts::default();
        counts.moved(app, row.try_get("queue")?, Some(state(was)?), None);
        counts.write(&mut tx).await?;
        tx.commit().await.map_err(Error::of_commit)?;
        Ok(Deleted::Done)
    }
}
