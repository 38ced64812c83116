//! News between servers: said in bundles, heard on a connection of its own, missed without harm.

use std::time::Duration;

use crate::store::Store;
use crate::wakeups::{News, Wakeups};

/// After something was said, what comes up within this is said together.
const BUNDLE: Duration = Duration::from_millis(15);

/// The pause before a connection that was lost is made again.
const RECONNECT: Duration = Duration::from_secs(1);

/// Tells other servers what happened here.
pub(super) async fn say(store: Store, wakeups: Wakeups) {
    loop {
        let lines: Vec<String> = wakeups.unsaid().await.iter().map(News::to_line).collect();
        if let Err(error) = store.announce(&lines).await {
            tracing::warn!(%error, "other servers could not be told of jobs in line: they look by themselves");
        }
        tokio::time::sleep(BUNDLE).await;
    }
}

/// Hears what happened on other servers.
pub(super) async fn hear(store: Store, wakeups: Wakeups) {
    loop {
        match store.listen().await {
            Err(error) => tracing::warn!(%error, "no news can be heard from other servers: looking each second"),
            Ok(mut news) => {
                // Whatever was said before is missed.
                wakeups.wake_all();
                loop {
                    match news.next().await {
                        Ok(Some(lines)) => {
                            lines
                                .lines()
                                .filter_map(News::from_line)
                                .for_each(|news| wakeups.hear(&news));
                        }
                        Ok(None) => wakeups.wake_all(),
                        Err(error) => {
                            tracing::warn!(%error, "the connection that hears news was lost");
                            break;
                        }
                    }
                }
            }
        }
        tokio::time::sleep(RECONNECT).await;
    }
}
