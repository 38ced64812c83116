//! One round: a stage is set, clients and faults go on for a while, everything is made whole, and what was heard is
//! compared with the model and with what is stored.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::drive::Group;
use crate::dump::{Stored, stored};
use crate::faults::{self, Struck};
use crate::invariants::{self, RULES, broken};
use crate::parts::{Bounds, parts};
use crate::plan::{self, Fault};
use crate::record::{History, Micros, Op, Outcome};
use crate::search::{NODES_MAX, explain};
use crate::show;
use crate::stage::{Postgres, Stage};

/// Groups of keys that are used at once.
const GROUPS: usize = 14;

/// Once everything is whole, each job is worked off within this.
const LIVELY: Duration = Duration::from_secs(40);

/// How often the invariants are looked at meanwhile.
const LOOK: Duration = Duration::from_secs(3);

/// What was done in a round, or in all of them.
#[derive(Clone, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) rounds: usize,
    pub(crate) groups: usize,
    pub(crate) operations: usize,
    pub(crate) unknown: usize,
    pub(crate) dispatches: usize,
    pub(crate) reused: usize,
    pub(crate) looks: usize,
    pub(crate) nodes: usize,
    pub(crate) successes: BTreeMap<&'static str, usize>,
    pub(crate) faults: BTreeMap<Fault, usize>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.rounds += other.rounds;
        self.groups += other.groups;
        self.operations += other.operations;
        self.unknown += other.unknown;
        self.dispatches += other.dispatches;
        self.reused += other.reused;
        self.looks += other.looks;
        self.nodes += other.nodes;
        for (kind, count) in other.successes {
            *self.successes.entry(kind).or_default() += count;
        }
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }

    fn count(&mut self, history: &History) {
        self.groups += 1;
        for record in &history.records {
            self.operations += 1;
            let kind = record.op.kind();
            match &record.outcome {
                Outcome::Answered {
                    status: 200..=299,
                    body,
                } => {
                    *self.successes.entry(kind).or_default() += 1;
                    if matches!(record.op, Op::Dispatch(_)) {
                        self.dispatches += 1;
                        self.reused += usize::from(body["disposition"] == "reused");
                    }
                }
                Outcome::Unknown(_) => self.unknown += 1,
                Outcome::Answered { .. } | Outcome::Nothing(_) => {}
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let struck: usize = self.faults.values().sum();
        write!(
            f,
            "{} rounds, {} groups, {} operations ({} with unknown outcome), {} of {} dispatches reused, {struck} faults, \
             {} looks at the invariants, {} nodes searched; succeeded {:?}; struck {:?}",
            self.rounds,
            self.groups,
            self.operations,
            self.unknown,
            self.reused,
            self.dispatches,
            self.looks,
            self.nodes,
            self.successes,
            self.faults
        )
    }
}

pub(crate) async fn run(
    postgres: &Arc<Postgres>,
    seed: u64,
    length: Duration,
    library: PathBuf,
    mutant: Option<String>,
) -> Result<Tally, String> {
    let count = 2 + (seed % 2) as usize;
    let hits = postgres.constraint_hits();
    let stage = Arc::new(Stage::set(postgres, seed, count, Some(library), mutant).await);
    let clock = Clock::set(&stage.pool).await.map_err(|error| error.to_string())?;
    let shifted = stage.clock_is_shifted(clock.now()).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut strikes = tokio::spawn(faults::strike(stage.clone(), clock, seed, over.clone()));
    let looks = tokio::spawn(watch(stage.clone(), over.clone()));

    let begin = Instant::now();
    let mut groups: Vec<Arc<Group>> = Vec::new();
    let mut busy = JoinSet::new();
    let mut unlocked = 0;
    let play = async {
        while begin.elapsed() < length && !looks.is_finished() {
            if begin.elapsed() > length.mul_f64(0.6) && !stage.is_intruded_upon() {
                unlocked = postgres.constraint_hits() - hits;
                stage.intrude();
            }
            if busy.len() < GROUPS {
                let number = groups.len() as u64;
                let group = Group::open(&stage, clock, number).await;
                groups.push(group.clone());
                busy.spawn(async move {
                    let plans = plan::group(seed, number);
                    let clients = plans
                        .iter()
                        .enumerate()
                        .map(|(client, plan)| group.follow(client, plan));
                    futures_join(clients).await;
                });
            } else if let Some(done) = busy.join_next().await {
                done.map_err(|error| error.to_string())?;
            }
        }
        Ok::<(), String>(())
    };
    tokio::select! {
        played = play => played?,
        // Who breaks things ends before the rest only by a panic: without a database, say, clients would crawl on.
        struck = &mut strikes => return Err(format!("the faults ended: {:?}", struck.map(|struck| struck.len()))),
    }
    over.store(true, Ordering::Relaxed);
    let struck = strikes.await.map_err(|error| error.to_string())?;
    let looked = looks.await.map_err(|error| error.to_string())?;
    while let Some(done) = busy.join_next().await {
        done.map_err(|error| error.to_string())?;
    }
    let looked = looked.map_err(|broken| format!("while it went on:\n{broken}{}", told(&struck, &clock)))?;
    drain(&stage, &groups).await?;
    for number in 0..stage.count() {
        stage.stop(number).await;
    }
    let end = clock.now();
    invariants::check(&stage.pool).await;
    let stored = stored(&stage.pool).await.map_err(|error| error.to_string())?;
    let slack = clock.slack(&stage.pool).await.map_err(|error| error.to_string())?;
    stage.pool.close().await;

    let mut tally = Tally {
        rounds: 1,
        looks: looked,
        faults: faults::count(&struck),
        ..Tally::default()
    };
    let (lost, hung_up) = stage.unheard();
    tally.faults.insert(Fault::ShiftClock, usize::from(shifted));
    tally.faults.insert(Fault::LoseAnswers, lost);
    tally.faults.insert(Fault::HangUps, hung_up);
    let histories: Vec<History> = groups.iter().map(|group| group.history()).collect();
    histories.iter().for_each(|history| tally.count(history));
    let (nodes, failures) = check(&histories, &stored, Bounds { slack, end });
    tally.nodes = nodes;
    if let Some((_, failure)) = failures.first() {
        let path = format!("{}/histories-{seed}.txt", env!("CARGO_TARGET_TMPDIR"));
        let failed = |history: &&History| failures.iter().any(|(group, _)| *group == history.group);
        let whole: String = histories.iter().filter(failed).map(show::whole).collect();
        std::fs::write(&path, whole + &stage.logs()).map_err(|error| format!("{path}: {error}"))?;
        let others: Vec<u64> = failures.iter().skip(1).map(|(group, _)| *group).collect();
        let told = told(&struck, &clock);
        return Err(format!(
            "{failure}  and groups {others:?}; all of them are in {path}\n{told}\n{tally}"
        ));
    }
    if unlocked > 0 {
        return Err(format!(
            "{unlocked} times a constraint had to do what the locks are for\n{}\n{tally}",
            told(&struck, &clock)
        ));
    }
    Ok(tally)
}

async fn futures_join(clients: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut clients: Vec<_> = clients.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        clients.retain_mut(|client| client.as_mut().poll(context).is_pending());
        if clients.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// Looks at the invariants now and then; gives how often, or what was broken.
async fn watch(stage: Arc<Stage>, over: Arc<AtomicBool>) -> Result<usize, String> {
    let mut looks = 0;
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK).await;
        // A database that is away is looked at later.
        if let Ok(broken) = broken(&stage.pool, RULES).await {
            if !broken.is_empty() {
                return Err(broken);
            }
            looks += 1;
        }
    }
    Ok(looks)
}

