//! Giving jobs out: the first in line of some queues get leases, as far as their resource keys have room.

use std::collections::{BTreeSet, HashMap};

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::duration::Millis;
use crate::job::{AppId, JobId, State};
use crate::store::jobs::FullJob;
use crate::store::lives::{Counts, column};
use crate::store::{Error, Store, jobs, rows, statements};

/// How many jobs that become due at once get in line in one statement.
const PROMOTE_BATCH: i64 = 1_000;

/// The most jobs that are looked at in one statement for those that are not blocked.
const PICK_MAX: usize = 1_000;

/// Where a reserve looks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    pub app: AppId,
    /// Sorted and without doubles.
    pub queues: Vec<String>,
    /// Job names, sorted; `None` is any.
    pub names: Option<Vec<String>>,
}

/// One worker's wish for jobs.
#[derive(Clone, Debug)]
pub struct Wish {
    pub worker: Option<String>,
    pub jobs: usize,
    pub lease: Millis,
    pub reserve_id: Option<String>,
    /// The token that the jobs are leased with: it may read them.
    pub token_id: Option<String>,
}

/// What was given out.
#[derive(Debug)]
pub struct Reserved {
    /// For each wish, its jobs in the order of the line.
    pub jobs: Vec<Vec<FullJob>>,
    /// How long until another job gets in line by the clock, if that is known.
    pub next_due: Option<Millis>,
}

struct Picked {
    id: JobId,
    resources: Vec<String>,
}

impl Store {
    /// Gives jobs to wishes, first come first served, in one transaction.
    pub async fn reserve(&self, shape: &Shape, wishes: &[Wish]) -> Result<Reserved, Error> {
        let mut tx = self.work.begin_with("begin isolation level read committed").await?;
        let mut given: Vec<Vec<JobId>> = Vec::with_capacity(wishes.len());
        for wish in wishes {
            given.push(match &wish.reserve_id {
                Some(id) => renew(&mut tx, shape.app, id, wish.lease).await?,
                None => Vec::new(),
            });
        }
        let wanted: usize = wishes
            .iter()
            .zip(&given)
            .map(|(wish, given)| if given.is_empty() { wish.jobs } else { 0 })
            .sum();
        while promote_due(&mut tx, shape).await? == PROMOTE_BATCH as u64 {}
        let mut picked = pick_with_room(&mut tx, shape, wanted).await?.into_iter();
        let mut leases = Vec::new();
        for (place, wish) in wishes.iter().enumerate() {
            if given[place].is_empty() {
                for job in picked.by_ref().take(wish.jobs) {
                    given[place].push(job.id);
                    leases.push((job, wish));
                }
            }
        }
        lease(&mut tx, shape.app, &leases).await?;
        let next_due = if leases.len() < wanted {
            next_due(&mut tx, shape).await?
        } else {
            None
        };
        let all: Vec<JobId> = given.iter().flatten().copied().collect();
        let mut full = jobs::full_jobs(&mut tx, shape.app, &all).await?;
        tx.commit().await.map_err(Error::of_commit)?;
        let jobs = given
            .into_iter()
            .map(|ids| ids.iter().filter_map(|id| full.remove(id)).collect())
            .collect();
        Ok(Reserved { jobs, next_due })
    }
}

async fn promote_due(tx: &mut PgConnection, shape: &Shape) -> Result<u64, Error> {
    let promote = sqlx::query(statements::PROMOTE_DUE)
        .bind(shape.app.0)
        .bind(&shape.queues)
        .bind(PROMOTE_BATCH);
    Ok(promote.execute(tx).await?.rows_affected())
}

async fn next_due(tx: &mut PgConnection, shape: &Shape) -> Result<Option<Millis>, Error> {
    let row = sqlx::query(statements::NEXT_DUE)
        .bind(shape.app.0)
        .bind(&shape.queues)
        .fetch_one(tx)
        .await?;
    let wait: Option<f64> = row.try_get("wait_ms")?;
    Ok(wait.map(|millis| Millis(millis.max(0.0).ceil() as u64)))
}

/// The first `wanted` jobs in line whose resource keys have room. Those that have none leave the line, so that
/// nobody looks at them again before there is.
async fn pick_with_room(tx: &mut PgConnection, shape: &Shape, wanted: usize) -> Result<Vec<Picked>, Error> {
    let mut chosen: Vec<Picked> = Vec::new();
    let mut look_at = wanted;
    while chosen.len() < wanted {
        let missing = wanted - chosen.len();
        // A line of blocked jobs is passed in steps that double.
        look_at = look_at.clamp(missing, PICK_MAX.max(missing));
        let picked = pick(tx, shape, look_at + chosen.len()).await?;
        let known: BTreeSet<JobId> = chosen.iter().map(|job| job.id).collect();
        let fresh: Vec<Picked> = picked
            .into_iter()
            .filter(|job| !known.contains(&job.id))
            .take(look_at)
            .collect();
        if fresh.is_empty() {
            break;
        }
        let looked_at = fresh.len();
        let blocked = choose(tx, shape.app, fresh, wanted, &mut chosen).await?;
        if blocked == 0 || looked_at < look_at {
            break;
        }
        look_at *= 2;
    }
    Ok(chosen)
}

async fn pick(tx: &mut PgConnection, shape: &Shape, limit: usize) -> Result<Vec<Picked>, Error> {
    let rows = sqlx::query(statements::PICK)
        .bind(shape.app.0)
        .bind(&shape.queues)
        .bind(&shape.names)
        .bind(limit as i64)
        .fetch_all(tx)
        .await?;
    let picked = |row: &sqlx::postgres::PgRow| {
        let resources: Option<Vec<String>> = row.try_get("resource_keys")?;
        Ok(Picked {
            id: JobId(row.try_get("job_id")?),
            resources: resources.unwrap_or_default(),
        })
    };
    rows.iter().map(picked).collect()
}

