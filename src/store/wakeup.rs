//! News between servers, through LISTEN and NOTIFY: a hint and never the truth. Never inside a transaction that
//! writes jobs, since PostgreSQL commits those that notify one after another.

use std::time::Duration;

use sqlx::Executor as _;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::timeout;

use crate::store::{Error, Store};

/// The channel of all servers on one database.
const CHANNEL: &str = "solejob";

/// What PostgreSQL takes in one notification, less a little.
const PAYLOAD_BYTES_MAX: usize = 7_900;

/// After so long without news the connection is asked whether it lives: a dead one is as silent as one without news.
const SILENCE: Duration = Duration::from_secs(10);

/// And it has so long to say so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// Hears what other servers say.
#[derive(Debug)]
pub struct News(PgListener);

impl Store {
    /// Says something to every server, this one included. News that are too long for one notification are cut
    /// at line ends.
    pub async fn announce(&self, lines: &[String]) -> Result<(), Error> {
        let mut payload = String::new();
        for line in lines {
            if !payload.is_empty() && payload.len() + 1 + line.len() > PAYLOAD_BYTES_MAX {
                self.notify(&std::mem::take(&mut payload)).await?;
            }
            if !payload.is_empty() {
                payload.push('\n');
            }
            payload.push_str(line);
        }
        if payload.is_empty() {
            Ok(())
        } else {
            self.notify(&payload).await
        }
    }

    async fn notify(&self, payload: &str) -> Result<(), Error> {
        sqlx::query("select pg_notify($1, $2)")
            .bind(CHANNEL)
            .bind(payload)
            .execute(&self.general)
            .await?;
        Ok(())
    }

    /// Begins to listen, on a connection of its own.
    pub async fn listen(&self) -> Result<News, Error> {
        // The listener wants it in a pool, to make it again after a loss.
        let one = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.general.terms().acquire)
            .idle_timeout(None)
            .max_lifetime(None);
        let one = one.connect_lazy_with(self.general.options().clone());
        let mut listener = PgListener::connect_with(&one).await?;
        let listening = timeout(SIGN_OF_LIFE, listener.listen(CHANNEL)).await;
        listening.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        Ok(News(listener))
    }
}

impl News {
    /// The next news. `None` when the connection was lost and made again: something may have been missed.
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        loop {
            if let Ok(heard) = timeout(SILENCE, self.0.try_recv()).await {
                return Ok(heard?.map(|notification| notification.payload().to_owned()));
            }
            let lives = timeout(SIGN_OF_LIFE, self.0.execute("select")).await;
            lives.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        }
    }
}
