//! `solejob token`: tokens are made by whoever can reach the database, never over HTTP.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::cli::Error;
use crate::store::{self, NewToken, Store, TokenHash, TokenView};

#[derive(clap::Subcommand)]
pub(super) enum Token {
    /// Make a token and print it, this once: only its hash is kept
    Create {
        #[command(flatten)]
        database: Database,
        /// The application it acts for
        #[arg(long, value_parser = name)]
        application: String,
        /// The application's environment, such as prod or staging
        #[arg(long, value_parser = name)]
        environment: String,
        /// What it may do; give it several times for several rights
        #[arg(long = "right", required = true)]
        rights: Vec<Right>,
    },
    /// List tokens, without their secrets
    List {
        #[command(flatten)]
        database: Database,
    },
    /// Refuse a token from now on: on every server within 5 seconds
    Revoke {
        #[command(flatten)]
        database: Database,
        /// The token's id, as `list` shows it
        token_id: String,
    },
}

#[derive(clap::Args)]
pub(super) struct Database {
    /// PostgreSQL that holds the tokens
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
}

impl Database {
    async fn open(&self) -> Result<Store, store::Error> {
        Store::connect(&self.database_url, &store::Limits::default()).await
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum Right {
    /// Dispatch, batch, preview
    Dispatch,
    /// Read jobs and keys
    Read,
    /// Run jobs
    Work,
    /// All of it, and cancel, delete, reset
    Admin,
}

impl Right {
    fn as_str(self) -> &'static str {
        match self {
            Right::Dispatch => "dispatch",
            Right::Read => "read",
            Right::Work => "work",
            Right::Admin => "admin",
        }
    }
}

/// Applications and environments are named as jobs are.
fn name(text: &str) -> Result<String, String> {
    if crate::settings::is_name(text) {
        Ok(text.into())
    } else {
        Err("1 to 128 of A-Z a-z 0-9 . _ : -".into())
    }
}

impl Token {
    pub(super) async fn run(self) -> Result<(), Error> {
        match self {
            Token::Create {
                database,
                application,
                environment,
                rights,
            } => {
                let store = database.open().await?;
                let (token_id, token) = generate()?;
                let rights = rights.into_iter().map(|right| right.as_str().into()).collect();
                let hash = TokenHash::of(&token);
                store
                    .add_token(&NewToken {
                        token_id,
                        application,
                        environment,
                        rights,
                        hash,
                    })
                    .await?;
                writeln!(std::io::stdout(), "{token}")?;
            }
            Token::List { database } => {
                let mut out = std::io::stdout().lock();
                writeln!(
                    out,
                    "{:<14} {:<20} {:<12} {:<28} {:<20} REVOKED",
                    "ID", "APPLICATION", "ENVIRONMENT", "RIGHTS", "CREATED"
                )?;
                for token in database.open().await?.tokens().await? {
                    let TokenView {
                        token_id,
                        application,
                        environment,
                        rights,
                        created_at,
                        revoked_at,
                    } = token;
                    let time = |at: crate::job::Instant| at.format("%Y-%m-%dT%H:%M:%SZ").to_string();
                    let revoked = revoked_at.map_or("-".into(), time);
                    let (rights, created) = (rights.join(","), time(created_at));
                    writeln!(
                        out,
                        "{token_id:<14} {application:<20} {environment:<12} {rights:<28} {created:<20} {revoked}"
                    )?;
                }
            }
            Token::Revoke { database, token_id } => {
                if !database.open().await?.revoke_token(&token_id).await? {
                    return Err(Error::Usage(format!(
                        "there is no token {token_id} that could be revoked"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// A new token and its public part: a prefix that scanners for leaked secrets can know, an id, 256 random bits.
fn generate() -> Result<(String, String), Error> {
    let mut random = [0; 36];
    getrandom::fill(&mut random).map_err(|error| Error::Usage(format!("no random bits: {error}")))?;
    let (id, secret) = random.split_at(4);
    let token_id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let token_id = format!("sole_{token_id}");
    let token = format!("{token_id}_{}", URL_SAFE_NO_PAD.encode(secret));
    Ok((token_id, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_new_each_time_and_begin_with_their_id() {
        let ((first_id, first), (second_id, second)) = (generate().unwrap(), generate().unwrap());
        assert!(first.starts_with(&format!("{first_id}_")) && first.len() == first_id.len() + 1 + 43);
        assert!(first_id != second_id && first[first_id.len()..] != second[second_id.len()..]);
    }
}
