//! The lives of jobs: loaded under lock, and written back with everything that follows.

use std::collections::{BTreeMap, HashMap};

use sqlx::{FromRow, Row};
use uuid::Uuid;

use crate::job::{AppId, FinalState, FinalStates, Instant, JobId, State};
use crate::life::{Attempt, AttemptEnd, Lease, Life};
use crate::store::connection::Connection;
use crate::store::jobs::{self, FullJob};
use crate::store::pool::Transaction;
use crate::store::rows::{PolicyRow, millis, state};
use crate::store::{Error, Store, statements};

/// A job that is locked, with what its life needs and what its end frees.
#[derive(Clone, PartialEq, Debug)]
pub struct LockedJob {
    pub app: AppId,
    pub id: JobId,
    pub queue: String,
    pub life: Life,
    active_digest: Option<Uuid>,
    window_digest: Option<Uuid>,
    resource_keys: Vec<String>,
}

/// A transaction on the lives of jobs, all of them locked.
#[derive(Debug)]
pub struct Lives {
    pub(super) tx: Transaction,
}

/// What a job was, and what it is now.
#[derive(Debug)]
pub struct Changed<'a> {
    pub before: State,
    pub leased_before: bool,
    pub job: &'a LockedJob,
    /// An attempt that the job's row no longer shows.
    pub past: Option<(Uuid, i32, Attempt)>,
}

#[derive(FromRow)]
struct LifeRow {
    app_id: i64,
    job_id: Uuid,
    queue: String,
    state: String,
    attempt: i32,
    attempt_limit: i32,
    #[sqlx(flatten)]
    policy: PolicyRow,
    retention_ms: i64,
    run_at: Instant,
    lease_token: Option<Uuid>,
    lease_expires_at: Option<Instant>,
    attempt_ends_at: Option<Instant>,
    worker: Option<String>,
    reserved_at: Option<Instant>,
    started_at: Option<Instant>,
    attempt_finished_at: Option<Instant>,
    attempt_error: Option<String>,
    ended_token: Option<Uuid>,
    ended_by: Option<String>,
    cancel_requested: bool,
    result: Option<String>,
    error: Option<String>,
    finished_at: Option<Instant>,
    active_digest: Option<Uuid>,
    window_digest: Option<Uuid>,
    resource_keys: Option<Vec<String>>,
    locked_at: Instant,
}

pub(super) fn attempt_end(text: &str) -> Result<AttemptEnd, Error> {
    let found = AttemptEnd::ALL.into_iter().find(|end| end.as_str() == text);
    found.ok_or_else(|| Error::Inconsistent {
        table: "jobs",
        column: "ended_by",
        problem: format!("unknown {text:?}"),
    })
}

impl TryFrom<LifeRow> for LockedJob {
    type Error = Error;

    fn try_from(row: LifeRow) -> Result<LockedJob, Error> {
        let lease = match (row.lease_token, row.lease_expires_at) {
            (Some(token), Some(expires_at)) => Some(Lease {
                token,
                expires_at,
                ends_at: row.attempt_ends_at,
            }),
            _ => None,
        };
        let ended_by = row.ended_by.as_deref().map(attempt_end).transpose()?;
        let last = row.reserved_at.map(|reserved_at| Attempt {
            worker: row.worker,
            reserved_at,
            started_at: row.started_at,
            finished_at: row.attempt_finished_at,
            error: row.attempt_error.map(Into::into),
            ended: row.ended_token.zip(ended_by),
        });
        Ok(LockedJob {
            app: AppId(row.app_id),
            id: JobId(row.job_id),
            queue: row.queue,
            life: Life {
                state: state(&row.state)?,
                attempt: row.attempt,
                attempt_limit: row.attempt_limit,
                policy: row.policy.policy()?,
                retention: millis(row.retention_ms, "retention_ms")?,
                run_at: row.run_at,
                lease,
                last,
                cancel_requested: row.cancel_requested,
                result: row.result.map(Into::into),
                error: row.error.map(Into::into),
                finished_at: row.finished_at,
            },
            active_digest: row.active_digest,
            window_digest: row.window_digest,
            resource_keys: row.resource_keys.unwrap_or_default(),
        })
    }
}

impl Store {
    /// Locks jobs, in the order of their ids, and gives them with the clock as of after the locks. A job that
    /// is not there is missing.
    pub async fn lock_lives(&self, jobs: &[(AppId, JobId)]) -> Result<(Lives, Vec<LockedJob>, Instant), Error> {
        Lives::lock(
            self.work.begin_with("begin isolation level read committed").await?,
            jobs,
        )
        .await
    }
}

