//! The bulk writes of a dispatch transaction: jobs created, keys claimed, taken over or linked.

use std::collections::HashSet;

use uuid::Uuid;

use crate::job::{AppId, Instant, JobId, NewJob, Parent, Policy, Retry, Start};
use crate::store::lives::column;
use crate::store::locks::Written;
use crate::store::{Error, Locked, statements};
use crate::uniqueness::decide::{AskedKey, AskedWindow, HeldJob};
use crate::uniqueness::holders::Seen;
use crate::uniqueness::key::{Key, KeyDigest};

/// A job to create, with the keys that it claims.
#[derive(Debug)]
pub struct Creation<'a> {
    pub app: AppId,
    pub id: JobId,
    pub job: &'a NewJob,
    pub active: Option<&'a AskedKey>,
    pub window: Option<&'a AskedKey>,
}

/// Everything that a transaction has to write.
#[derive(Debug, Default)]
pub struct Writes<'a> {
    pub creations: Vec<Creation<'a>>,
    claims: Vec<Claim<'a>>,
}

#[derive(Debug)]
pub(super) struct Claim<'a> {
    app: AppId,
    digest: KeyDigest,
    key: &'a Key,
    job: HeldJob,
    window: Option<(&'a AskedWindow, Instant)>,
    over: Option<Seen>,
    linked: bool,
}

impl<'a> Writes<'a> {
    pub fn claim_active(&mut self, app: AppId, job: HeldJob, key: &'a AskedKey) {
        let AskedKey { key, digest } = key;
        self.claims.push(Claim {
            app,
            digest: *digest,
            key,
            job,
            window: None,
            over: None,
            linked: false,
        });
    }

    pub fn claim_window(
        &mut self,
        app: AppId,
        job: HeldJob,
        asked: &'a AskedWindow,
        expires_at: Instant,
        over: Option<Seen>,
        linked: bool,
    ) {
        let AskedKey { key, digest } = &asked.key;
        let window = Some((asked, expires_at));
        self.claims.push(Claim {
            app,
            digest: *digest,
            key,
            job,
            window,
            over,
            linked,
        });
    }

    /// One order for everybody: keys that are written in circles would deadlock.
    pub(super) fn sort(&mut self) {
        self.claims.sort_unstable_by_key(|claim| (claim.app, claim.digest));
    }

    /// The keys that are nobody's yet.
    pub(super) fn fresh_claims(&self) -> Vec<&Claim<'a>> {
        self.claims.iter().filter(|claim| claim.over.is_none()).collect()
    }

    /// The jobs that it creates.
    pub(super) fn created(&self) -> HashSet<JobId> {
        self.creations.iter().map(|creation| creation.id).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.creations.is_empty() && self.claims.is_empty()
    }

    /// One job or key of these, by which the transaction is recognised after its answer was lost.
    pub fn witness(&self, decided_at: Instant) -> Option<Written> {
        let created = self.creations.first().map(|creation| (creation.app, creation.id, None));
        let claimed = || {
            self.claims
                .first()
                .map(|claim| (claim.app, claim.job.id, Some(claim.digest)))
        };
        created.or_else(claimed).map(|(app, job, key)| Written {
            app,
            job,
            key,
            since: decided_at,
        })
    }
}

impl Locked {
    /// Writes all of it. [`Error::Overtaken`] when a holder is not the one that was seen: nothing is to be
    /// committed then, and everything decided anew.
    pub async fn write(&mut self, writes: &mut Writes<'_>) -> Result<(), Error> {
        writes.sort();
        mutant!("link_to_whatever_has_ended": (), else self.hold_linked(writes).await?);
        self.insert(writes).await?;
        self.take_over(writes).await
    }

    /// A job that a key is being linked to is live, and stays so until the link is stored.
    async fn hold_linked(&mut self, writes: &Writes<'_>) -> Result<(), Error> {
        let created = writes.created();
        let mut jobs: Vec<(i64, Uuid)> = writes
            .claims
            .iter()
            .filter(|claim| claim.linked && !created.contains(&claim.job.id))
            .map(|claim| (claim.app.0, claim.job.id.0))
            .collect();
        jobs.sort_unstable();
        jobs.dedup();
        if jobs.is_empty() {
            return Ok(());
        }
        let (apps, ids): (Vec<i64>, Vec<Uuid>) = jobs.iter().copied().unzip();
        let held = sqlx::query(statements::HOLD_LINKED)
            .bind(apps)
            .bind(ids)
            .fetch_all(&mut *self.tx)
            .await?;
        if held.len() == jobs.len() {
            Ok(())
        } else {
            Err(Error::Overtaken)
        }
    }

