//! Waiting for a condition, with a deadline. Nothing in this suite sleeps and hopes.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Long enough for a busy two-core machine; a test that meets it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Repeats `check` until it answers `Ok`; fails with its last reason.
pub(crate) async fn eventually<T, E: Display>(what: &str, check: impl AsyncFnMut() -> Result<T, E>) -> T {
    eventually_within(PATIENCE, what, check).await
}

pub(crate) async fn eventually_within<T, E: Display>(
    patience: Duration,
    what: &str,
    mut check: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_millis(1);
    loop {
        match check().await {
            Ok(value) => return value,
            Err(reason) if Instant::now() >= deadline => panic!("waited {patience:?} in vain for {what}: {reason}"),
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