/// Takes those of `fresh` that have room, up to `wanted`, and blocks those that have none. Gives how many were
/// blocked.
async fn choose(
    tx: &mut PgConnection,
    app: AppId,
    fresh: Vec<Picked>,
    wanted: usize,
    chosen: &mut Vec<Picked>,
) -> Result<usize, Error> {
    let resources: BTreeSet<&str> = fresh
        .iter()
        .flat_map(|job| job.resources.iter().map(String::as_str))
        .collect();
    let mut room = room(tx, app, &resources.into_iter().collect::<Vec<_>>()).await?;
    // Jobs that were chosen before hold nothing yet that could be counted.
    for resource in chosen.iter().flat_map(|job| &job.resources) {
        room.entry(resource.clone()).and_modify(|left| *left -= 1);
    }
    let (mut blocked, mut taken) = (Vec::new(), Vec::new());
    for job in fresh {
        if chosen.len() + taken.len() == wanted {
            break;
        }
        match job
            .resources
            .iter()
            .find(|resource| room.get(*resource).is_some_and(|left| *left <= 0))
        {
            Some(full) => blocked.push((job.id.0, full.clone())),
            None => {
                for resource in &job.resources {
                    room.entry(resource.clone()).and_modify(|left| *left -= 1);
                }
                taken.push(job);
            }
        }
    }
    chosen.extend(taken);
    if !blocked.is_empty() {
        sqlx::query(statements::BLOCK_JOBS)
            .bind(app.0)
            .bind(column(&blocked, |(id, _)| *id))
            .bind(column(&blocked, |(_, resource)| resource.as_str()))
            .execute(tx)
            .await?;
    }
    Ok(blocked.len())
}

/// How many more jobs may hold each resource key. Nobody else changes that until this transaction ends.
async fn room(tx: &mut PgConnection, app: AppId, resources: &[&str]) -> Result<HashMap<String, i64>, Error> {
    if resources.is_empty() {
        return Ok(HashMap::new());
    }
    sqlx::query(statements::ADD_RESOURCES)
        .bind(app.0)
        .bind(resources)
        .execute(&mut *tx)
        .await?;
    sqlx::query(statements::LOCK_RESOURCES)
        .bind(app.0)
        .bind(resources)
        .execute(&mut *tx)
        .await?;
    let rows = sqlx::query(statements::RESOURCE_ROOM)
        .bind(app.0)
        .bind(resources)
        .fetch_all(&mut *tx)
        .await?;
    let room = |row: &sqlx::postgres::PgRow| {
        let (held, capacity): (i64, i32) = (row.try_get("held")?, row.try_get("capacity")?);
        Ok((row.try_get("resource")?, i64::from(capacity) - held))
    };
    rows.iter().map(room).collect()
}

async fn lease(tx: &mut PgConnection, app: AppId, leases: &[(Picked, &Wish)]) -> Result<(), Error> {
    if leases.is_empty() {
        return Ok(());
    }
    let rows = sqlx::query(statements::LEASE_JOBS)
        .bind(app.0)
        .bind(column(leases, |(job, _)| job.id.0))
        .bind(column(leases, |_| Uuid::new_v4()))
        .bind(column(leases, |(_, wish)| wish.worker.as_deref()))
        .bind(column(leases, |(_, wish)| wish.lease.0 as i64))
        .bind(column(leases, |(_, wish)| wish.reserve_id.as_deref()))
        .bind(column(leases, |(_, wish)| wish.token_id.as_deref()))
        .fetch_all(&mut *tx)
        .await?;
    if rows.len() != leases.len() {
        return Err(Error::Overtaken);
    }
    let mut counts = Counts::default();
    for row in &rows {
        let was: &str = row.try_get("was")?;
        counts.moved(
            app,
            row.try_get("queue")?,
            Some(rows::state(was)?),
            Some(State::Reserved),
        );
    }
    counts.write(&mut *tx).await?;
    let holds: Vec<(&str, Uuid)> = leases
        .iter()
        .flat_map(|(job, _)| job.resources.iter().map(|resource| (resource.as_str(), job.id.0)))
        .collect();
    if !holds.is_empty() {
        sqlx::query(statements::HOLD_RESOURCES)
            .bind(app.0)
            .bind(column(&holds, |(resource, _)| *resource))
            .bind(column(&holds, |(_, id)| *id))
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

/// The jobs that a reserve with this id was given before, with new tokens.
async fn renew(tx: &mut PgConnection, app: AppId, reserve_id: &str, lease: Millis) -> Result<Vec<JobId>, Error> {
    let before = sqlx::query(statements::RESERVED_BEFORE)
        .bind(app.0)
        .bind(reserve_id)
        .fetch_all(&mut *tx)
        .await?;
    let ids = before
        .iter()
        .map(|row| row.try_get("job_id"))
        .collect::<Result<Vec<Uuid>, _>>()?;
    if !ids.is_empty() {
        let tokens: Vec<Uuid> = ids.iter().map(|_| Uuid::new_v4()).collect();
        let renew = sqlx::query(statements::RENEW_LEASES)
            .bind(app.0)
            .bind(&ids)
            .bind(tokens)
            .bind(lease.0 as i64);
        renew.execute(&mut *tx).await?;
    }
    Ok(ids.into_iter().map(JobId).collect())
}
