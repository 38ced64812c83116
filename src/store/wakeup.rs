//! News between servers, through LISTEN and NOTIFY: a hint and never the truth. Never inside a transaction that
//! writes jobs, since PostgreSQL commits those that notify one after another.

use sqlx::postgres::PgListener;

use crate::store::{Error, Store};

/// The channel of all servers on one database.
const CHANNEL: &str = "solejob";

/// What PostgreSQL takes in one notification, less a little.
const PAYLOAD_BYTES_MAX: usize = 7_900;

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
        let mut listener = PgListener::connect_with(&self.general).await?;
        listener.listen(CHANNEL).await?;
        Ok(News(listener))
    }
}

impl News {
    /// The next news. `None` when the connection was lost and made again: something may have been missed.
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        Ok(self
            .0
            .try_recv()
            .await?
            .map(|notification| notification.payload().to_owned()))
    }
}
