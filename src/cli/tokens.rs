//! `solejob token`: tokens are made by whoever can reach the database, never over HTTP.

use std::io::Write as _;

use crate::cli::Error;
use crate::duration::{self, Millis};
use crate::http::token;
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
        /// What it may do; several with commas between them, or by giving it several times
        #[arg(long = "right", alias = "rights", required = true, value_delimiter = ',')]
        rights: Vec<Right>,
        /// The queues that it may reserve jobs in, with commas between them; every queue where none is given
        #[arg(long, alias = "queue", value_name = "QUEUES", value_delimiter = ',', value_parser = name)]
        queues: Vec<String>,
        /// For how long it is accepted, such as 90d, from a second to ten years; until it is revoked where none is given
        #[arg(long, value_name = "DURATION", value_parser = life_time)]
        expires_in: Option<Millis>,
        /// What it is for, shown by `list`: 1 to 128 characters
        #[arg(long, value_parser = label)]
        name: Option<String>,
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

fn label(text: &str) -> Result<String, String> {
    if (1..=128).contains(&text.chars().count()) && !text.contains(char::is_control) {
        Ok(text.into())
    } else {
        Err("1 to 128 characters, none of them a control character".into())
    }
}

/// Ten years: what is to last longer is a token without an end, and is revoked.
const LIFE_TIME_MAX: Millis = Millis(3_650 * 24 * 3_600_000);

fn life_time(text: &str) -> Result<Millis, String> {
    let life_time = duration::parse(text).map_err(|error| error.to_string())?;
    if (Millis(1_000)..=LIFE_TIME_MAX).contains(&life_time) {
        Ok(life_time)
    } else {
        Err("a duration from 1s to 3650d".into())
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
                queues,
                expires_in,
                name,
            } => {
                let reserves = rights.iter().any(|right| matches!(right, Right::Work | Right::Admin));
                if !queues.is_empty() && !reserves {
                    let problem =
                        "--queues limits what a token may reserve, and this one may not reserve: add --right work";
                    return Err(Error::Usage(problem.into()));
                }
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
                        name,
                        queues: Some(queues).filter(|queues| !queues.is_empty()),
                        expires_in,
                    })
                    .await?;
                writeln!(std::io::stdout(), "{token}")?;
            }
            Token::List { database } => {
                let mut out = std::io::stdout().lock();
                writeln!(
                    out,
                    "{:<14} {:<20} {:<12} {:<28} {:<20} {:<20} {:<20} {:<20} NAME",
                    "ID", "APPLICATION", "ENVIRONMENT", "RIGHTS", "CREATED", "REVOKED", "EXPIRES", "QUEUES"
                )?;
                for token in database.open().await?.tokens().await? {
                    let TokenView {
                        token_id,
                        application,
                        environment,
                        rights,
                        name,
                        queues,
                        created_at,
                        expires_at,
                        revoked_at,
                    } = token;
                    let time = |at: crate::job::Instant| at.format("%Y-%m-%dT%H:%M:%SZ").to_string();
                    let revoked = revoked_at.map_or("-".into(), time);
                    let expires = expires_at.map_or("-".into(), time);
                    let queues = queues.map_or("-".into(), |queues| queues.join(","));
                    let name = name.as_deref().unwrap_or("-");
                    let (rights, created) = (rights.join(","), time(created_at));
                    writeln!(
                        out,
                        "{token_id:<14} {application:<20} {environment:<12} {rights:<28} {created:<20} {revoked:<20} {expires:<20} {queues:<20} {name}"
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

/// A new token and its public part, of 256 random bits.
fn generate() -> Result<(String, String), Error> {
    let (mut id, mut secret) = ([0; 4], [0; 32]);
    for random in [id.as_mut_slice(), secret.as_mut_slice()] {
        getrandom::fill(random).map_err(|error| Error::Usage(format!("no random bits: {error}")))?;
    }
    Ok(token::of_random(id, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_new_each_time_and_begin_with_their_id() {
        let ((first_id, first), (second_id, second)) = (generate().unwrap(), generate().unwrap());
        assert!(first.starts_with(&format!("{first_id}_")) && first.len() == 63);
        assert!(first_id != second_id && first[first_id.len()..] != second[second_id.len()..]);
        assert!(!token::is_mistyped(&first));
    }
}
