//! Applications and the tokens that act for them.

use std::fmt;

use sha2::{Digest as _, Sha256};
use sqlx::Row;

use crate::duration::Millis;
use crate::job::{AppId, Instant};
use crate::store::{Error, Store, statements};

/// What is kept of a token: its SHA-256. A fast hash is right for a secret of 256 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    pub fn of(token: &str) -> TokenHash {
        TokenHash(Sha256::digest(token).into())
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

/// Whom a token acts for, and what it may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// `None`: tokens are not asked for.
    pub token_id: Option<String>,
    pub app: AppId,
    pub application: String,
    pub environment: String,
    pub rights: Vec<String>,
    /// Where it may reserve jobs; `None`: in every queue.
    pub queues: Option<Vec<String>>,
}

/// A token to keep.
#[derive(Clone, Debug)]
pub struct NewToken {
    pub token_id: String,
    pub application: String,
    pub environment: String,
    pub rights: Vec<String>,
    pub hash: TokenHash,
    /// What it is for, in the words of whoever made it.
    pub name: Option<String>,
    pub queues: Option<Vec<String>>,
    /// For how long it is accepted, by the database's clock; `None`: until it is revoked.
    pub expires_in: Option<Millis>,
}

/// A token as the operator sees it.
#[derive(Clone, Debug)]
pub struct TokenView {
    pub token_id: String,
    pub application: String,
    pub environment: String,
    pub rights: Vec<String>,
    pub name: Option<String>,
    pub queues: Option<Vec<String>>,
    pub created_at: Instant,
    pub expires_at: Option<Instant>,
    pub revoked_at: Option<Instant>,
}

impl Store {
    /// Whom the token acts for; `None` when there is no such token, or none any more.
    pub async fn caller(&self, hash: TokenHash) -> Result<Option<Caller>, Error> {
        let row = sqlx::query(statements::CALLER)
            .bind(hash.0.as_slice())
            .fetch_optional(&self.general)
            .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Caller {
            token_id: Some(row.try_get("token_id")?),
            app: AppId(row.try_get("app_id")?),
            application: row.try_get("application")?,
            environment: row.try_get("environment")?,
            rights: row.try_get("rights")?,
            queues: row.try_get("queues")?,
        }))
    }

    /// The application's id; it exists from now on.
    pub async fn application(&self, application: &str, environment: &str) -> Result<AppId, Error> {
        let row = sqlx::query(statements::ADD_APPLICATION)
            .bind(application)
            .bind(environment)
            .fetch_one(&self.general)
            .await?;
        Ok(AppId(row.try_get("app_id")?))
    }

    /// Keeps a new token.
    pub async fn add_token(&self, token: &NewToken) -> Result<(), Error> {
        let NewToken {
            token_id,
            application,
            environment,
            rights,
            hash,
            name,
            queues,
            expires_in,
        } = token;
        let app = self.application(application, environment).await?;
        sqlx::query(statements::ADD_TOKEN)
            .bind(token_id)
            .bind(app.0)
            .bind(rights)
            .bind(hash.0.as_slice())
            .bind(name)
            .bind(queues)
            .bind(expires_in.map(|Millis(millis)| i64::try_from(millis).unwrap_or(i64::MAX)))
            .execute(&self.general)
            .await?;
        Ok(())
    }

    /// Keeps the token that is given at the start, which has all of these rights and no end. A value that is no longer
    /// given is no longer one.
    pub async fn set_bootstrap_token(&self, token_id: &str, app: AppId, hash: TokenHash) -> Result<(), Error> {
        sqlx::query(statements::SET_BOOTSTRAP_TOKEN)
            .bind(token_id)
            .bind(app.0)
            .bind(["admin", "dispatch", "read", "work"].as_slice())
            .bind(hash.0.as_slice())
            .execute(&self.general)
            .await?;
        Ok(())
    }

    pub async fn tokens(&self) -> Result<Vec<TokenView>, Error> {
        let rows = sqlx::query(statements::TOKENS).fetch_all(&self.general).await?;
        let view = |row: &sqlx::postgres::PgRow| {
            Ok(TokenView {
                token_id: row.try_get("token_id")?,
                application: row.try_get("application")?,
                environment: row.try_get("environment")?,
                rights: row.try_get("rights")?,
                name: row.try_get("name")?,
                queues: row.try_get("queues")?,
                created_at: row.try_get("created_at")?,
                expires_at: row.try_get("expires_at")?,
                revoked_at: row.try_get("revoked_at")?,
            })
        };
        rows.iter().map(view).collect()
    }

    /// Whether there was such a token to revoke.
    pub async fn revoke_token(&self, token_id: &str) -> Result<bool, Error> {
        let done = sqlx::query(statements::REVOKE_TOKEN)
            .bind(token_id)
            .execute(&self.general)
            .await?;
        Ok(done.rows_affected() > 0)
    }
}
