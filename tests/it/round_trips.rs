//! What an answer costs in round trips to the database: so many for a group, however many are in it. It is the part of
//! speed that can be counted.

use serde_json::{Value, json};

use crate::unknown_commit::Behind;

impl Behind {
    /// What connections that execute `statement` have had executed since the last call, without what a new
    /// connection begins with.
    fn with(&self, statement: &str) -> Vec<String> {
        let connections = self.proxy.sent().into_iter();
        let with = connections.filter(|sent| sent.iter().any(|name| name == statement));
        with.flatten().filter(|name| name != "set").collect()
    }

    /// What of dispatches was executed since the last call, whatever the connection, by name.
    fn of_dispatches(&self) -> Vec<String> {
        let sent = self.proxy.sent().into_iter().flatten();
        let mut sent: Vec<String> = sent
            .filter(|name| ["lock_keys", "look_up", "write"].contains(&&**name))
            .collect();
        sent.sort();
        sent
    }

    async fn batch(&self, items: std::ops::Range<usize>, keys: bool) {
        let job = |number: usize| match keys {
            true => json!({"name": "n", "uniqueness": {
                "active_key": format!("a{number}"), "window_key": format!("w{number}"), "window": "1h"}}),
            false => json!({"name": "n"}),
        };
        let jobs: Vec<Value> = items.map(job).collect();
        self.client.post("/v1/jobs/batch", &json!({"jobs": jobs}), 200).await;
    }
}

#[tokio::test]
async fn a_group_costs_the_same_round_trips_however_many_are_in_it() {
    let counted = Behind::start().await;
    for (items, keys) in [(0..1, true), (1..501, true), (0..1, false), (0..500, false)] {
        counted.proxy.sent();
        counted.batch(items.clone(), keys).await;
        assert_eq!(counted.with("write"), ["write"], "{items:?} keys {keys}");
    }
    // Reused, all of them. The first time that keys are held this is found out by trying.
    for (items, expected) in [(0..1, &["look_up", "write"][..]), (0..500, &["look_up"])] {
        counted.proxy.sent();
        counted.batch(items.clone(), true).await;
        assert_eq!(counted.of_dispatches(), expected, "{items:?}");
    }
    // One that is held beside one that is not: that takes locks.
    counted.batch(500..502, true).await;
    let locked = counted.with("lock_keys");
    assert!(
        locked.ends_with(&["begin", "lock_keys", "look_up", "write", "commit"].map(String::from)),
        "{locked:?}"
    );

    for jobs in [1, 500] {
        counted.proxy.sent();
        let given = counted.client.reserve(json!({"max_jobs": jobs, "lease": "60s"})).await;
        assert_eq!(given.len(), jobs);
        let sent = counted.proxy.sent().into_iter().flatten();
        let mut looks: Vec<String> = sent
            .filter(|name| ["promote_due", "reserve", "left", "begin"].contains(&&**name))
            .collect();
        // The upkeep may have begun something of its own in between.
        looks.retain(|name| name != "begin");
        // They may go over two connections, which have no order.
        looks.sort();
        assert_eq!(looks, ["promote_due", "reserve"], "{jobs} jobs");

        let end =
            |job: &crate::support::Leased| json!({"job_id": job.id, "lease_token": job.token, "outcome": "succeed"});
        let ends: Vec<Value> = given.iter().map(end).collect();
        counted
            .client
            .post("/v1/worker/finish", &json!({"jobs": ends}), 200)
            .await;
        let sent = counted.with("write_lives");
        let groups = sent.iter().filter(|name| *name == "begin").count();
        // So many at most go into one transaction.
        assert!(groups <= jobs.div_ceil(256) + 1, "{groups} groups for {jobs} jobs");
        let one = ["begin", "lock_lives", "write_lives", "commit"];
        assert_eq!(sent.len(), one.len() * groups, "{sent:?}");
        for name in one {
            assert_eq!(
                sent.iter().filter(|sent| *sent == name).count(),
                groups,
                "{name} in {sent:?}"
            );
        }
    }
    counted.finish().await;
}
