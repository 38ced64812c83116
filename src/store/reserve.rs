//! Giving jobs out: the first in line of some queues get leases.
//!
//! Mostly that is one statement, which is its own transaction. Where resource keys must have room, or a reserve may be a
//! repeated one, it is a transaction of several: see [`room`](super::room).

use std::collections::BTreeSet;

use sqlx::{FromRow as _, PgExecutor, Row};
use uuid::Uuid;

use crate::duration::Millis;
use crate::job::AppId;
use crate::store::jobs::FullJob;
use crate::store::lives::column;
use crate::store::rows::ReservedRow;
use crate::store::{Error, Store, statements};

/// How many jobs that become due at once get in line in one statement.
const PROMOTE_BATCH: i64 = 1_000;

/// How many such statements one look makes; the next one goes on.
const PROMOTE_ROUNDS: usize = 10;

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

/// What is known of a line from looks before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// A moment ago those whose time had come got in line.
    pub promoted: bool,
    /// The last look met jobs with resource keys.
    pub resources: bool,
}

/// What was given out.
#[derive(Debug)]
pub struct Reserved {
    /// For each wish, its jobs in the order of the line.
    pub jobs: Vec<Vec<FullJob>>,
    pub after: After,
    /// Queues in which other jobs got in line.
    pub woken: BTreeSet<String>,
    /// Some of the jobs that were looked at have resource keys.
    pub resources: bool,
}

/// What is left after jobs were given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// Every wish was granted: there may be more jobs.
    More,
    /// There are more, but somebody else had them locked.
    PassedOver,
    /// There are none, for so long if that is known.
    Empty { next_due: Option<Millis> },
}

impl Store {
    /// Gives jobs to wishes, first come first served.
    pub async fn reserve(&self, shape: &Shape, wishes: &[Wish], known: Known) -> Result<Reserved, Error> {
        if !known.promoted {
            promote_due(&self.work, shape).await?;
        }
        let repeatable = wishes.iter().any(|wish| wish.reserve_id.is_some());
        let plain = if known.resources || repeatable {
            None
        } else {
            self.reserve_plain(shape, wishes).await?
        };
        let mut reserved = match plain {
            Some(jobs) => Reserved {
                jobs,
                after: After::More,
                woken: BTreeSet::new(),
                resources: false,
            },
            None => self.reserve_with_room(shape, wishes).await?,
        };
        if reserved
            .jobs
            .iter()
            .zip(wishes)
            .any(|(jobs, wish)| jobs.len() < wish.jobs)
        {
            reserved.after = match self.after(shape, known).await {
                Ok(after) => after,
                Err(error) if reserved.jobs.iter().all(Vec::is_empty) => return Err(error),
                // What was given out is stored, and goes to its workers whatever becomes of this.
                Err(_) => After::PassedOver,
            };
        }
        Ok(reserved)
    }

    /// What is left where not every wish could be granted.
    async fn after(&self, shape: &Shape, known: Known) -> Result<After, Error> {
        // What has become due since they were promoted is worth another look.
        if known.promoted && promote_due(&self.work, shape).await? > 0 {
            return Ok(After::More);
        }
        left(&self.work, shape).await
    }

    /// Gives jobs out that have no resource keys. `None` if it met one that has, and gave none out.
    async fn reserve_plain(&self, shape: &Shape, wishes: &[Wish]) -> Result<Option<Vec<Vec<FullJob>>>, Error> {
        let places: Vec<usize> = wishes
            .iter()
            .enumerate()
            .flat_map(|(number, wish)| std::iter::repeat_n(number, wish.jobs))
            .collect();
        let mut connection = self.work.acquire().await?;
        let rows = sqlx::query(statements::RESERVE)
            .bind(shape.app.0)
            .bind(&shape.queues)
            .bind(&shape.names)
            .bind(places.len() as i64)
            .bind(column(&places, |_| Uuid::new_v4()))
            .bind(column(&places, |number| *number as i32 + 1))
            .bind(column(wishes, |wish| wish.lease.0 as i64))
            .bind(column(wishes, |wish| wish.worker.as_deref()))
            .bind(column(wishes, |wish| wish.token_id.as_deref()))
            .fetch_all(&mut *connection)
            .await
            // It commits by itself: if its answer is lost, jobs may have been given out.
            .map_err(Error::of_commit)?;
        let mut jobs = vec![Vec::new(); wishes.len()];
        for row in &rows {
            if !row.try_get::<bool, _>("plain")? {
                return Ok(None);
            }
            if row.try_get::<Option<i32>, _>("place")?.is_none() {
                // The line was empty.
                continue;
            }
            let reserved = ReservedRow::from_row(row)?;
            let place = usize::try_from(reserved.place)
                .ok()
                .and_then(|place| place.checked_sub(1));
            let wish = place.and_then(|place| places.get(place)).ok_or(Error::Inconsistent {
                table: "jobs",
                column: "place",
                problem: "a job was given out that nobody asked for".into(),
            })?;
            jobs[*wish].push(reserved.full()?);
        }
        Ok(Some(jobs))
    }
}

/// Jobs of these queues whose time has come get in line; gives how many.
async fn promote_due(executor: impl PgExecutor<'_> + Copy, shape: &Shape) -> Result<u64, Error> {
    let mut promoted = 0;
    for _ in 0..PROMOTE_ROUNDS {
        let promote = sqlx::query(statements::PROMOTE_DUE)
            .bind(shape.app.0)
            .bind(&shape.queues)
            .bind(PROMOTE_BATCH);
        let now = promote.execute(executor).await?.rows_affected();
        promoted += now;
        if now < PROMOTE_BATCH as u64 {
            break;
        }
    }
    Ok(promoted)
}

async fn left(executor: impl PgExecutor<'_>, shape: &Shape) -> Result<After, Error> {
    let row = sqlx::query(statements::LEFT)
        .bind(shape.app.0)
        .bind(&shape.queues)
        .bind(&shape.names)
        .fetch_one(executor)
        .await?;
    if row.try_get("passed_over")? {
        return Ok(After::PassedOver);
    }
    let wait: Option<f64> = row.try_get("wait_ms")?;
    let next_due = wait.map(|millis| Millis(millis.max(0.0).ceil() as u64));
    Ok(After::Empty { next_due })
}
