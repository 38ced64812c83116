//! A commit that PostgreSQL takes its time for: the server must wait for its end before it says anything,
//! since until then nothing is to be seen of it.

use serde_json::{Value, json};

use super::Behind;
use super::proxy::Fault;
use crate::support::{Answer, Session, eventually};

/// A commit on these tables waits until nobody else has the advisory lock 42.
const SLOW: &str = "
    create function harness.wait() returns trigger language plpgsql as $$
    begin
        perform pg_advisory_xact_lock(42);
        return null;
    end $$;
    create constraint trigger wait after insert or update on jobs deferrable initially deferred
        for each row execute function harness.wait();
    create constraint trigger wait after insert or update on job_keys deferrable initially deferred
        for each row execute function harness.wait();";

/// Who holds back commits, and who is held back.
struct Slow {
    session: Session,
}

impl Slow {
    async fn make(behind: &Behind) -> Self {
        sqlx::raw_sql(SLOW).execute(behind.app.sql()).await.unwrap();
        let mut session = Session::open(&behind.app).await;
        session.run("begin; select pg_advisory_xact_lock(42)").await;
        Slow { session }
    }

    async fn end(mut self) {
        self.session.run("rollback").await;
    }
}

/// The sessions that commit, some with the write itself, and those that wait for one that does.
async fn waiting(behind: &Behind) -> (Vec<i32>, Vec<i32>) {
    let waiting = "select pid, query ilike 'commit%' or query like '-- solejob write:%' from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock'";
    let rows: Vec<(i32, bool)> = sqlx::query_as(waiting).fetch_all(behind.app.sql()).await.unwrap();
    let (commits, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, commits)| *commits);
    let pids = |rows: Vec<(i32, bool)>| rows.into_iter().map(|(pid, _)| pid).collect();
    (pids(commits), pids(others))
}

fn dispatch(behind: &Behind, body: Value) -> tokio::task::JoinHandle<Answer> {
    let client = behind.client.clone();
    tokio::spawn(async move { client.post("/v1/jobs", &body, 200..=201).await })
}

#[tokio::test]
async fn a_slow_commit_is_waited_for() {
    let behind = Behind::start().await;
    let linked_to = json!({"name": "n", "uniqueness": {"active_key": "a"}});
    let linked_to = behind.app.post("/v1/jobs", &linked_to, 201).await.job_id().to_owned();
    let link = json!({"active_key": "a", "window_key": "w", "window": "1h"});
    let slow = Slow::make(&behind).await;
    let mut jobs = 1;
    let mut slow = Some(slow);
    for (uniqueness, creates) in [
        (json!({}), true),
        (json!({"window_key": "x", "window": "1h"}), true),
        (link, false),
    ] {
        let holder = match slow.take() {
            Some(holder) => holder,
            None => {
                let mut session = Session::open(&behind.app).await;
                session.run("begin; select pg_advisory_xact_lock(42)").await;
                Slow { session }
            }
        };
        if !creates {
            // From a key that is held the server learns to look first: what is cut is then the transaction that links.
            let held = json!({"name": "n", "uniqueness": {"active_key": "a"}});
            behind.client.post("/v1/jobs", &held, 200).await;
        }
        behind.proxy.plan([Fault::CutServerSide]);
        let call = dispatch(&behind, json!({"name": "n", "uniqueness": uniqueness}));
        // The commit waits for us, and who asks what became of it waits for the commit.
        eventually("the server to ask what became of its commit", async || {
            let (commits, others) = waiting(&behind).await;
            match (commits.len(), others.len()) {
                (1, 1) => Ok(()),
                seen => Err(format!("{seen:?} sessions wait")),
            }
        })
        .await;
        assert!(!call.is_finished(), "it was answered before the commit was over");
        holder.end().await;
        let answer = call.await.unwrap();
        jobs += i64::from(creates);
        assert_eq!(answer.status, if creates { 201 } else { 200 }, "{}", answer.text);
        assert_eq!(answer.job_id() == linked_to, !creates, "{}", answer.text);
        behind.assert_true(&answer).await;
        assert_eq!(behind.jobs().await, jobs, "{}", answer.text);
    }
    assert_eq!(behind.proxy.met(), 3);
    behind.finish().await;
}

/// PostgreSQL notices that nobody is there any more and gives the commit up: so the server does it again.
#[tokio::test]
async fn a_slow_commit_that_is_given_up_is_done_again() {
    let behind = Behind::start().await;
    let slow = Slow::make(&behind).await;
    behind.proxy.plan([Fault::CutBoth]);
    let call = dispatch(&behind, json!({"name": "n"}));
    let first = eventually("the first commit to wait", async || {
        waiting(&behind).await.0.first().copied().ok_or("none does")
    })
    .await;
    eventually("another commit to wait", async || {
        let commits = waiting(&behind).await.0;
        if commits.iter().any(|pid| *pid != first) && !commits.contains(&first) {
            Ok(())
        } else {
            Err(format!("{first} was the first, and now {commits:?} wait"))
        }
    })
    .await;
    slow.end().await;
    let answer = call.await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    behind.assert_true(&answer).await;
    assert_eq!(behind.jobs().await, 1);
    behind.finish().await;
}