/// Everything is whole: whoever asks gets what is left, until there is nothing.
async fn drain(stage: &Arc<Stage>, groups: &[Arc<Group>]) -> Result<(), String> {
    let give_up = Instant::now() + LIVELY;
    loop {
        let sql = "select distinct name from jobs
                   where state in ('pending', 'reserved', 'running', 'retrying') and name ~ '^g[0-9]+$'";
        let names: Vec<String> = sqlx::query_scalar(sql)
            .fetch_all(&stage.pool)
            .await
            .map_err(|error| error.to_string())?;
        if names.is_empty() {
            return Ok(());
        }
        if Instant::now() > give_up {
            return Err(format!(
                "after {LIVELY:?} without faults there is still work in {}",
                names.join(", ")
            ));
        }
        for name in names {
            let number: Option<usize> = name.strip_prefix('g').and_then(|number| number.parse().ok());
            if let Some(group) = number.and_then(|number| groups.get(number)) {
                group.drain().await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// All histories, on two threads. How many nodes were searched, and what has no explanation.
fn check(histories: &[History], stored: &BTreeMap<u64, Stored>, bounds: Bounds) -> (usize, Vec<(u64, String)>) {
    let found = Mutex::new((0, Vec::new()));
    let next = std::sync::atomic::AtomicUsize::new(0);
    let nothing = Stored::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(history) = histories.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // One is enough to look at, and what has no explanation takes long.
                    if !found.lock().unwrap_or_else(PoisonError::into_inner).1.is_empty() {
                        break;
                    }
                    let stored = stored.get(&history.group).unwrap_or(&nothing);
                    let result = check_one(history, stored, bounds);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    match result {
                        Ok(nodes) => found.0 += nodes,
                        Err(failure) => found.1.push((history.group, failure)),
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn check_one(history: &History, stored: &Stored, bounds: Bounds) -> Result<usize, String> {
    let group = history.group;
    let parts = parts(history, stored, bounds).map_err(|plain| {
        format!(
            "group {group}:\n{}",
            show::plainly_wrong(history, plain.record, &plain.why)
        )
    })?;
    explain(&parts, NODES_MAX).map_err(|stuck| {
        let shown = show::unexplained(history, parts, stuck.gave_up);
        format!(
            "group {group}{}:\n{shown}",
            if stuck.gave_up { ", not searched to the end" } else { "" }
        )
    })
}

fn told(struck: &[Struck], clock: &Clock) -> String {
    let now = clock.now();
    let line = |one: &Struck| {
        let Struck {
            fault,
            server,
            from,
            to,
        } = one;
        format!(
            "  {fault:?} at server {server}, {:.1} to {:.1} s before the end\n",
            ago(now, *from),
            ago(now, *to)
        )
    };
    struck.iter().map(line).collect()
}

fn ago(now: Micros, then: Micros) -> f64 {
    (now - then) as f64 / 1_000_000.0
}
