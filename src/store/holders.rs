//! Who holds keys: read under their locks for a dispatch, without for a look.

use std::collections::HashMap;

use sqlx::{FromRow, PgExecutor, Row};
use uuid::Uuid;

use crate::job::{AppId, Instant};
use crate::store::rows::HolderRow;
use crate::store::{Error, Locked, Store, statements};
use crate::uniqueness::decide::{AskedKey, HeldJob, WindowHolder};
use crate::uniqueness::fingerprint::Fingerprint;
use crate::uniqueness::holders::Holders;
use crate::uniqueness::key::{Dimension, Key, KeyDigest};

/// What is stored of a key.
#[derive(Clone, PartialEq, Debug)]
pub struct HeldKey {
    pub job: HeldJob,
    pub since: Instant,
    /// Of a window key: its end, and the request that set it.
    pub window: Option<(Instant, Fingerprint)>,
}

/// Keys as one statement saw them, with the clock.
#[derive(Debug)]
pub struct Look {
    pub holders: Holders,
    pub now: Instant,
    /// Of the job types of the applications that were asked for, in their order.
    pub types_versions: Vec<i64>,
}

/// The keys that are looked up together, each once.
#[derive(Debug, Default)]
pub struct Asked<'a>(HashMap<(AppId, KeyDigest), &'a Key>);

impl<'a> Asked<'a> {
    pub fn insert(&mut self, app: AppId, asked: &'a AskedKey) {
        self.0.insert((app, asked.digest), &asked.key);
    }

    pub fn places(&self) -> impl Iterator<Item = (AppId, KeyDigest)> {
        self.0.keys().copied()
    }
}

impl Locked {
    /// Who holds the keys, as of after the locks.
    pub async fn look_up(&mut self, asked: &Asked<'_>) -> Result<Holders, Error> {
        if asked.0.is_empty() {
            return Ok(Holders::default());
        }
        Ok(look(&mut *self.tx, asked, &[]).await?.holders)
    }
}

impl Store {
    /// Who holds the keys at this moment, without locks: true when it was read, and no promise.
    pub async fn look(&self, asked: &Asked<'_>) -> Result<Look, Error> {
        look(&self.general, asked, &[]).await
    }

    /// The same for a group of dispatches, with the versions of the job types of `apps`: what is decided by it and writes
    /// nothing was true when it was read.
    pub async fn look_for_group(&self, asked: &Asked<'_>, apps: &[AppId]) -> Result<Look, Error> {
        look(&self.dispatch, asked, apps).await
    }

    /// The database's clock.
    pub async fn now(&self) -> Result<Instant, Error> {
        Ok(sqlx::query(statements::CLOCK)
            .fetch_one(&self.general)
            .await?
            .try_get("now")?)
    }
}

async fn look(executor: impl PgExecutor<'_>, asked: &Asked<'_>, apps: &[AppId]) -> Result<Look, Error> {
    let (keys, digests): (Vec<i64>, Vec<Uuid>) = asked
        .places()
        .map(|(app, digest)| (app.0, Uuid::from_bytes(digest.0)))
        .unzip();
    let rows = sqlx::query(statements::LOOK_UP)
        .bind(keys)
        .bind(digests)
        .bind(apps.iter().map(|app| app.0).collect::<Vec<i64>>())
        .fetch_all(executor)
        .await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let mut look = Look {
        holders: Holders::default(),
        now: first.try_get("seen_at")?,
        types_versions: first.try_get("types_versions")?,
    };
    if first.try_get::<Option<i64>, _>("app_id")?.is_some() {
        for row in &rows {
            insert(&mut look.holders, HolderRow::from_row(row)?, asked)?;
        }
    }
    Ok(look)
}

/// Compares the key in full before it believes the digest.
fn insert(holders: &mut Holders, row: HolderRow, asked: &Asked<'_>) -> Result<(), Error> {
    let (app, digest) = (AppId(row.app_id), row.digest());
    let same = asked.0.get(&(app, digest)).is_some_and(|key| {
        (key.dimension.as_str(), &*key.name, &*key.scope, key.text.as_str())
            == (&*row.dimension, &*row.name, &*row.scope, &*row.key)
    });
    if !same {
        let problem = format!("two keys share the digest {digest:?}");
        return Err(Error::Inconsistent {
            table: "job_keys",
            column: "digest",
            problem,
        });
    }
    let dimension = if row.dimension == Dimension::Active.as_str() {
        Dimension::Active
    } else {
        Dimension::Window
    };
    let HeldKey { job, since, window } = row.held()?;
    match (dimension, window) {
        (Dimension::Active, _) => holders.insert_active(app, digest, job),
        (Dimension::Window, Some((expires_at, fingerprint))) => {
            holders.insert_window(
                app,
                digest,
                WindowHolder {
                    job,
                    since,
                    expires_at,
                    fingerprint,
                },
            );
        }
        (Dimension::Window, None) => {
            let problem = "a window key without an end".into();
            return Err(Error::Inconsistent {
                table: "job_keys",
                column: "expires_at",
                problem,
            });
        }
    }
    Ok(())
}
