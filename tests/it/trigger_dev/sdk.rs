//! The published SDK itself. `scripts/test-trigger-dev` installs it and runs this.

use std::path::PathBuf;
use std::process::Command;

use crate::support::{App, Options};

#[tokio::test]
#[ignore = "needs the SDK from npm: scripts/test-trigger-dev"]
async fn the_published_sdk_gets_along_with_the_server() {
    let sdk = std::env::var_os("TRIGGER_DEV_SDK").map(PathBuf::from);
    let sdk = sdk.expect("TRIGGER_DEV_SDK names the folder of the SDK: run scripts/test-trigger-dev");
    let secret = "sole_0123456789abcdef0123456789abcdef";
    let app = App::with(Options::default().bootstrap_token(secret)).await;
    let reader = app.token("default", "prod", &["read"]).await;
    let other = app.token("other", "prod", &["dispatch"]).await;
    let mut command = Command::new("node");
    command
        .args(["--test", "--test-reporter=spec", "sdk.test.mjs"])
        .current_dir(&sdk)
        .env("TRIGGER_API_URL", format!("http://{}", app.address()))
        .env("TRIGGER_SECRET_KEY", secret)
        .env("READER", reader)
        .env("OTHER", other);
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("the thread ends").expect("node can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(
        output.status.success(),
        "the SDK's test failed:\n{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // A run that found no test would succeed as well.
    let passed = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("ℹ pass ")?.parse::<u32>().ok());
    assert!(
        passed.is_some_and(|passed| passed >= 16),
        "{passed:?} tests passed:\n{said}"
    );
    app.finish().await;
}
