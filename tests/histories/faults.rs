//! What is done to the system while it works.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use crate::clock::Clock;
use crate::plan::{Dice, Fault};
use crate::proxy::Cut;
use crate::record::Micros;
use crate::stage::Stage;

/// What was done, when, and to which server.
#[derive(Clone, Debug)]
pub(crate) struct Struck {
    pub(crate) fault: Fault,
    pub(crate) server: usize,
    pub(crate) from: Micros,
    pub(crate) to: Micros,
}

/// Strikes until told to stop, in the order that the seed says, and leaves everything whole.
pub(crate) async fn strike(stage: Arc<Stage>, clock: Clock, seed: u64, over: Arc<AtomicBool>) -> Vec<Struck> {
    let mut dice = Dice::new(seed, 0);
    let mut struck = Vec::new();
    loop {
        let mut deck = Fault::DECK;
        dice.shuffle(&mut deck);
        for fault in deck {
            tokio::time::sleep(Duration::from_millis(dice.between(100, 700))).await;
            if over.load(Ordering::Relaxed) {
                return struck;
            }
            let server = dice.below(stage.count() as u64) as usize;
            let from = clock.now();
            if inflict(&stage, fault, server, &mut dice).await {
                let to = clock.now();
                struck.push(Struck {
                    fault,
                    server,
                    from,
                    to,
                });
            }
        }
    }
}

pub(crate) fn count(struck: &[Struck]) -> BTreeMap<Fault, usize> {
    let mut counts = BTreeMap::new();
    for one in struck {
        *counts.entry(one.fault).or_default() += 1;
    }
    counts
}

/// Whether it had its effect.
async fn inflict(stage: &Stage, fault: Fault, server: usize, dice: &mut Dice) -> bool {
    let proxy = &stage.proxies[server];
    let for_millis = |dice: &mut Dice, least, most| Duration::from_millis(dice.between(least, most));
    match fault {
        Fault::KillServer => {
            stage.kill(server).await;
            tokio::time::sleep(for_millis(dice, 0, 800)).await;
            stage.start(server).await;
            true
        }
        Fault::StopServer => {
            // Now and then for longer than PostgreSQL lets it keep its locks.
            let pause = if dice.percent(12) {
                Duration::from_millis(11_500)
            } else {
                for_millis(dice, 300, 2_500)
            };
            stage.signal(server, Signal::STOP).await;
            tokio::time::sleep(pause).await;
            stage.signal(server, Signal::CONT).await;
            true
        }
        Fault::RestartServer => {
            stage.stop(server).await;
            stage.start(server).await;
            true
        }
        Fault::CutBeforeCommit | Fault::CutAfterCommit | Fault::LoseCommitAnswer => {
            let cut = match fault {
                Fault::CutBeforeCommit => Cut::Before,
                Fault::CutAfterCommit => Cut::After,
                _ => Cut::Answer,
            };
            let before = proxy.cuts_met();
            proxy.cut_commits(cut, dice.between(2, 6) as usize);
            tokio::time::sleep(for_millis(dice, 1_000, 1_800)).await;
            proxy.cuts_met() > before
        }
        Fault::CutConnections => {
            for _ in 0..dice.between(1, 4) {
                proxy.cut_all();
                tokio::time::sleep(for_millis(dice, 30, 300)).await;
            }
            true
        }
        Fault::DropTraffic => {
            proxy.drop_traffic(true);
            tokio::time::sleep(for_millis(dice, 500, 2_500)).await;
            proxy.drop_traffic(false);
            true
        }
        Fault::DelayTraffic => {
            proxy.delay(for_millis(dice, 3, 40));
            tokio::time::sleep(for_millis(dice, 1_000, 2_000)).await;
            proxy.delay(Duration::ZERO);
            true
        }
        Fault::TerminateBackends => {
            let mut ended = 0;
            for _ in 0..dice.between(2, 5) {
                let sql = "select count(pg_terminate_backend(pid)) from (
                    select pid from pg_stat_activity
                    where datname = current_database() and application_name = 'solejob' order by random() limit 4) b";
                ended += sqlx::query_scalar::<_, i64>(sql)
                    .fetch_one(&stage.pool)
                    .await
                    .unwrap_or(0);
                tokio::time::sleep(for_millis(dice, 30, 250)).await;
            }
            ended > 0
        }
        Fault::SlowStatements => {
            let table = dice.one_of(&["lock table job_keys", "lock table jobs"]);
            let pause = for_millis(dice, 200, 1_800);
            hold(stage, table, pause).await
        }
        Fault::FillLockTable => fill_lock_table(stage, for_millis(dice, 500, 1_500)).await,
        Fault::CrashPostgres => {
            stage.postgres.crash(Signal::QUIT).await;
            true
        }
        Fault::KillPostgres => {
            stage.postgres.crash(Signal::KILL).await;
            true
        }
        Fault::ShiftClock | Fault::LoseAnswers | Fault::HangUps => false,
    }
}

/// Nobody gets at a table for a while: every statement on it is slow.
async fn hold(stage: &Stage, statement: &'static str, pause: Duration) -> bool {
    let Ok(mut session) = PgConnection::connect(&stage.url).await else {
        return false;
    };
    for sql in ["begin", statement] {
        if sqlx::raw_sql(sql).execute(&mut session).await.is_err() {
            return false;
        }
    }
    tokio::time::sleep(pause).await;
    sqlx::raw_sql("commit").execute(&mut session).await.is_ok()
}

/// Takes locks until there is room for none. They are the session's, so that the error does not free them.
pub(crate) async fn fill_lock_table(stage: &Stage, pause: Duration) -> bool {
    let Ok(mut session) = PgConnection::connect(&stage.url).await else {
        return false;
    };
    let mut full = false;
    for part in 0..1_000_i64 {
        let sql = "select count(pg_advisory_lock(4711, n::int)) from generate_series($1::bigint, $2::bigint) as n";
        let taken = sqlx::query(sql)
            .bind(part * 50)
            .bind(part * 50 + 49)
            .execute(&mut session);
        if let Err(error) = taken.await {
            let code = error
                .as_database_error()
                .and_then(|error| error.code().map(|code| code.into_owned()));
            full = code.as_deref() == Some("53200");
            break;
        }
    }
    if full {
        tokio::time::sleep(pause).await;
    }
    let _with_the_session = session.close().await;
    full
}
