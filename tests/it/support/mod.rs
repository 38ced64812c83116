//! The harness: real server processes, each group on a database of its own.
//!
//! ```ignore
//! let app = App::start().await;
//! app.post("/v1/jobs", &json!({"name": "welcome"}), 201).await;
//! app.finish().await;
//! ```

mod app;
mod broken_rules;
mod cli;
mod client;
mod database;
mod document;
mod invariants;
mod server;
mod session;
mod stock;
mod wait;
mod work;

pub(crate) use app::{App, Options};
pub(crate) use cli::{Cli, Scratch};
pub(crate) use client::{Answer, Call, Client, Status};
pub(crate) use document::at;
pub(crate) use server::{Server, solejob};
pub(crate) use session::{Gate, Session};
pub(crate) use stock::Stock;
pub(crate) use wait::{eventually, eventually_within};
pub(crate) use work::{Leased, leased};
