//! Giving jobs out whose resource keys must have room, and once more those of a reserve that is repeated.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use sha2::{Digest, Sha256};
use sqlx::Row;
use uuid::Uuid;

use crate::job::{AppId, Instant, JobId, State};
use crate::store::connection::Connection;
use crate::store::lives::{Counts, column};
use crate::store::reserve::{After, Reserved, Shape, Wish};
use crate::store::{Error, Store, jobs, rows, statements};

/// The most jobs that are looked at in one statement for those that are not blocked.
const PICK_MAX: usize = 1_000;

struct Picked {
    id: JobId,
    resources: Vec<String>,
}

impl Store {
    /// Gives jobs to wishes, first come first served, in one transaction.
    pub(super) async fn reserve_with_room(&self, shape: &Shape, wishes: &[Wish]) -> Result<Reserved, Error> {
        let mut tx = self.work.begin_with("begin isolation level read committed").await?;
        let mut given = renew(&mut tx, shape.app, wishes).await?;
        let wanted: usize = wishes
            .iter()
            .zip(&given)
            .map(|(wish, given)| if given.is_empty() { wish.jobs } else { 0 })
            .sum();
        let (picked, woken, resources) = self.pick_with_room(&mut tx, shape, wanted).await?;
        let mut picked = picked.into_iter();
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
        let all: Vec<JobId> = given.iter().flatten().copied().collect();
        let mut full = jobs::full_jobs(&mut tx, shape.app, &all).await?;
        tx.commit().await.map_err(Error::of_commit)?;
        let jobs = given
            .into_iter()
            .map(|ids| ids.iter().filter_map(|id| full.remove(id)).collect())
            .collect();
        let after = After::More;
        Ok(Reserved {
            jobs,
            after,
            woken,
            resources,
        })
    }
}

impl Store {
    /// The first `wanted` jobs in line whose resource keys have room. Those that have none leave the line, so that
    /// nobody looks at them again before there is. Also the queues in which others got in line, and whether any job
    /// had resource keys.
    async fn pick_with_room(
        &self,
        tx: &mut Connection,
        shape: &Shape,
        wanted: usize,
    ) -> Result<(Vec<Picked>, BTreeSet<String>, bool), Error> {
        let mut woken = BTreeSet::new();
        let mut chosen: Vec<Picked> = Vec::new();
        let mut passed: BTreeSet<JobId> = BTreeSet::new();
        let mut holds_some = false;
        let mut look_at = wanted;
        while chosen.len() < wanted {
            let missing = wanted - chosen.len();
            // A line of blocked jobs is passed in steps that double.
            look_at = look_at.clamp(missing, PICK_MAX.max(missing));
            let picked = pick(tx, shape, look_at + chosen.len() + passed.len()).await?;
            let known: BTreeSet<JobId> = chosen.iter().map(|job| job.id).collect();
            let fresh: Vec<Picked> = picked
                .into_iter()
                .filter(|job| !known.contains(&job.id) && !passed.contains(&job.id))
                .take(look_at)
                .collect();
            if fresh.is_empty() {
                break;
            }
            let looked_at = fresh.len();
            let resources: BTreeSet<&str> = fresh
                .iter()
                .flat_map(|job| job.resources.iter().map(String::as_str))
                .collect();
            let resources: Vec<String> = resources.into_iter().map(Into::into).collect();
            let room = self.room(tx, shape.app, &resources, holds_some).await?;
            holds_some |= !resources.is_empty();
            let (left, free) = choose(tx, shape.app, fresh, wanted, room, &mut chosen, &mut passed).await?;
            // A job that was let in for one key and is blocked on another leaves its room to the next. A job moves
            // only from a key that has room to one that has none, so this comes to an end.
            let unblocked = unblock(tx, shape.app, &free).await?;
            if left == 0 || (looked_at < look_at && unblocked.is_empty()) {
                break;
            }
            woken.extend(unblocked);
            look_at *= 2;
        }
        Ok((chosen, woken, holds_some))
    }

