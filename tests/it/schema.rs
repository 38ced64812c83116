//! A server against its own description: Schemathesis reads it and makes requests of it. `scripts/test-schema` fetches it
//! and runs this.

use std::path::Path;
use std::process::Command;

use crate::support::{App, Options};

const TOKEN: &str = "schema-0123456789abcdef";

#[tokio::test]
#[ignore = "needs the Python package schemathesis: run scripts/test-schema"]
async fn schemathesis_finds_no_fault_in_server_or_description() {
    let schemathesis = std::env::var_os("SCHEMATHESIS");
    let schemathesis = schemathesis.expect("SCHEMATHESIS names the program: run scripts/test-schema");
    let more = std::env::var_os("SCHEMATHESIS_ARGUMENTS").unwrap_or_default();
    let more = more.into_string().expect("the arguments are UTF-8");
    let app = App::with(Options::default().bootstrap_token(TOKEN)).await;
    let url = format!("http://{}", app.address());
    let mut command = Command::new(schemathesis);
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .args(["--config-file", "tests/schema/schemathesis.toml"])
        .args(["run", &format!("{url}/openapi.json"), "--url", &url])
        .args(more.split_whitespace())
        // What its settings take it from.
        .env("SOLEJOB_BOOTSTRAP_TOKEN", TOKEN);
    let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap();
    let status = status.expect("the program can be run");
    assert!(
        status.success(),
        "Schemathesis ended with {status}: see what it printed above"
    );
    // Whatever was asked for, the data are whole.
    app.finish().await;
}
