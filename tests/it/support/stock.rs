//! A PostgreSQL as it comes: some limits are only met with the settings that most people run.

use std::path::Path;
use std::sync::Arc;

use solejob::embedded;

use super::database::Cluster;

const SETTINGS: [(&str, &str); 2] = [("max_connections", "100"), ("max_locks_per_transaction", "64")];

/// The run's PostgreSQL if it has the stock settings, else one of its own that has.
pub(crate) struct Stock {
    pub(crate) cluster: Arc<Cluster>,
    own: Option<embedded::Cluster>,
}

impl Stock {
    pub(crate) async fn start() -> Self {
        let shared = Cluster::shared().await;
        if has_stock_settings(&shared).await {
            return Stock {
                cluster: shared,
                own: None,
            };
        }
        Stock::apart("stock-postgres").await
    }

    /// One of its own in any case, whose settings a test may change.
    pub(crate) async fn apart(name: &str) -> Self {
        let data_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // What a run has set that did not come to its end.
        let _ = std::fs::remove_file(data_dir.join("pg/postgresql.auto.conf"));
        let mut settings = embedded::Settings::new(data_dir);
        settings.search_path = std::env::var_os("PATH");
        settings.bin_dir = std::env::var_os("PG_BIN_DIR").map(Into::into);
        settings.run_as = std::env::var_os("SOLEJOB_PG_USER").and_then(|user| user.into_string().ok());
        settings.options = SETTINGS
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
        settings.durable = false;
        let own = embedded::Cluster::start(&settings)
            .await
            .expect("a PostgreSQL with stock settings");
        own.ensure_database("solejob").await.expect("a first database");
        let cluster = Cluster::open(&own.url("solejob")).await;
        assert!(
            has_stock_settings(&cluster).await,
            "the private PostgreSQL does not take {SETTINGS:?}"
        );
        Stock {
            cluster,
            own: Some(own),
        }
    }

    pub(crate) async fn stop(self) {
        if let Some(own) = self.own {
            own.stop().await.expect("it stops");
        }
    }
}

async fn has_stock_settings(cluster: &Cluster) -> bool {
    for (name, value) in SETTINGS {
        if cluster.setting(name).await != value {
            return false;
        }
    }
    true
}