    async fn insert(&mut self, writes: &Writes<'_>) -> Result<(), Error> {
        let claims = writes.fresh_claims();
        if writes.creations.is_empty() && claims.is_empty() {
            return Ok(());
        }
        let begin = Begin::At(self.decided_at());
        bound(&begin, &writes.creations, &claims, &writes.created())
            .execute(&mut *self.tx)
            .await?;
        Ok(())
    }

    async fn take_over(&mut self, writes: &Writes<'_>) -> Result<(), Error> {
        let claims: Vec<(&Claim<'_>, Seen)> = writes
            .claims
            .iter()
            .filter_map(|claim| Some((claim, claim.over?)))
            .collect();
        if claims.is_empty() {
            return Ok(());
        }
        let taken = sqlx::query(statements::TAKE_OVER)
            .bind(self.decided_at())
            .bind(column(&claims, |(c, _)| c.app.0))
            .bind(column(&claims, |(c, _)| Uuid::from_bytes(c.digest.0)))
            .bind(column(&claims, |(c, _)| c.job.id.0))
            .bind(column(&claims, |(c, _)| c.expires_at()))
            .bind(column(&claims, |(c, _)| c.fingerprint()))
            .bind(column(&claims, |(c, _)| c.release_on()))
            .bind(column(&claims, |(c, _)| c.linked))
            .bind(column(&claims, |(c, _)| c.job.dispatched_at))
            .bind(column(&claims, |(c, _)| c.job.active_key.as_deref()))
            .bind(column(&claims, |(_, seen)| seen.job.0))
            .bind(column(&claims, |(_, seen)| seen.expires_at))
            .execute(&mut *self.tx)
            .await?;
        if taken.rows_affected() == claims.len() as u64 {
            Ok(())
        } else {
            Err(Error::Overtaken)
        }
    }
}

/// How the statement that writes is begun.
pub(super) enum Begin<'a> {
    /// In a transaction that holds its locks, decided at this instant.
    At(Instant),
    /// As a transaction of its own.
    Alone(&'a Conditions<'a>),
}

/// What has to be true for a group to be written without waiting for anything.
#[derive(Debug)]
pub struct Conditions<'a> {
    /// Nobody else has these locks.
    pub locks: &'a [i64],
    /// It has not become later than that, by the database's clock.
    pub not_after: Instant,
    /// Applications, and the versions of their job types.
    pub types_versions: &'a [(AppId, i64)],
}

