//! `solejob doctor` finds what is broken on purpose, and nothing where nothing is.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::support::{App, Options, Session, solejob};

struct Examined {
    code: i32,
    stdout: String,
}

impl Examined {
    /// Codes of what was found, with their levels.
    fn found(&self) -> BTreeMap<String, String> {
        let all: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let findings = all["findings"].as_array().unwrap();
        findings
            .iter()
            .map(|found| {
                assert!(!text(&found["advice"]).is_empty() && !text(&found["what"]).is_empty());
                (text(&found["code"]), text(&found["level"]))
            })
            .collect()
    }
}

async fn doctor(database_url: &str, args: &[&str]) -> Examined {
    let mut command = solejob(database_url);
    command.arg("doctor").args(args);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    let output = output.unwrap();
    Examined {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
    }
}

const FAULTS: &str = "
    do $$ declare it record; begin
        for it in select conname, conrelid::regclass as relation from pg_constraint
            where contype = 'c' and conrelid in ('jobs'::regclass, 'job_keys'::regclass)
        loop execute format('alter table %s drop constraint %I', it.relation, it.conname); end loop; end $$;
    update jobs set active_key = 'same' where name = 'shared';
    delete from job_keys where name = 'unheld';
    update job_keys set job_id = gen_random_uuid() where name = 'left';
    insert into resource_holds select app_id, 'r:1', job_id from jobs where name = 'unheld';
    update jobs set state = 'reserved', ready = false, lease_token = gen_random_uuid(), resource_keys = '{r:2}',
        lease_expires_at = now() - interval '1 hour' where name = 'leased';
    update jobs set run_at = now() - interval '1 hour' where name in ('overdue', 'paused', 'blocked');
    insert into paused_queues select app_id, 'paused', now() from applications;
    update jobs set ready = false, blocked_on = 'free:1' where name = 'blocked';
    update jobs set state = 'succeeded', ready = false, finished_at = now(), delete_after = now() - interval '2 hours'
        where name = 'kept';
    alter table resource_keys set (autovacuum_enabled = false);
    insert into resource_keys select 1, 'x:' || i from generate_series(1, 10100) i;
    delete from resource_keys;
    select pg_stat_force_next_flush();";

const MENDED: &str = "
    delete from job_keys; delete from jobs; delete from resource_holds; delete from queue_counts;
    delete from paused_queues";

/// All but that transaction ids run out, which would take a thousand million of them.
#[tokio::test]
async fn each_fault_is_found_and_health_is_not_one() {
    let mut app = App::with(Options::default().database_setting("synchronous_commit", "off")).await;
    for (number, name) in [
        "shared", "shared", "unheld", "left", "leased", "overdue", "paused", "blocked", "kept",
    ]
    .iter()
    .enumerate()
    {
        let queue = if *name == "paused" { "paused" } else { "default" };
        let key = format!("key-{number}");
        let body = json!({"name": name, "queue": queue, "uniqueness": {"active_key": key}});
        app.post("/v1/jobs", &body, 201).await;
    }
    let body = json!({"name": "healthy", "resource_keys": ["h:1"], "queue": "busy"});
    for _ in 0..2 {
        app.post("/v1/jobs", &body, 201).await;
    }
    let reserve = json!({"queues": ["busy"], "worker": "w", "max_jobs": 2, "lease": "1h"});
    app.post("/v1/worker/reserve", &reserve, 200).await;
    let healthy = doctor(app.database_url(), &["--json"]).await;
    let found = healthy.found();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["settings"], "{}", healthy.stdout);
    assert_eq!(healthy.code, 1);

    // They would mend some of it.
    app.ask_servers_to_stop();
    app.assert_servers_end().await;
    sqlx::raw_sql(FAULTS).execute(app.sql()).await.unwrap();
    let mut session = Session::open(&app).await;
    session.run("begin; select 1").await;
    let broken = doctor(app.database_url(), &["--json", "--long-transaction", "1ms"]).await;
    let found = broken.found();
    let faults = [
        "active_key_left",
        "active_key_not_held",
        "active_key_shared",
        "blocked_with_room",
        "counts_differ",
        "hold_without_lease",
        "lease_over",
        "lease_without_hold",
    ];
    let warnings = [
        "autovacuum_off",
        "dead_rows",
        "long_transaction",
        "not_swept",
        "overdue",
        "queue_paused",
        "settings",
    ];
    let of = |level: &str| -> BTreeSet<&str> {
        let found = found.iter().filter(|(_, its)| its.as_str() == level);
        found.map(|(code, _)| code.as_str()).collect()
    };
    assert_eq!(of("fault"), BTreeSet::from(faults), "{}", broken.stdout);
    assert_eq!(of("warning"), BTreeSet::from(warnings), "{}", broken.stdout);
    assert_eq!(broken.code, 2);
    session.run("rollback").await;
    sqlx::raw_sql(MENDED).execute(app.sql()).await.unwrap();
    app.finish().await;
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_a_fault_and_its_password_is_not_shown() {
    let examined = doctor("postgres://u:canary-password@127.0.0.1:1/x", &[]).await;
    assert_eq!(examined.code, 2);
    assert!(examined.stdout.starts_with("fault unusable: "), "{}", examined.stdout);
    assert!(!examined.stdout.contains("canary-password"), "{}", examined.stdout);
}
