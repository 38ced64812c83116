//! The binary: parses nothing and decides nothing itself.

use std::process::ExitCode;

/// A request makes some sixty allocations, which were a fifth of its instructions with glibc's: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    solejob::cli::run().await
}