type Bound<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// The statement that writes, with everything that it needs.
pub(super) fn bound<'q>(
    begin: &Begin<'q>,
    jobs: &'q [Creation<'q>],
    claims: &[&'q Claim<'q>],
    created: &HashSet<JobId>,
) -> Bound<'q> {
    let uuid = |digest: &KeyDigest| Uuid::from_bytes(digest.0);
    let write = mutant!(
        "no_constraint": &*Box::leak(statements::WRITE.replace(
            ")\nselect now.",
            "on conflict (app_id, digest) do update set job_id = excluded.job_id, since = excluded.since)\nselect now."
        ).into_boxed_str()),
        else statements::WRITE
    );
    let (decided_at, conditions) = match begin {
        Begin::At(decided_at) => (Some(*decided_at), None),
        Begin::Alone(conditions) => (None, Some(conditions)),
    };
    let versions = conditions.map_or(&[][..], |conditions| conditions.types_versions);
    let made = |claim: &&'q Claim<'q>| created.contains(&claim.job.id);
    sqlx::query(write)
        .bind(decided_at)
        .bind(conditions.map_or(&[][..], |conditions| conditions.locks))
        .bind(conditions.map(|conditions| conditions.not_after))
        .bind(column(versions, |(app, _)| app.0))
        .bind(column(versions, |(_, version)| *version))
        .bind(column(jobs, |c| c.app.0))
        .bind(column(jobs, |c| c.id.tail()))
        .bind(column(jobs, |c| &*c.job.name))
        .bind(column(jobs, |c| &*c.job.queue))
        .bind(column(jobs, |c| c.job.priority))
        .bind(column(jobs, |c| &*c.job.payload))
        .bind(column(jobs, |c| metadata(&c.job.metadata)))
        .bind(column(jobs, |c| array(&c.job.resource_keys)))
        .bind(column(jobs, |c| c.active.map(|asked| asked.key.text.as_str())))
        .bind(column(jobs, |c| c.active.map(|asked| uuid(&asked.digest))))
        .bind(column(jobs, |c| c.window.map(|asked| uuid(&asked.digest))))
        .bind(column(jobs, |c| c.job.parent.map(|Parent { job_id, .. }| job_id.0)))
        .bind(column(jobs, |c| {
            c.job.parent.and_then(|Parent { attempt, .. }| attempt)
        }))
        .bind(column(jobs, |c| retry(c).max_attempts))
        .bind(column(jobs, |c| retry(c).backoff.as_str()))
        .bind(column(jobs, |c| retry(c).initial.0 as i64))
        .bind(column(jobs, |c| retry(c).factor))
        .bind(column(jobs, |c| retry(c).max.0 as i64))
        .bind(column(jobs, |c| retry(c).jitter))
        .bind(column(jobs, |c| c.job.policy.timeout.map(|timeout| timeout.0 as i64)))
        .bind(column(jobs, |c| c.job.retention.0 as i64))
        .bind(column(jobs, |c| match c.job.start {
            Start::Delay(delay) => Some(delay.0 as i64),
            Start::Now | Start::At(_) => None,
        }))
        .bind(column(jobs, |c| match c.job.start {
            Start::At(at) => Some(at),
            Start::Now | Start::Delay(_) => None,
        }))
        .bind(column(claims, |c| c.app.0))
        .bind(column(claims, |c| uuid(&c.digest)))
        .bind(column(claims, |c| c.key.dimension.as_str()))
        .bind(column(claims, |c| &*c.key.name))
        .bind(column(claims, |c| &*c.key.scope))
        .bind(column(claims, |c| c.key.text.as_str()))
        .bind(column(claims, |c| (!made(c)).then_some(c.job.id.0)))
        .bind(column(claims, |c| made(c).then(|| c.job.id.tail())))
        .bind(column(claims, |c| {
            c.window.map(|(asked, _)| asked.window.millis().0 as i64)
        }))
        .bind(column(claims, |c| c.fingerprint()))
        .bind(column(claims, |c| c.release_on()))
        .bind(column(claims, |c| c.linked))
        .bind(column(claims, |c| (!made(c)).then_some(c.job.dispatched_at)))
        .bind(column(claims, |c| c.job.active_key.as_deref()))
}

impl Claim<'_> {
    fn expires_at(&self) -> Option<Instant> {
        self.window.map(|(_, expires_at)| expires_at)
    }

    fn fingerprint(&self) -> Option<Vec<u8>> {
        self.window.map(|(asked, _)| asked.fingerprint.to_bytes())
    }

    fn release_on(&self) -> i16 {
        self.window.map_or(0, |(asked, _)| i16::from(asked.release_on.bits()))
    }
}

fn retry<'a>(creation: &Creation<'a>) -> &'a Retry {
    let Policy { retry, timeout: _ } = &creation.job.policy;
    retry
}

/// A JSON object, or nothing where there is no metadata.
fn metadata(members: &[(String, String)]) -> Option<String> {
    if members.is_empty() {
        return None;
    }
    let members: serde_json::Map<String, serde_json::Value> = members
        .iter()
        .map(|(name, value)| (name.clone(), value.clone().into()))
        .collect();
    Some(serde_json::Value::Object(members).to_string())
}

/// A PostgreSQL array literal: unnest cannot give out arrays of arrays of different lengths.
fn array(items: &[String]) -> Option<String> {
    if items.is_empty() {
        return None;
    }
    let quoted = items
        .iter()
        .map(|item| format!("\"{}\"", item.replace('\\', "\\\\").replace('"', "\\\"")));
    Some(format!("{{{}}}", quoted.collect::<Vec<_>>().join(",")))
}
