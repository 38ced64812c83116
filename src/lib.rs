//! Solejob: an HTTP server that takes job dispatches and never creates the same job twice.
//!
//! Rooms, in the order in which they are best read; `ARCHITECTURE.md` says who may know whom:
//!
//! - [`job`], [`duration`]: the nouns. [`json`]: strict reading of JSON text.
//! - [`uniqueness`]: the pure core that decides what becomes of a dispatch. [`settings`], [`job_types`]: what is
//!   declared for a job name, and what of it a dispatch can say as well.
//! - [`store`]: PostgreSQL, and the only room that knows it.
//! - [`dispatch`]: the use case: prepare, group, decide, answer.
//! - [`http`]: the wire. [`trigger_dev`]: the wire that Trigger.dev's clients speak.
//! - [`client`]: the other end of the wire, for the command line.
//! - [`embedded`]: a private PostgreSQL for `dev` and for tests.
//! - [`config`], [`telemetry`], [`server`], [`cli`]: how it is put together and started.

#[macro_use]
mod mutants;

pub mod cli;
pub mod client;
pub mod config;
pub mod dispatch;
pub mod duration;
pub mod embedded;
pub mod http;
pub mod job;
pub mod job_types;
pub mod json;
pub mod life;
pub mod maintenance;
pub mod retry;
pub mod server;
pub mod settings;
pub mod store;
pub mod telemetry;
pub mod trigger_dev;
pub mod uniqueness;
pub mod wakeups;
pub mod work;
