//! The binary: parses nothing and decides nothing itself.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    solejob::cli::run().await
}
