//! The private cluster with real processes. Runs as root and as an ordinary user, and needs an installed PostgreSQL.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic like tests")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use solejob::embedded::{Cluster, Error, Settings, run_with};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row};

/// A directory that the user of PostgreSQL can reach, removed with all in it at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("solejob-embedded-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Scratch(path)
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::new(self.0.join("data"));
        settings.bin_dir = std::env::var_os("PG_BIN_DIR").map(PathBuf::from);
        settings.search_path = std::env::var_os("PATH");
        settings.durable = false;
        settings
    }

    /// A directory that passes for an installation of some version.
    fn fake_installation(&self, version: &str) -> PathBuf {
        let bin_dir = self.0.join("bin");
        fs::create_dir(&bin_dir).unwrap();
        for program in ["postgres", "initdb"] {
            let path = bin_dir.join(program);
            fs::write(&path, format!("#!/bin/sh\necho '{program} (PostgreSQL) {version}'\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        bin_dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Another process that runs `hold` below.
struct Holder(Child);

impl Holder {
    fn start(settings: &Settings, command: &str) -> Holder {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "private_cluster::hold", "--ignored", "--nocapture"])
            .env("SOLEJOB_TEST_HOLD", &settings.data_dir)
            .env("SOLEJOB_TEST_COMMAND", command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Holder(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test: the body of [`Holder`].
#[tokio::test]
#[ignore = "started by other tests as a process of its own"]
async fn hold() {
    let Some(data_dir) = std::env::var_os("SOLEJOB_TEST_HOLD") else {
        return;
    };
    let mut settings = Settings::new(data_dir);
    settings.bin_dir = std::env::var_os("PG_BIN_DIR").map(PathBuf::from);
    settings.search_path = std::env::var_os("PATH");
    settings.durable = false;
    let command = std::env::var_os("SOLEJOB_TEST_COMMAND").unwrap();
    run_with(&settings, "solejob", &shell(command)).await.unwrap();
}

fn shell(script: impl Into<OsString>) -> Vec<OsString> {
    vec!["/bin/sh".into(), "-c".into(), script.into()]
}

async fn connect(url: &str) -> PgConnection {
    let options: PgConnectOptions = url.parse().unwrap();
    options.connect().await.unwrap()
}

async fn text(connection: &mut PgConnection, sql: &'static str) -> String {
    sqlx::query(sql).fetch_one(connection).await.unwrap().get(0)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pid_file(settings: &Settings) -> PathBuf {
    settings.data_dir.join("pg/postmaster.pid")
}

/// The process in the pid file, once the server is ready.
fn ready_postmaster(settings: &Settings) -> Option<Pid> {
    let text = fs::read_to_string(pid_file(settings)).ok()?;
    if text.lines().nth(7)?.trim() != "ready" {
        return None;
    }
    Pid::from_raw(text.lines().next()?.parse().ok()?)
}

fn runs(pid: Pid) -> bool {
    // One that has ended but was not reaped yet has no command line any more.
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
    test_kill_process(pid).is_ok() && line.map_or(true, |line| !line.is_empty())
}

#[tokio::test]
async fn a_cluster_keeps_its_data_over_a_restart() {
    let scratch = Scratch::new();
    let mut settings = scratch.settings();
    settings.durable = true;
    settings.options = vec![
        ("work_mem".into(), "5MB".into()),
        ("listen_addresses".into(), "*".into()),
    ];

    let cluster = Cluster::start(&settings).await.unwrap();
    cluster.ensure_database("solejob").await.unwrap();
    cluster.ensure_database("solejob").await.unwrap();
    cluster.ensure_database("it's \"odd\" 100%").await.unwrap();
    let mut odd = connect(&cluster.url("it's \"odd\" 100%")).await;
    assert_eq!(
        text(&mut odd, "SELECT current_database()::text").await,
        "it's \"odd\" 100%"
    );
    odd.close().await.unwrap();

    let mut connection = connect(&cluster.url("solejob")).await;
    for (sql, expected) in [
        ("SHOW fsync", "on"),
        ("SHOW data_checksums", "on"),
        ("SHOW server_encoding", "UTF8"),
        ("SHOW max_locks_per_transaction", "256"),
        ("SHOW work_mem", "5MB"),
        ("SHOW listen_addresses", ""),
        (
            "SELECT datcollate::text FROM pg_database WHERE datname = 'solejob'",
            "C.UTF-8",
        ),
    ] {
        assert_eq!(text(&mut connection, sql).await, expected, "{sql}");
    }
    let socket = PathBuf::from(
        text(&mut connection, "SHOW unix_socket_directories")
            .await
            .trim_matches('"'),
    );
    assert_eq!(fs::metadata(socket).unwrap().mode() & 0o777, 0o700);
    sqlx::query("CREATE TABLE kept AS SELECT 'still here' AS word")
        .execute(&mut connection)
        .await
        .unwrap();
    let postmaster = ready_postmaster(&settings).unwrap();
    // A connection that stays open does not hold up the stop.
    cluster.stop().await.unwrap();
    assert!(!runs(postmaster));
    assert!(!pid_file(&settings).exists());

    let cluster = Cluster::start(&settings).await.unwrap();
    let mut connection = connect(&cluster.url("solejob")).await;
    assert_eq!(text(&mut connection, "SELECT word FROM kept").await, "still here");
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_start_on_one_directory_is_refused() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    let cluster = Cluster::start(&settings).await.unwrap();

    // Another way to spell the directory leads to the same lock.
    let link = scratch.0.join("link");
    std::os::unix::fs::symlink(&settings.data_dir, &link).unwrap();
    for data_dir in [&settings.data_dir, &link] {
        let again = Settings {
            data_dir: data_dir.clone(),
            ..settings.clone()
        };
        let message = Cluster::start(&again).await.unwrap_err().to_string();
        assert!(message.contains(settings.data_dir.to_str().unwrap()), "{message}");
        assert!(
            message.contains(&format!("process {}", std::process::id())),
            "{message}"
        );
    }

    let mut connection = connect(&cluster.url("postgres")).await;
    assert_eq!(text(&mut connection, "SELECT 'unharmed'").await, "unharmed");
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn two_clusters_run_side_by_side() {
    let (one, two) = (Scratch::new(), Scratch::new());
    let (one, two) = (one.settings(), two.settings());
    let (one, two) = tokio::join!(Cluster::start(&one), Cluster::start(&two));
    let (one, two) = (one.unwrap(), two.unwrap());
    let sql = "SELECT system_identifier::text FROM pg_control_system()";
    let first = text(&mut connect(&one.url("postgres")).await, sql).await;
    let second = text(&mut connect(&two.url("postgres")).await, sql).await;
    assert_ne!(first, second);
    one.stop().await.unwrap();
    two.stop().await.unwrap();
}

#[tokio::test]
async fn the_server_of_a_killed_process_is_replaced() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    let holder = Holder::start(&settings, "exec sleep 600");
    until("the holder runs a server", || ready_postmaster(&settings).is_some()).await;
    let orphan = ready_postmaster(&settings).unwrap();
    holder.kill();
    assert!(runs(orphan));

    let cluster = Cluster::start(&settings).await.unwrap();
    assert!(!runs(orphan));
    assert_ne!(ready_postmaster(&settings), Some(orphan));
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_process_killed_during_initdb_does_not_block_the_next_start() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    let unfinished = || -> Vec<PathBuf> {
        let entries = fs::read_dir(&settings.data_dir).into_iter().flatten().flatten();
        let names = entries.filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with("pg.tmp-"))
        });
        names.map(|entry| entry.path()).collect()
    };
    let holder = Holder::start(&settings, "exec sleep 600");
    until("initdb has begun", || {
        unfinished().iter().any(|path| path.join("PG_VERSION").exists())
    })
    .await;
    holder.kill();
    assert!(!settings.data_dir.join("pg").exists());
    fs::create_dir_all(settings.data_dir.join("pg.tmp-1/base")).unwrap();

    let cluster = Cluster::start(&settings).await.unwrap();
    cluster.stop().await.unwrap();
    let cluster = Cluster::start(&settings).await.unwrap();
    cluster.stop().await.unwrap();
    assert_eq!(unfinished(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_killed_server_is_reported_and_recovers() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    let cluster = Cluster::start(&settings).await.unwrap();
    let url = cluster.url("postgres");
    let mut connection = connect(&url).await;
    sqlx::query("CREATE TABLE kept AS SELECT 'still here' AS word")
        .execute(&mut connection)
        .await
        .unwrap();
    // A backend that is busy does not notice at once that its postmaster is gone, and holds up the next start.
    let busy = tokio::spawn(async move {
        let mut connection = connect(&url).await;
        let _ = sqlx::query("SELECT count(*) FROM generate_series(1, 10000000)")
            .execute(&mut connection)
            .await;
    });
    let active =
        "SELECT count(*)::text FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%generate_series(1,%'
                  AND pid <> pg_backend_pid()";
    while text(&mut connection, active).await == "0" {
        assert!(!busy.is_finished(), "it must outlive its postmaster");
    }

    let exited = cluster.exited();
    kill_process(ready_postmaster(&settings).unwrap(), Signal::KILL).unwrap();
    let error = exited.await;
    assert!(
        matches!(&error, Error::Died { status, .. } if status.contains("9")),
        "{error}"
    );
    assert!(matches!(cluster.stop().await, Err(Error::Died { .. })));
    assert!(pid_file(&settings).exists());

    let cluster = Cluster::start(&settings).await.unwrap();
    let mut connection = connect(&cluster.url("postgres")).await;
    assert_eq!(text(&mut connection, "SELECT word FROM kept").await, "still here");
    cluster.stop().await.unwrap();
    busy.await.unwrap();
}

#[tokio::test]
async fn a_stale_pid_file_does_not_block() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    Cluster::start(&settings).await.unwrap().stop().await.unwrap();
    let pg = settings.data_dir.join("pg");
    // A process of the same user, or PostgreSQL would see through it by itself.
    let owner = fs::metadata(&pg).unwrap();
    let mut command = Command::new("sleep");
    if rustix::process::geteuid().is_root() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    let mut stranger = command.arg("600").spawn().unwrap();
    let in_use = format!("{}\n{}\n1700000000\n5432\n", stranger.id(), pg.display());
    for content in [in_use.as_str(), "", "garbled"] {
        fs::write(pid_file(&settings), content).unwrap();
        std::os::unix::fs::chown(pid_file(&settings), Some(owner.uid()), Some(owner.gid())).unwrap();
        let cluster = Cluster::start(&settings).await.unwrap();
        cluster.stop().await.unwrap();
    }
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger was left alone");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing_running() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    Cluster::start(&settings).await.unwrap().stop().await.unwrap();
    tokio::select! {
        biased;
        started = Cluster::start(&settings) => panic!("given up too late: {started:?}"),
        () = until("a server begins", || pid_file(&settings).exists()) => {}
    }
    until("the server ends", || !pid_file(&settings).exists()).await;
    let cluster = Cluster::start(&settings).await.unwrap();
    drop(cluster);
    until("a dropped cluster ends", || !pid_file(&settings).exists()).await;
}

#[tokio::test]
async fn a_path_too_long_for_a_socket_is_no_obstacle() {
    let scratch = Scratch::new();
    let mut settings = scratch.settings();
    settings.data_dir = scratch.0.join("d".repeat(100)).join("with, comma");
    for _ in 0..2 {
        let cluster = Cluster::start(&settings).await.unwrap();
        let mut connection = connect(&cluster.url("postgres")).await;
        let directory = text(&mut connection, "SHOW unix_socket_directories").await;
        let directory = PathBuf::from(directory.trim_matches('"'));
        assert!(directory.starts_with("/tmp"), "{directory:?}");
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        cluster.stop().await.unwrap();
        assert!(!directory.exists());
    }
}

#[tokio::test]
async fn a_failed_start_shows_the_end_of_the_log() {
    let scratch = Scratch::new();
    let mut settings = scratch.settings();
    settings.options = vec![("work_mem".into(), "nonsense".into())];
    let message = Cluster::start(&settings).await.unwrap_err().to_string();
    assert!(
        message.contains("work_mem") && message.contains("postgres.log"),
        "{message}"
    );
}

#[tokio::test]
async fn an_old_postgresql_is_refused_with_advice() {
    let scratch = Scratch::new();
    let mut settings = scratch.settings();
    settings.bin_dir = Some(scratch.fake_installation("14.9"));
    let message = Cluster::start(&settings).await.unwrap_err().to_string();
    for part in [
        "PostgreSQL 14",
        "15 or newer",
        "apt-get install postgresql",
        "DATABASE_URL",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!settings.data_dir.exists());
}

#[tokio::test]
async fn a_bin_dir_without_postgresql_is_refused() {
    let scratch = Scratch::new();
    let mut settings = scratch.settings();
    settings.bin_dir = Some(scratch.0.clone());
    let message = Cluster::start(&settings).await.unwrap_err().to_string();
    assert!(
        message.contains("PG_BIN_DIR") && message.contains("`postgres`"),
        "{message}"
    );
}

#[tokio::test]
async fn a_cluster_of_another_major_is_refused() {
    let scratch = Scratch::new();
    let mut settings = scratch.settings();
    Cluster::start(&settings).await.unwrap().stop().await.unwrap();
    settings.bin_dir = Some(scratch.fake_installation("99.1"));
    let message = Cluster::start(&settings).await.unwrap_err().to_string();
    assert!(
        message.contains("99 in") && message.contains("was made by PostgreSQL"),
        "{message}"
    );
}

#[tokio::test]
async fn a_directory_closed_to_the_user_of_postgresql_is_named() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new();
    let mut settings = scratch.settings();
    let closed = scratch.0.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    settings.data_dir = closed.join("data");
    let message = Cluster::start(&settings).await.unwrap_err().to_string();
    assert!(
        message.contains(&format!("({} is closed", closed.display())),
        "{message}"
    );
    assert!(
        message.contains("user postgres") && message.contains("--data-dir"),
        "{message}"
    );
}

#[tokio::test]
async fn somebody_elses_directory_is_refused() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    fs::create_dir_all(settings.data_dir.join("pg")).unwrap();
    fs::set_permissions(&settings.data_dir, fs::Permissions::from_mode(0o755)).unwrap();
    let error = Cluster::start(&settings).await.unwrap_err();
    if rustix::process::geteuid().is_root() {
        assert!(matches!(error, Error::OtherOwner { owner: 0, .. }), "{error}");
    } else {
        assert!(matches!(error, Error::NotACluster { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_command_runs_with_the_database_and_its_status_comes_back() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    let script = r#"case "$DATABASE_URL" in postgres://*/under_test?*) exit 7;; *) exit 1;; esac"#;
    let status = run_with(&settings, "under_test", &shell(script)).await.unwrap();
    assert_eq!(status.code(), Some(7));
    assert!(!pid_file(&settings).exists());

    let missing = run_with(&settings, "under_test", &["/no/such/command".into()])
        .await
        .unwrap_err();
    assert!(missing.to_string().contains("/no/such/command"), "{missing}");
    assert!(!pid_file(&settings).exists());
    assert!(matches!(
        run_with(&settings, "under_test", &[]).await,
        Err(Error::NoCommand)
    ));
}

#[tokio::test]
async fn a_signal_reaches_the_command_while_its_database_still_runs() {
    for (signal, name) in [(Signal::INT, "INT"), (Signal::TERM, "TERM")] {
        let scratch = Scratch::new();
        let settings = scratch.settings();
        let mark = |name: &str| scratch.0.join(name).display().to_string();
        let (started, ended) = (mark("started"), mark("ended"));
        let script = format!(
            "trap 'test -e {} && echo got >> {ended}; exit 0' {name}; touch {started}; while :; do sleep 0.05; done",
            pid_file(&settings).display()
        );
        let mut holder = Holder::start(&settings, &script);
        until("the command runs", || Path::new(&started).exists()).await;
        let pid = Pid::from_raw(i32::try_from(holder.0.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        assert!(holder.0.wait().unwrap().success());
        assert_eq!(fs::read_to_string(&ended).unwrap(), "got\n");
        assert!(!pid_file(&settings).exists());
    }
}
