//! A lease in the hands of a worker: kept by heartbeats, and known to be over when it surely is.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::client::{Client, Error, Reserved};
use crate::duration::{self, Millis};

/// A server ends an attempt that runs too long within this time.
const TIMEOUT_NOTICED: Duration = Duration::from_secs(2);

/// What is known of the lease.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// From here on it is surely over, unless a heartbeat comes through before.
    pub(super) until: Instant,
    pub(super) lost: bool,
    pub(super) cancel_requested: bool,
}

/// Beats until it is dropped, or the lease is lost.
pub(super) struct Heart {
    known: watch::Receiver<Known>,
    _beating: AbortOnDropHandle<()>,
}

impl Heart {
    pub(super) fn start(client: Client, job: Arc<Reserved>, lease: Millis, until: Instant) -> Heart {
        let (tell, known) = watch::channel(Known {
            until,
            lost: false,
            cancel_requested: false,
        });
        let beating = AbortOnDropHandle::new(tokio::spawn(beat(client, job, lease, until, tell)));
        Heart {
            known,
            _beating: beating,
        }
    }

    pub(super) fn known(&self) -> Known {
        *self.known.borrow()
    }

    /// The next news.
    pub(super) async fn news(&mut self) -> Known {
        if self.known.changed().await.is_err() {
            // It has said its last.
            std::future::pending::<()>().await;
        }
        *self.known.borrow_and_update()
    }
}

async fn beat(client: Client, job: Arc<Reserved>, lease: Millis, mut until: Instant, tell: watch::Sender<Known>) {
    let length = Duration::from_millis(lease.0);
    let timeout = job.timeout.as_deref().and_then(|text| duration::parse(text).ok());
    let timeout = timeout.and_then(|Millis(millis)| {
        Instant::now().checked_add(Duration::from_millis(millis).saturating_add(TIMEOUT_NOTICED))
    });
    let mut next = Instant::now() + length / 3;
    loop {
        // The answer to the heartbeat after a timeout ends the command without delay.
        let due = timeout
            .filter(|timeout| *timeout > Instant::now())
            .map_or(next, |timeout| timeout.min(next));
        tokio::time::sleep_until(due).await;
        let beat = tokio::time::timeout_at(until, client.heartbeat(&job, lease, until)).await;
        let mut cancel_requested = None;
        let lost = match beat {
            Ok(Ok(heartbeat)) => {
                until = Instant::now() + length;
                cancel_requested = Some(heartbeat.cancel_requested);
                false
            }
            Ok(Err(error)) if is_lost(&error) => {
                tracing::warn!(job = job.job_id, "the lease is lost");
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(job = job.job_id, %error, "a heartbeat did not come through");
                Instant::now() >= until
            }
            Err(_) => {
                tracing::warn!(job = job.job_id, "no heartbeat came through before the lease was over");
                true
            }
        };
        tell.send_modify(|known| {
            known.until = until;
            known.lost = lost;
            known.cancel_requested |= cancel_requested.unwrap_or_default();
        });
        if lost {
            return;
        }
        next = Instant::now()
            + match cancel_requested {
                Some(_) => length / 3,
                None => (length / 10).min(Duration::from_secs(1)),
            };
    }
}

/// Whether the server says that the job is no longer this worker's.
pub(super) fn is_lost(error: &Error) -> bool {
    matches!(error.code(), Some("lease_lost" | "job_not_found"))
}
