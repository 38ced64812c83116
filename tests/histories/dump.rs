//! What is stored once everything is over, by the groups that it stems from.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{PgPool, Row};
use uuid::Uuid;

use crate::answers::active_of;
use crate::plan::{Ask, SLOTS, marker_of_retention};
use crate::record::Micros;
use crate::words::{Phase, View};

/// Rows that are deleted leave a trace: the checker and the invariants ask which there once were.
pub(crate) const HARNESS: &str = "
    create schema harness;
    create table harness.deleted_jobs (
        app_id bigint not null, job_id uuid not null, name text not null, retention_ms bigint not null,
        dispatched_at timestamptz not null, worker text, primary key (app_id, job_id));
    create table harness.deleted_attempts (job_id uuid not null, worker text);
    create function harness.remember_job() returns trigger language plpgsql security definer as $$
    begin
        insert into harness.deleted_jobs
            values (old.app_id, old.job_id, old.name, old.retention_ms, old.dispatched_at, old.worker)
            on conflict do nothing;
        return null;
    end $$;
    create function harness.remember_attempt() returns trigger language plpgsql security definer as $$
    begin
        insert into harness.deleted_attempts values (old.job_id, old.worker);
        return null;
    end $$;
    create trigger remember after delete on public.jobs for each row execute function harness.remember_job();
    create trigger remember after delete on public.job_attempts
        for each row execute function harness.remember_attempt();";

#[derive(Clone, Debug)]
pub(crate) struct StoredJob {
    pub(crate) id: Uuid,
    /// Which dispatch made it.
    pub(crate) marker: i64,
    pub(crate) dispatched: Micros,
    /// `None` if it is deleted.
    pub(crate) view: Option<View>,
}

#[derive(Clone, Debug)]
pub(crate) struct StoredWindow {
    pub(crate) job: Uuid,
    pub(crate) until: Micros,
}

/// What is stored of one group.
#[derive(Clone, Default, Debug)]
pub(crate) struct Stored {
    pub(crate) jobs: Vec<StoredJob>,
    pub(crate) windows: [Option<StoredWindow>; SLOTS],
    /// By the name of the worker: the jobs that it was given.
    pub(crate) taken: BTreeMap<String, BTreeSet<Uuid>>,
}

impl Stored {
    /// The jobs that a dispatch made.
    pub(crate) fn of(&self, ask: &Ask) -> impl Iterator<Item = &StoredJob> {
        let marker = i64::from(ask.marker);
        self.jobs.iter().filter(move |job| job.marker == marker)
    }

    pub(crate) fn taken(&self, label: &str) -> Vec<Uuid> {
        self.taken.get(label).into_iter().flatten().copied().collect()
    }
}

pub(crate) fn name_of(group: u64) -> String {
    format!("g{group}")
}

fn group_of(name: &str) -> Option<u64> {
    name.strip_prefix('g')?.parse().ok()
}

/// The names of window keys by their slots: two global ones, one within a parent, one within an attempt.
pub(crate) const WINDOW_KEYS: [&str; SLOTS] = ["w0", "w1", "r0", "t0"];

pub(crate) async fn stored(pool: &PgPool) -> Result<BTreeMap<u64, Stored>, sqlx::Error> {
    let mut all: BTreeMap<u64, Stored> = BTreeMap::new();
    let jobs = sqlx::query(
        "select name, job_id, retention_ms, (extract(epoch from dispatched_at) * 1000000)::bigint as dispatched,
             state::text as state, attempt, cancel_requested, active_key, false as gone
         from jobs where name ~ '^g[0-9]+$'
         union all
         select name, job_id, retention_ms, (extract(epoch from dispatched_at) * 1000000)::bigint, '', 0, false, null, true
         from harness.deleted_jobs where name ~ '^g[0-9]+$'",
    );
    for row in jobs.fetch_all(pool).await? {
        let (state, gone): (&str, bool) = (row.try_get("state")?, row.try_get("gone")?);
        let active: Option<&str> = row.try_get("active_key")?;
        let view = match Phase::of(state) {
            Some(phase) if !gone => Some(View {
                phase,
                attempt: row.try_get("attempt")?,
                cancel: row.try_get("cancel_requested")?,
                active: active.and_then(active_of),
                payload: None,
            }),
            _ => None,
        };
        let job = StoredJob {
            id: row.try_get("job_id")?,
            marker: marker_of_retention(row.try_get("retention_ms")?),
            dispatched: row.try_get("dispatched")?,
            view,
        };
        if let Some(group) = group_of(row.try_get("name")?) {
            all.entry(group).or_default().jobs.push(job);
        }
    }
    let windows = sqlx::query(
        "select name, key, job_id, (extract(epoch from expires_at) * 1000000)::bigint as until
         from job_keys where dimension = 'window' and name ~ '^g[0-9]+$'",
    );
    for row in windows.fetch_all(pool).await? {
        let key: &str = row.try_get("key")?;
        let window = StoredWindow {
            job: row.try_get("job_id")?,
            until: row.try_get("until")?,
        };
        let slot = WINDOW_KEYS.iter().position(|known| *known == key);
        if let (Some(group), Some(slot)) = (group_of(row.try_get("name")?), slot) {
            all.entry(group).or_default().windows[slot] = Some(window);
        }
    }
    let taken = sqlx::query(
        "select worker, job_id from job_attempts where worker is not null
         union select worker, job_id from jobs where worker is not null
         union select worker, job_id from harness.deleted_attempts where worker is not null
         union select worker, job_id from harness.deleted_jobs where worker is not null",
    );
    for row in taken.fetch_all(pool).await? {
        let worker: &str = row.try_get("worker")?;
        let group = worker
            .strip_prefix('w')
            .and_then(|rest| rest.split('.').next()?.parse().ok());
        if let Some(group) = group {
            let group: &mut Stored = all.entry(group).or_default();
            let jobs = group.taken.entry(worker.to_owned()).or_default();
            jobs.insert(row.try_get("job_id")?);
        }
    }
    Ok(all)
}