impl Lives {
    /// Locks jobs within a transaction that may hold key locks, and no rows.
    pub(super) async fn lock(
        mut tx: Transaction,
        jobs: &[(AppId, JobId)],
    ) -> Result<(Lives, Vec<LockedJob>, Instant), Error> {
        let (apps, ids): (Vec<i64>, Vec<Uuid>) = jobs.iter().map(|(app, id)| (app.0, id.0)).unzip();
        let rows: Vec<LifeRow> = sqlx::query_as(statements::LOCK_LIVES)
            .bind(apps)
            .bind(ids)
            .fetch_all(&mut *tx)
            .await?;
        let now = match rows.iter().map(|row| row.locked_at).max() {
            Some(now) => now,
            None => clock(&mut tx).await?,
        };
        let jobs = rows.into_iter().map(LockedJob::try_from).collect::<Result<_, _>>()?;
        Ok((Lives { tx }, jobs, now))
    }
}

pub(super) async fn clock(connection: &mut Connection) -> Result<Instant, Error> {
    Ok(sqlx::query(statements::CLOCK)
        .fetch_one(connection)
        .await?
        .try_get("now")?)
}

impl Lives {
    /// How attempts before the last ended, for those of `asked` (application, job, token) that there were.
    pub async fn past_ends(
        &mut self,
        asked: &[(AppId, JobId, Uuid)],
    ) -> Result<Vec<(AppId, JobId, Uuid, AttemptEnd)>, Error> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(statements::PAST_ENDS)
            .bind(column(asked, |(app, ..)| app.0))
            .bind(column(asked, |(_, id, _)| id.0))
            .bind(column(asked, |(.., token)| *token))
            .fetch_all(&mut *self.tx)
            .await?;
        let end = |row: &sqlx::postgres::PgRow| {
            let ended_by: &str = row.try_get("ended_by")?;
            let (app, id) = (AppId(row.try_get("app_id")?), JobId(row.try_get("job_id")?));
            Ok((app, id, row.try_get("lease_token")?, attempt_end(ended_by)?))
        };
        rows.iter().map(end).collect()
    }

    /// Writes what became of jobs at `now`: frees keys and resources of those that ended or lost their lease,
    /// and counts. Gives the queues in which other jobs got in line.
    pub async fn write(&mut self, changes: &[Changed<'_>], now: Instant) -> Result<Vec<(AppId, String)>, Error> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.write_rows(changes, now).await?;
        self.free_resources(changes).await
    }

    async fn write_rows(&mut self, changes: &[Changed<'_>], now: Instant) -> Result<(), Error> {
        let lives: Vec<&Life> = changes.iter().map(|change| &change.job.life).collect();
        let past: Vec<_> = changes
            .iter()
            .filter_map(|c| c.past.as_ref().map(|(token, n, attempt)| (c.job, token, n, attempt)))
            .collect();
        // What the jobs held that have ended just now is freed.
        let ended = changes.iter().filter(|change| change.before.is_live());
        let ended: Vec<(&LockedJob, FinalStates)> = ended
            .filter_map(|c| Some((c.job, FinalStates::of(freed_by(c.job.life.state)?))))
            .collect();
        let mut counts = Counts::default();
        for Changed { before, job, .. } in changes {
            counts.moved(job.app, &job.queue, Some(*before), Some(job.life.state));
        }
        let counts = counts.changes();
        fn last<'a, T: 'a>(life: &'a Life, value: impl Fn(&'a Attempt) -> Option<T>) -> Option<T> {
            life.last.as_ref().and_then(value)
        }
        sqlx::query(statements::WRITE_LIVES)
            .bind(column(changes, |c| c.job.app.0))
            .bind(column(changes, |c| c.job.id.0))
            .bind(column(&lives, |l| l.state.as_str()))
            .bind(column(&lives, |l| l.is_waiting() && l.run_at <= now))
            .bind(column(&lives, |l| l.attempt))
            .bind(column(&lives, |l| l.attempt_limit))
            .bind(column(&lives, |l| l.run_at))
            .bind(column(&lives, |l| l.lease.map(|lease| lease.token)))
            .bind(column(&lives, |l| l.lease.map(|lease| lease.expires_at)))
            .bind(column(&lives, |l| l.lease.and_then(|lease| lease.ends_at)))
            .bind(column(&lives, |l| last(l, |last| last.worker.as_deref())))
            .bind(column(&lives, |l| last(l, |last| Some(last.reserved_at))))
            .bind(column(&lives, |l| last(l, |last| last.started_at)))
            .bind(column(&lives, |l| last(l, |last| last.finished_at)))
            .bind(column(&lives, |l| last(l, |last| last.error.as_deref())))
            .bind(column(&lives, |l| last(l, |last| last.ended.map(|(token, _)| token))))
            .bind(column(&lives, |l| {
                last(l, |last| last.ended.map(|(_, end)| end.as_str()))
            }))
            .bind(column(&lives, |l| l.cancel_requested))
            .bind(column(&lives, |l| l.result.as_deref()))
            .bind(column(&lives, |l| l.error.as_deref()))
            .bind(column(&lives, |l| l.finished_at))
            .bind(column(&lives, |l| l.delete_after()))
            .bind(column(&past, |(job, ..)| job.app.0))
            .bind(column(&past, |(job, ..)| job.id.0))
            .bind(column(&past, |(_, token, ..)| **token))
            .bind(column(&past, |(_, _, n, _)| **n))
            .bind(column(&past, |(.., a)| a.worker.as_deref()))
            .bind(column(&past, |(.., a)| a.reserved_at))
            .bind(column(&past, |(.., a)| a.started_at))
            .bind(column(&past, |(.., a)| a.finished_at))
            .bind(column(&past, |(.., a)| a.ended.map(|(_, end)| end.as_str())))
            .bind(column(&past, |(.., a)| a.error.as_deref()))
            .bind(column(&ended, |(job, _)| job.app.0))
            .bind(column(&ended, |(job, _)| job.id.0))
            .bind(column(&ended, |(job, _)| job.active_digest))
            .bind(column(&ended, |(job, _)| job.window_digest))
            .bind(column(
                &ended,
                |(_, end)| mutant!("release_on_ignored": 0, else i16::from(end.bits())),
            ))
            .bind(column(&counts, |((app, ..), _)| app.0))
            .bind(column(&counts, |((_, queue, _), _)| queue.as_str()))
            .bind(column(&counts, |((.., state), _)| *state))
            .bind(column(&counts, |(_, change)| *change))
            .execute(&mut *self.tx)
            .await?;
        Ok(())
    }

    /// Gives back the resource keys of jobs that are no longer leased. Their rows are locked first, so that a
    /// job which is just being blocked on one is seen.
    async fn free_resources(&mut self, changes: &[Changed<'_>]) -> Result<Vec<(AppId, String)>, Error> {
        let mut freed: BTreeMap<AppId, Vec<(&str, Uuid)>> = BTreeMap::new();
        for Changed { leased_before, job, .. } in changes {
            if *leased_before && job.life.lease.is_none() {
                let holds = job.resource_keys.iter().map(|resource| (resource.as_str(), job.id.0));
                freed.entry(job.app).or_default().extend(holds);
            }
        }
        let mut woken = Vec::new();
        for (app, holds) in freed {
            if holds.is_empty() {
                continue;
            }
            let (resources, ids): (Vec<&str>, Vec<Uuid>) = holds.into_iter().unzip();
            sqlx::query(statements::LOCK_RESOURCES)
                .bind(app.0)
                .bind(&resources)
                .execute(&mut *self.tx)
                .await?;
            let free = sqlx::query(statements::FREE_RESOURCES)
                .bind(app.0)
                .bind(&resources)
                .bind(ids);
            free.execute(&mut *self.tx).await?;
            let rows = sqlx::query(statements::UNBLOCK)
                .bind(app.0)
                .bind(&resources)
                .fetch_all(&mut *self.tx)
                .await?;
            for row in rows {
                woken.push((app, row.try_get("queue")?));
            }
        }
        Ok(woken)
    }

    /// Jobs of one application with everything about them, as this transaction leaves them.
    pub async fn full_jobs(&mut self, app: AppId, ids: &[JobId]) -> Result<HashMap<JobId, FullJob>, Error> {
        jobs::full_jobs(&mut self.tx, app, ids).await
    }

    pub async fn commit(self) -> Result<(), Error> {
        self.tx.commit().await.map_err(Error::of_commit)
    }
}

/// The end that frees the keys of a job, if it has come.
fn freed_by(state: State) -> Option<FinalState> {
    let end = state.final_state();
    mutant!(
        "key_freed_while_retrying": end.or((state == State::Retrying).then_some(FinalState::Failed)),
        else end
    )
}

pub(super) fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// How the numbers of jobs in queues change in a transaction.
#[derive(Debug, Default)]
pub(super) struct Counts(BTreeMap<(AppId, String, &'static str), i64>);

impl Counts {
    /// A job left one state and is in another; it is created, or forgotten, where one of them is none.
    pub(super) fn moved(&mut self, app: AppId, queue: &str, before: Option<State>, after: Option<State>) {
        if before == after {
            return;
        }
        for (state, change) in [(before, -1), (after, 1)] {
            if let Some(state) = state {
                *self.0.entry((app, queue.to_owned(), state.as_str())).or_default() += change;
            }
        }
    }

    fn changes(self) -> Vec<((AppId, String, &'static str), i64)> {
        self.0.into_iter().filter(|(_, change)| *change != 0).collect()
    }

    pub(super) async fn write(self, tx: &mut Connection) -> Result<(), Error> {
        let changes = self.changes();
        if changes.is_empty() {
            return Ok(());
        }
        sqlx::query(statements::COUNT_QUEUES)
            .bind(column(&changes, |((app, ..), _)| app.0))
            .bind(column(&changes, |((_, queue, _), _)| queue.as_str()))
            .bind(column(&changes, |((.., state), _)| *state))
            .bind(column(&changes, |(_, change)| *change))
            .execute(tx)
            .await?;
        Ok(())
    }
}
