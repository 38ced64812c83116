//! PgBouncer in between: in session mode everything works, and in any other the server does not start.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reqwest::Url;
use serde_json::json;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;

use crate::support::{App, Client, Server, eventually, solejob};

/// Where it is; `None` if this run is to do without.
fn pgbouncer() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = places.map(|place| place.join("pgbouncer")).find(|file| file.exists());
    if found.is_none() {
        let without = std::env::var_os("SOLEJOB_TEST_WITHOUT_PGBOUNCER").is_some();
        assert!(
            without,
            "no pgbouncer: install it (`apt-get install pgbouncer`), or set SOLEJOB_TEST_WITHOUT_PGBOUNCER=1 to leave this \
             test out"
        );
        eprintln!("LEFT OUT: there is no pgbouncer");
    }
    found
}

/// A pooler before the database of an application. It knows nothing of us: its settings are its own defaults.
struct Pooler {
    child: Child,
    directory: PathBuf,
    url: String,
}

impl Pooler {
    async fn start(app: &App, mode: &str) -> Option<Pooler> {
        let program = pgbouncer()?;
        let options: PgConnectOptions = app.database_url().parse().unwrap();
        let socket = options.get_socket().map(|socket| socket.display().to_string());
        let host = socket.unwrap_or_else(|| options.get_host().to_owned());
        let original: Url = app.database_url().parse().unwrap();
        let password = original.password().map(|password| format!(" password={password}"));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        // It does not run as root.
        let root = rustix::process::getuid().is_root();
        let user = if root { "user = postgres\n" } else { "" };
        let settings = format!(
            "[databases]\n* = host={host} port={} user={}{}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = {mode}\n{user}",
            options.get_port(),
            options.get_username(),
            password.unwrap_or_default(),
        );
        let directory = std::env::temp_dir().join(format!("solejob-pooler-{}-{port}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        let file = directory.join("pgbouncer.ini");
        std::fs::write(&file, settings).unwrap();
        let child = Command::new(program)
            .args(["-q".as_ref(), file.as_os_str()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let database = options.get_database().unwrap();
        let url = format!(
            "postgres://{}@127.0.0.1:{port}/{database}?sslmode=disable",
            options.get_username()
        );
        let pooler = Pooler { child, directory, url };
        let plain = pooler.url.parse::<PgConnectOptions>().unwrap().extra_float_digits(None);
        eventually("the pooler to be there", async || {
            PgConnection::connect_with(&plain).await?.close().await
        })
        .await;
        Some(pooler)
    }

    /// What a command says that must not succeed.
    async fn refused(&self, args: &[&str]) -> String {
        let mut command = solejob(&self.url);
        command.args(args);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        said
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test]
async fn everything_works_behind_a_pooler_in_session_mode() {
    let app = App::start().await;
    let Some(pooler) = Pooler::start(&app, "session").await else {
        return app.finish().await;
    };
    let mut command = solejob(&pooler.url);
    command.args(["serve", "--migrate", "--anonymous", "--listen", "127.0.0.1:0"]);
    let mut server = Server::start(command).await;
    let client = Client::new(&server.base);
    // At once, by way of this server and of one that has no pooler.
    let mut calls = JoinSet::new();
    for call in 0..60 {
        let client = [&client, app.client(0)][call % 2].clone();
        let (active, window) = (format!("a{}", call / 4), format!("w{}", call / 4));
        let body = json!({"name": "n", "uniqueness": {"active_key": active, "window_key": window, "window": "1h"}});
        calls.spawn(async move { client.post("/v1/jobs", &body, 200..=201).await.status });
    }
    let created = calls
        .join_all()
        .await
        .into_iter()
        .filter(|status| *status == 201)
        .count();
    assert_eq!(created, 15);
    // It hears what is dispatched on the other server: news go through the pooler too.
    let held = client.reserve(json!({"max_jobs": 50, "lease": "60s"})).await;
    assert_eq!(held.len(), 15);
    for job in &held {
        let answer = client.work(job, "succeed", json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.reserve(json!({"wait": "20s"})).await });
    eventually("the worker to wait", async || {
        let metrics = client.get("/metrics", 200).await.text;
        match metrics.contains("solejob_reserve_waiting 1") {
            true => Ok(()),
            false => Err("it does not"),
        }
    })
    .await;
    app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    assert_eq!(waiting.await.unwrap().len(), 1);
    client.get("/readyz", 200).await;
    assert!(server.stop().await.success());
    drop(pooler);
    app.finish().await;
}

#[tokio::test]
async fn a_pooler_that_mixes_sessions_up_is_refused_at_the_start() {
    let app = App::start().await;
    for mode in ["transaction", "statement"] {
        let Some(pooler) = Pooler::start(&app, mode).await else {
            return app.finish().await;
        };
        // Others use the pooler as well, so that it has more than one backend to give.
        let busy: PgConnectOptions = pooler.url.parse().unwrap();
        let busy = busy.extra_float_digits(None);
        let crowd: JoinSet<()> = (0..4)
            .map(|_| {
                let busy = busy.clone();
                async move {
                    let mut session = PgConnection::connect_with(&busy).await.unwrap();
                    loop {
                        sqlx::raw_sql("select pg_sleep(0.002)")
                            .execute(&mut session)
                            .await
                            .unwrap();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            })
            .collect();
        for args in [
            &["serve", "--anonymous", "--listen", "127.0.0.1:0"][..],
            &["migrate"],
            &["token", "list"],
        ] {
            let said = pooler.refused(args).await;
            assert!(said.contains("pool_mode = session"), "{mode} {args:?}: {said}");
        }
        drop(crowd);
    }
    app.finish().await;
}
