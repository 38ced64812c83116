//! The files that a deployment begins with name options, commands and times that the server has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Dockerfile, Compose files and all that lies in `deploy/`.
fn files() -> Vec<PathBuf> {
    fn walk(directory: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // What somebody tries out there is none of ours.
                if !path.ends_with("secrets") {
                    walk(&path, files);
                }
            } else {
                files.push(path);
            }
        }
    }
    let mut files = vec![root().join("Dockerfile"), root().join("docker-compose.yml")];
    walk(&root().join("deploy"), &mut files);
    files
}

fn help(command: &[&str]) -> String {
    let mut solejob = Command::new(env!("CARGO_BIN_EXE_solejob"));
    let output = solejob.args(command).arg("--help").output().unwrap();
    assert!(output.status.success(), "solejob {command:?} --help");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_variable_of_the_files_is_one_of_the_server() {
    let known = Regex::new(r"\[env: ([A-Z_]+)").unwrap();
    let known: BTreeSet<String> = [help(&["serve"]), help(&["token", "create"]), help(&["healthcheck"])]
        .iter()
        .flat_map(|help| {
            known
                .captures_iter(help)
                .map(|found| found[1].to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    // What Compose puts in, and is no setting of a server.
    let own = ["SOLEJOB_HOST", "SOLEJOB_VERSION"];
    let named = Regex::new(r"\bSOLEJOB_[A-Z_]+").unwrap();
    let mut seen = 0;
    for file in files() {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue;
        };
        for found in named.find_iter(&text) {
            seen += 1;
            let name = found.as_str();
            assert!(
                known.contains(name) || own.contains(&name),
                "{} names {name}, which no command reads",
                file.display()
            );
        }
    }
    assert!(seen > 15, "only {seen} were found");
}

#[test]
fn every_command_of_the_files_is_there() {
    let named = Regex::new(r"(?:bin/|\bexec \S+ |[^/-])\bsolejob (migrate|serve|token [a-z]+|healthcheck)\b").unwrap();
    let mut seen = BTreeSet::new();
    for file in files() {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue;
        };
        seen.extend(named.captures_iter(&text).map(|found| found[1].to_owned()));
    }
    for command in &seen {
        help(&command.split(' ').collect::<Vec<_>>());
    }
    assert!(seen.len() >= 3, "{seen:?}");
}

/// Seconds that a file gives for something, in the form `NAME: 25s` or `NAME=25s`, or a number on the line behind.
fn seconds(text: &str, name: &str) -> u64 {
    let given = Regex::new(&format!(r"{name}(?:[:=] ?|\n *value: )(\d+)s?\b")).unwrap();
    let found = given.captures(text).unwrap_or_else(|| panic!("{name} is not given"));
    found[1].parse().unwrap()
}

/// Who is killed while it still drains has drained for nothing.
#[test]
fn nobody_kills_a_server_that_still_has_time() {
    let compose = read("deploy/compose.production.yml");
    let server = &compose[compose.find("x-server:").unwrap()..compose.find("services:").unwrap()];
    let kubernetes = read("deploy/kubernetes/solejob.yaml");
    for (text, killed_after) in [
        (server, "stop_grace_period"),
        (&*kubernetes, "terminationGracePeriodSeconds"),
    ] {
        let needed = seconds(text, "SOLEJOB_DRAIN_DELAY") + seconds(text, "SOLEJOB_SHUTDOWN_GRACE");
        let given = seconds(text, killed_after);
        assert!(given > needed, "{killed_after} is {given} s and {needed} s are needed");
    }
    // With the defaults, which the unit and the simple Compose file leave as they are.
    let grace = 25;
    assert!(help(&["serve"]).contains("[default: 25s]"));
    assert!(seconds(&read("deploy/systemd/solejob.service"), "TimeoutStopSec") > grace);
    let simple = read("docker-compose.yml");
    assert!(seconds(&simple[simple.find("  server:").unwrap()..], "stop_grace_period") > grace);
}

/// A server closes what is silent for longer than its patience: a proxy that keeps connections longer sends requests
/// into connections that are just being closed.
#[test]
fn the_proxy_lets_go_of_connections_first() {
    let proxy = read("deploy/proxy/Caddyfile");
    assert!(seconds(&proxy.replace("keepalive ", "keepalive: "), "keepalive") < 30);
    assert!(help(&["serve"]).contains("SOLEJOB_CLIENT_PATIENCE=] [default: 30s]"));
    assert!(seconds(&proxy.replace("timeout ", "timeout: "), "response_header_timeout") > 60);
}

/// Metrics that are described, in the server and in the page about them. A histogram has three names.
fn metrics() -> BTreeSet<String> {
    let named = Regex::new("\"(solejob_[a-z_]+)\"").unwrap();
    let source = read("src/telemetry.rs");
    let page = read("docs/metrics.md");
    let mut known = BTreeSet::new();
    for found in named.captures_iter(&source) {
        let name = &found[1];
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/metrics.md does not say what {name} is"
        );
        known.insert(name.to_owned());
        if name.ends_with("_size") || name.ends_with("_seconds") {
            known.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")));
        }
    }
    known
}

#[test]
fn alerts_and_dashboard_ask_for_metrics_that_there_are() {
    let known = metrics();
    let named = Regex::new(r"\bsolejob_[a-z_]+").unwrap();
    for (file, least) in [
        ("deploy/prometheus/alerts.yml", 10),
        ("deploy/grafana/solejob.json", 15),
    ] {
        let text = read(file);
        let asked: BTreeSet<&str> = named.find_iter(&text).map(|found| found.as_str()).collect();
        for name in &asked {
            assert!(known.contains(*name), "{file} asks for {name}, which is not counted");
        }
        assert!(asked.len() >= least, "{file} asks for {} metrics only", asked.len());
    }
    let dashboard: serde_json::Value = serde_json::from_str(&read("deploy/grafana/solejob.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
}

#[test]
fn every_alert_says_what_to_do() {
    let text = read("deploy/prometheus/alerts.yml");
    let alerts = text.matches("- alert:").count();
    assert!(alerts >= 12);
    for member in ["expr:", "severity:", "summary:", "description:"] {
        assert_eq!(text.matches(member).count(), alerts, "an alert lacks {member}");
    }
}
