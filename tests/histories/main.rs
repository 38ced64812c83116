//! Random clients and random faults on real servers, and a checker that asks whether what the clients were told can be
//! true.
//!
//! `SOLEJOB_HISTORIES_SECONDS` is how long it goes on, `SOLEJOB_HISTORIES_SEED` what is done. A run goes in rounds, each
//! with a seed and a database of its own; the seed of a round that failed repeats its plan.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

mod answers;
mod clock;
mod drive;
mod dump;
mod faults;
mod full;
mod intruder;
mod model;
mod parts;
mod plan;
mod proxy;
mod record;
mod round;
mod search;
#[cfg(test)]
mod seeded;
mod show;
mod stage;
mod steps;
mod words;

#[path = "../it/support/invariants.rs"]
mod invariants;
#[path = "../it/support/server.rs"]
#[expect(
    dead_code,
    reason = "the stage waits for the end of a server in a task that may move between threads"
)]
mod server;
#[path = "../it/support/wait.rs"]
mod wait;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plan::Fault;
use round::Tally;
use stage::Postgres;

/// How long a run goes on where nobody says otherwise: each fault comes once, at least.
const SECONDS: u64 = 75;

/// The longest round, likewise.
const ROUND_SECONDS: u64 = 75;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var_os(name)?.into_string().expect("a number");
    let number = text
        .strip_prefix("0x")
        .map_or(text.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(number.unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// For starts, ends and checks, on a machine that has other things to do.
const GRACE: Duration = Duration::from_secs(300);

/// A run that hangs is a failed one: nobody waits for it longer than this.
fn give_up_after(limit: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!("the run still goes on after {limit:?}: something in it, or a server, hangs");
        std::process::exit(101);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_are_told_is_true_whatever_breaks() {
    let seconds = number("SOLEJOB_HISTORIES_SECONDS").unwrap_or(SECONDS);
    let first = number("SOLEJOB_HISTORIES_SEED").unwrap_or_else(rand::random);
    let mutant = std::env::var_os("SOLEJOB_MUTANT").and_then(|name| name.into_string().ok());
    let round = Duration::from_secs(number("SOLEJOB_HISTORIES_ROUND_SECONDS").unwrap_or(ROUND_SECONDS));
    println!("SOLEJOB_HISTORIES_SEED={first} SOLEJOB_HISTORIES_SECONDS={seconds}");
    give_up_after(Duration::from_secs(2 * seconds) + GRACE);
    let library = clock::shift_library().expect("a C compiler is there: rustc links with it");
    let postgres = Arc::new(Postgres::start().await);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut tally = Tally::default();
    for seed in first.. {
        let left = end.saturating_duration_since(Instant::now());
        // A round that is too short for its faults is none.
        if seed != first && left < Duration::from_secs(20) {
            break;
        }
        let played = round::run(&postgres, seed, left.min(round), library.clone(), mutant.clone()).await;
        match played {
            Ok(round) => {
                println!("seed {seed}: {round}");
                tally.add(round);
            }
            Err(failure) => panic!("SOLEJOB_HISTORIES_SEED={seed} fails:\n{failure}"),
        }
    }
    println!("{tally}");
    let missing = void(&tally.successes, &tally.faults, tally.dispatches, tally.reused);
    assert!(missing.is_empty(), "the run shows nothing: {}", missing.join("; "));
    Arc::into_inner(postgres).expect("every stage is gone").stop().await;
}

/// Why a run proves nothing, if it does not.
fn void(
    successes: &BTreeMap<&'static str, usize>,
    faults: &BTreeMap<Fault, usize>,
    dispatches: usize,
    reused: usize,
) -> Vec<String> {
    let none = |count: Option<&usize>| count.is_none_or(|count| *count == 0);
    let operations = record::Op::KINDS.iter().filter(|kind| none(successes.get(*kind)));
    let mut missing: Vec<String> = operations.map(|kind| format!("no {kind} succeeded")).collect();
    let all = Fault::DECK.into_iter().chain(Fault::ALL_THE_TIME);
    missing.extend(
        all.filter(|fault| none(faults.get(fault)))
            .map(|fault| format!("{fault:?} never struck")),
    );
    if reused * 100 < dispatches || dispatches == 0 {
        missing.push(format!("{reused} of {dispatches} dispatches were reused"));
    }
    missing
}

#[test]
fn a_run_without_an_operation_or_a_fault_is_void() {
    let successes: BTreeMap<_, _> = record::Op::KINDS.into_iter().map(|kind| (kind, 1)).collect();
    let faults: BTreeMap<_, _> = Fault::DECK
        .into_iter()
        .chain(Fault::ALL_THE_TIME)
        .map(|fault| (fault, 1))
        .collect();
    assert_eq!(void(&successes, &faults, 100, 1), Vec::<String>::new());
    assert_eq!(void(&successes, &faults, 101, 1), ["1 of 101 dispatches were reused"]);
    let (mut fewer, mut calmer) = (successes.clone(), faults.clone());
    fewer.insert("retry", 0);
    calmer.remove(&Fault::KillPostgres);
    assert_eq!(
        void(&fewer, &calmer, 100, 1),
        ["no retry succeeded", "KillPostgres never struck"]
    );
}