    /// How many more jobs may hold each resource key; nobody else changes that until this transaction ends. A key
    /// that somebody else has locked is left out if this transaction holds some already: who waits while others wait
    /// for them could wait in a circle.
    async fn room(
        &self,
        tx: &mut Connection,
        app: AppId,
        resources: &[String],
        holds_some: bool,
    ) -> Result<HashMap<String, i64>, Error> {
        if resources.is_empty() {
            return Ok(HashMap::new());
        }
        let lock = if holds_some {
            statements::LOCK_FREE_RESOURCES
        } else {
            statements::LOCK_RESOURCES
        };
        let mut locked = lock_resources(tx, lock, app, resources).await?;
        let missing: Vec<String> = resources
            .iter()
            .filter(|resource| !locked.contains(*resource))
            .cloned()
            .collect();
        if !missing.is_empty() {
            // In a transaction of its own, which is over at once: nobody waits for this one's rows.
            sqlx::query(statements::ADD_RESOURCES)
                .bind(app.0)
                .bind(&missing)
                .execute(&self.general)
                .await?;
            locked.extend(lock_resources(tx, statements::LOCK_FREE_RESOURCES, app, &missing).await?);
        }
        let rows = sqlx::query(statements::RESOURCE_ROOM)
            .bind(app.0)
            .bind(locked.into_iter().collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await?;
        let room = |row: &sqlx::postgres::PgRow| {
            let (held, capacity): (i64, i32) = (row.try_get("held")?, row.try_get("capacity")?);
            Ok((row.try_get("resource")?, i64::from(capacity) - held))
        };
        rows.iter().map(room).collect()
    }
}

async fn lock_resources(
    tx: &mut Connection,
    statement: &'static str,
    app: AppId,
    resources: &[String],
) -> Result<BTreeSet<String>, Error> {
    let rows = sqlx::query(statement).bind(app.0).bind(resources).fetch_all(tx).await?;
    rows.iter().map(|row| Ok(row.try_get("resource")?)).collect()
}

async fn pick(tx: &mut Connection, shape: &Shape, limit: usize) -> Result<Vec<Picked>, Error> {
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

/// Takes those of `fresh` that have room, up to `wanted`, blocks those that have none, and passes over those whose
/// resource keys somebody else has locked. Gives how many were not taken, and of which keys of those that were blocked
/// there is some left.
async fn choose(
    tx: &mut Connection,
    app: AppId,
    fresh: Vec<Picked>,
    wanted: usize,
    mut room: HashMap<String, i64>,
    chosen: &mut Vec<Picked>,
    passed: &mut BTreeSet<JobId>,
) -> Result<(usize, BTreeSet<String>), Error> {
    // Jobs that were chosen before hold nothing yet that could be counted.
    for resource in chosen.iter().flat_map(|job| &job.resources) {
        room.entry(resource.clone()).and_modify(|left| *left -= 1);
    }
    let (mut blocked, mut others, mut left) = (Vec::new(), BTreeSet::new(), 0);
    for job in fresh {
        if chosen.len() == wanted {
            break;
        }
        let full = |resource: &&String| room.get(*resource).is_some_and(|left| *left <= 0);
        if let Some(full) = job.resources.iter().find(full) {
            blocked.push((job.id.0, full.clone()));
            others.extend(job.resources.iter().filter(|resource| *resource != full).cloned());
            left += 1;
        } else if job.resources.iter().any(|resource| !room.contains_key(resource)) {
            passed.insert(job.id);
            left += 1;
        } else {
            for resource in &job.resources {
                room.entry(resource.clone()).and_modify(|left| *left -= 1);
            }
            chosen.push(job);
        }
    }
    if !blocked.is_empty() {
        sqlx::query(statements::BLOCK_JOBS)
            .bind(app.0)
            .bind(column(&blocked, |(id, _)| *id))
            .bind(column(&blocked, |(_, resource)| resource.as_str()))
            .execute(tx)
            .await?;
    }
    others.retain(|resource| room.get(resource).is_some_and(|left| *left > 0));
    Ok((left, others))
}

/// The best job that waits for each of these resource keys gets in line. Gives the queues.
async fn unblock(tx: &mut Connection, app: AppId, resources: &BTreeSet<String>) -> Result<Vec<String>, Error> {
    if resources.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(statements::UNBLOCK)
        .bind(app.0)
        .bind(resources.iter().map(String::as_str).collect::<Vec<_>>())
        .fetch_all(tx)
        .await?;
    rows.iter().map(|row| Ok(row.try_get("queue")?)).collect()
}

async fn lease(tx: &mut Connection, app: AppId, leases: &[(Picked, &Wish)]) -> Result<(), Error> {
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

/// For each wish, the jobs that a reserve with its id was given before, with new tokens.
async fn renew(tx: &mut Connection, app: AppId, wishes: &[Wish]) -> Result<Vec<Vec<JobId>>, Error> {
    let mut given = vec![Vec::new(); wishes.len()];
    let ids: Vec<&str> = wishes.iter().filter_map(|wish| wish.reserve_id.as_deref()).collect();
    if ids.is_empty() {
        return Ok(given);
    }
    // Two requests with one id at once, anywhere: the second one sees what the first one got.
    let mut locks: Vec<i64> = ids.iter().map(|id| lock_id(app, id)).collect();
    locks.sort_unstable();
    locks.dedup();
    sqlx::query(statements::LOCK_KEYS)
        .bind(locks)
        .bind([0_i64; 0])
        .execute(&mut *tx)
        .await?;
    let rows = sqlx::query(statements::RESERVED_BEFORE)
        .bind(app.0)
        .bind(&ids)
        .fetch_all(&mut *tx)
        .await?;
    if rows.is_empty() {
        return Ok(given);
    }
    let mut before: Vec<(Reverse<i16>, Instant, Uuid, String)> = rows
        .iter()
        .map(|row| {
            let priority = Reverse(row.try_get("priority")?);
            Ok((
                priority,
                row.try_get("run_at")?,
                row.try_get("job_id")?,
                row.try_get("reserve_id")?,
            ))
        })
        .collect::<Result<_, Error>>()?;
    before.sort_unstable();
    let mut renewed = Vec::with_capacity(before.len());
    for (.., job, reserve_id) in before {
        let asked = wishes
            .iter()
            .position(|wish| wish.reserve_id.as_deref() == Some(&*reserve_id));
        if let Some(place) = asked {
            given[place].push(JobId(job));
            renewed.push((job, &wishes[place]));
        }
    }
    sqlx::query(statements::RENEW_LEASES)
        .bind(app.0)
        .bind(column(&renewed, |(job, _)| *job))
        .bind(column(&renewed, |_| Uuid::new_v4()))
        .bind(column(&renewed, |(_, wish)| wish.lease.0 as i64))
        .bind(column(&renewed, |(_, wish)| wish.token_id.as_deref()))
        .execute(&mut *tx)
        .await?;
    Ok(given)
}

/// The advisory lock of a reserve id: 64 bits of a hash. Should two share them, the cost is a wait.
fn lock_id(app: AppId, reserve_id: &str) -> i64 {
    let hash = Sha256::new()
        .chain_update("solejob reserve")
        .chain_update(app.0.to_be_bytes())
        .chain_update(reserve_id)
        .finalize();
    let mut head = [0; 8];
    head.copy_from_slice(&hash[..8]);
    i64::from_be_bytes(head)
}
