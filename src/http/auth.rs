//! Who calls, and what it may do: a token gives application, environment and rights.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use moka::future::Cache;

use crate::http::App;
use crate::http::problem::{Code, Problem};
use crate::http::token;
use crate::job::AppId;
use crate::store::{self, Caller, Store, TokenHash};

/// How long a token is believed without being looked up: a revocation is heard everywhere within this.
const TOKEN_TTL: Duration = Duration::from_secs(5);

/// Tokens remembered, known and unknown ones alike.
const TOKENS_MAX: u64 = 10_000;

/// No token is longer; what is does not reach the database.
const TOKEN_BYTES_MAX: usize = 256;

/// Who may call.
#[derive(Clone, Debug)]
pub enum Access {
    /// Everybody who reaches the listener, for this application: only ever on loopback.
    Open(Arc<Caller>),
    /// Bearers of a token.
    Tokens(Tokens),
}

impl Access {
    /// Everybody may do everything in this application.
    pub fn open(app: AppId, application: String, environment: String) -> Access {
        Access::Open(Arc::new(Caller {
            token_id: None,
            app,
            application,
            environment,
            rights: vec![Admin::NAME.to_owned()],
            queues: None,
        }))
    }
}

/// Tokens, looked up and remembered for a while.
#[derive(Clone, Debug)]
pub struct Tokens {
    store: Store,
    known: Cache<TokenHash, Option<Arc<Caller>>>,
}

impl Tokens {
    pub fn new(store: Store) -> Tokens {
        Tokens {
            store,
            known: Cache::builder()
                .max_capacity(TOKENS_MAX)
                .time_to_live(TOKEN_TTL)
                .build(),
        }
    }

    async fn caller(&self, token: &str) -> Result<Option<Arc<Caller>>, Arc<store::Error>> {
        let hash = TokenHash::of(token);
        if let Some(known) = self.known.get(&hash).await {
            return Ok(known);
        }
        // One look-up at a time for each token, however many requests bring it.
        let look_up = async { Ok(self.store.caller(hash).await?.map(Arc::new)) };
        Box::pin(self.known.try_get_with(hash, look_up)).await
    }
}

/// A right that a token can have.
pub trait Right: Send + Sync {
    const NAME: &'static str;
    /// Another right that will do, with what that allows.
    const OR: &'static str = Self::NAME;
}

#[derive(Debug)]
pub struct Dispatch;
#[derive(Debug)]
pub struct Read;
#[derive(Debug)]
pub struct Admin;
#[derive(Debug)]
pub struct Work;
/// To read a job: the right `read`, or `work` for a job that was leased with the same token.
#[derive(Debug)]
pub struct ReadOne;
/// Any token will do.
#[derive(Debug)]
pub struct Any;

impl Right for Dispatch {
    const NAME: &'static str = "dispatch";
}
impl Right for Read {
    const NAME: &'static str = "read";
}
impl Right for Work {
    const NAME: &'static str = "work";
}
impl Right for ReadOne {
    const NAME: &'static str = "read";
    const OR: &'static str = "work";
}
impl Right for Admin {
    const NAME: &'static str = "admin";
}
impl Right for Any {
    const NAME: &'static str = "any";
}

/// A caller that has the right `R`, and the application that it acts for.
#[derive(Debug)]
pub struct By<R> {
    pub app: AppId,
    pub caller: Arc<Caller>,
    /// Whether the token has the right itself, and not only the other that will do.
    pub fully: bool,
    right: PhantomData<R>,
}

impl<R> By<R> {
    /// Whether it may read jobs.
    pub fn reads(&self) -> bool {
        allows(&self.caller.rights, Read::NAME)
    }
}

impl<R: Right> FromRequestParts<App> for By<R> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = match &app.access {
            Access::Open(caller) => Arc::clone(caller),
            Access::Tokens(tokens) => caller(parts, tokens).await?,
        };
        let fully = allows(&caller.rights, R::NAME);
        if !fully && !allows(&caller.rights, R::OR) {
            let or = if R::NAME == Admin::NAME { "" } else { " (or \"admin\")" };
            let detail = format!("this needs a token with the right \"{}\"{or}", R::NAME);
            return Err(Problem::new(Code::Forbidden, detail));
        }
        Ok(By {
            app: caller.app,
            caller,
            fully,
            right: PhantomData,
        })
    }
}

fn allows(rights: &[String], wanted: &str) -> bool {
    wanted == Any::NAME || rights.iter().any(|right| right == wanted || right == Admin::NAME)
}

async fn caller(parts: &Parts, tokens: &Tokens) -> Result<Arc<Caller>, Problem> {
    let unauthorized = |detail: &str| Problem::new(Code::Unauthorized, detail);
    let mut values = parts.headers.get_all(header::AUTHORIZATION).iter();
    let value = match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().unwrap_or_default(),
        (None, _) => return Err(unauthorized("send the header Authorization: Bearer TOKEN")),
        (Some(_), Some(_)) => return Err(unauthorized("send one Authorization header, not several")),
    };
    let bearer = match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
        _ => return Err(unauthorized("send the token as Authorization: Bearer TOKEN")),
    };
    let unknown =
        || unauthorized("there is no such token, or it has expired or was revoked: ask your operator for one");
    // One that was mistyped or made up is known by its check digits: it costs no look-up.
    if bearer.is_empty() || bearer.len() > TOKEN_BYTES_MAX || token::is_mistyped(bearer) {
        return Err(unknown());
    }
    tokens
        .caller(bearer)
        .await
        .map_err(|error| {
            let unavailable =
                "the token could not be looked up: nothing was done; try again after the time in Retry-After";
            Problem::new(Code::StoreUnavailable, unavailable).because(error.to_string())
        })?
        .ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_and_what_they_allow() {
        let rights = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(allows(&rights(&["read"]), Read::NAME));
        assert!(!allows(&rights(&["read"]), Dispatch::NAME));
        assert!(!allows(&rights(&["dispatch", "read", "work"]), Admin::NAME));
        assert!(allows(&rights(&["admin"]), Dispatch::NAME));
        assert!(allows(&rights(&["work"]), Any::NAME));
    }
}
