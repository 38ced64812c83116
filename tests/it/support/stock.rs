//! A PostgreSQL as it comes: some limits are only met with the settings that most people run.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use super::database::Cluster;
use super::server::solejob;

const STOCK: [(&str, &str); 2] = [("max_connections", "100"), ("max_locks_per_transaction", "64")];

static OWN: OnceCell<Arc<Cluster>> = OnceCell::const_new();
/// Lives as long as this process: with us its stdin ends, and with that the PostgreSQL.
static KEEPER: Mutex<Option<Child>> = Mutex::new(None);

impl Cluster {
    /// The run's PostgreSQL if it has the stock settings, else one that has.
    pub(crate) async fn stock() -> Arc<Cluster> {
        let shared = Cluster::shared().await;
        for (name, value) in STOCK {
            if shared.setting(name).await != value {
                return OWN.get_or_init(start_own).await.clone();
            }
        }
        shared
    }
}

async fn start_own() -> Arc<Cluster> {
    let url = tokio::task::spawn_blocking(start_postgres)
        .await
        .expect("a PostgreSQL with stock settings");
    let cluster = Cluster::open(&url).await;
    for (name, value) in STOCK {
        assert_eq!(
            cluster.setting(name).await,
            value,
            "the private PostgreSQL has its own idea of {name}"
        );
    }
    cluster
}

fn start_postgres() -> String {
    let data_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stock-postgres");
    let mut command = solejob("");
    command
        .env_remove("DATABASE_URL")
        .args(["with-postgres", "--not-durable", "--data-dir"])
        .arg(data_dir);
    command.args(["--", "sh", "-c", "echo \"$DATABASE_URL\"; exec cat"]);
    let mut keeper = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the built binary can be run");
    let mut url = String::new();
    let mut stdout = BufReader::new(keeper.stdout.take().expect("stdout is a pipe"));
    stdout.read_line(&mut url).expect("a line of text");
    assert!(
        url.starts_with("postgres"),
        "`solejob with-postgres` did not start a PostgreSQL: {url}"
    );
    *KEEPER.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
    url.trim().to_owned()
}
