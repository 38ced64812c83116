//! The settings of a server, once they are known to make sense.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::dispatch;
use crate::http;
use crate::http::token;
use crate::job_types::definition::Definition;
use crate::store;
use crate::work;

/// Who may call.
#[derive(Clone)]
pub enum Access {
    /// Everybody who reaches the listener, which is on loopback.
    Anonymous { application: String, environment: String },
    /// Bearers of a token; the bootstrap token is one from the start.
    Tokens { bootstrap: Option<Secret> },
}

/// Job types to declare at the start, in place of what is stored for their names.
#[derive(Clone, PartialEq, Debug)]
pub struct JobTypes {
    pub application: String,
    pub environment: String,
    pub types: Vec<(String, Definition)>,
}

/// The files that TLS needs, as PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// The server's certificate, and behind it those that lead to the authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// A text that does not show itself.
#[derive(Clone)]
pub struct Secret(pub String);

/// Everything that a server is started with.
pub struct Config {
    pub database_url: String,
    pub listen: SocketAddr,
    /// Where `/metrics` is given to everybody who reaches it, and nothing else is.
    pub metrics_listen: Option<SocketAddr>,
    pub access: Access,
    /// Without it, plain HTTP is spoken.
    pub tls: Option<Tls>,
    /// Brings the database to this server's schema first.
    pub migrate: bool,
    pub job_types: Option<JobTypes>,
    pub http: http::Limits,
    pub dispatch: dispatch::Limits,
    pub store: store::Limits,
    pub work: work::Limits,
    /// How long the server goes on after the signal to stop, while `/readyz` says that it will.
    pub drain_delay: Duration,
    /// How long requests that are being served have after the signal to stop.
    pub shutdown_grace: Duration,
    /// How long a database that does not answer is waited for at the start.
    pub database_wait: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Invalid {
    #[error(
        "--anonymous lets everybody in who reaches {0}: listen on loopback (127.0.0.1 or [::1]), or leave it out and \
         use tokens"
    )]
    AnonymousBeyondLoopback(SocketAddr),
    #[error(
        "SOLEJOB_BOOTSTRAP_TOKEN has {0} characters: give at least 16, such as the output of `openssl rand -hex 24`"
    )]
    BootstrapTooShort(usize),
    #[error(
        "the largest dispatch or batch counts {0} bytes and --queue-bytes is {1}: it would always be refused; give more \
         --queue-bytes, or less --payload-bytes, --batch-bytes or --batch-items"
    )]
    QueueTooSmall(usize, usize),
    #[error("SOLEJOB_BOOTSTRAP_TOKEN holds a character that an Authorization header cannot: use printable ASCII")]
    BootstrapNotPrintable,
    #[error("SOLEJOB_BOOTSTRAP_TOKEN looks like a token of `solejob token create` and is not one: it was mistyped")]
    BootstrapMistyped,
}

impl Config {
    /// Refuses what would be unsafe or could not work.
    pub fn check(&self) -> Result<(), Invalid> {
        let largest = dispatch::counted(self.http.payload_bytes, 1)
            .max(dispatch::counted(self.http.batch_bytes, self.http.batch_items));
        if largest > self.dispatch.queue_bytes {
            return Err(Invalid::QueueTooSmall(largest, self.dispatch.queue_bytes));
        }
        match &self.access {
            Access::Anonymous { .. } if !self.listen.ip().is_loopback() => {
                Err(Invalid::AnonymousBeyondLoopback(self.listen))
            }
            Access::Anonymous { .. } | Access::Tokens { bootstrap: None } => Ok(()),
            Access::Tokens {
                bootstrap: Some(Secret(token)),
            } => match token.len() {
                short @ ..16 => Err(Invalid::BootstrapTooShort(short)),
                _ if !token.bytes().all(|byte| byte.is_ascii_graphic()) => Err(Invalid::BootstrapNotPrintable),
                _ if token::is_mistyped(token) => Err(Invalid::BootstrapMistyped),
                _ => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str, access: Access) -> Config {
        Config {
            database_url: String::new(),
            listen: listen.parse().unwrap(),
            metrics_listen: None,
            access,
            tls: None,
            migrate: false,
            job_types: None,
            http: http::Limits::default(),
            dispatch: dispatch::Limits::default(),
            store: store::Limits::default(),
            work: work::Limits::default(),
            drain_delay: Duration::ZERO,
            shutdown_grace: Duration::ZERO,
            database_wait: Duration::ZERO,
        }
    }

    #[test]
    fn a_server_without_tokens_listens_on_loopback() {
        let open = || Access::Anonymous {
            application: "a".into(),
            environment: "e".into(),
        };
        for (listen, accepted) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
        ] {
            assert_eq!(config(listen, open()).check().is_ok(), accepted, "{listen}");
        }
    }

    #[test]
    fn the_queue_takes_the_largest_batch() {
        let check = |batch_items, queue_bytes| {
            let mut config = config("127.0.0.1:1", Access::Tokens { bootstrap: None });
            config.http.batch_items = batch_items;
            config.dispatch.queue_bytes = queue_bytes;
            config.check()
        };
        let batch = (16 << 20) + 1_000 * 1_024;
        assert_eq!(check(1_000, batch), Ok(()));
        assert_eq!(check(1_000, batch - 1), Err(Invalid::QueueTooSmall(batch, batch - 1)));
        assert_eq!(check(1_001, batch), Err(Invalid::QueueTooSmall(batch + 1_024, batch)));
    }

    #[test]
    fn a_bootstrap_token_is_long_and_printable() {
        let check = |token: &str| {
            let bootstrap = Some(Secret(token.into()));
            config("0.0.0.0:1", Access::Tokens { bootstrap }).check()
        };
        assert_eq!(check("0123456789abcdef"), Ok(()));
        assert_eq!(check("0123456789abcde"), Err(Invalid::BootstrapTooShort(15)));
        assert_eq!(check("0123456789 abcdef"), Err(Invalid::BootstrapNotPrintable));
        // It would be refused at each request, for its check digits.
        let made_up = format!("sole_01234567_{}", "0".repeat(49));
        assert_eq!(check(&made_up), Err(Invalid::BootstrapMistyped));
    }
}
