//! One binary for all tests of the system as a whole.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

mod architecture;
mod batches;
mod canary;
mod cases;
mod cli_dispatch;
mod cli_jobs;
mod cli_keys;
mod cli_retries;
mod cli_work;
mod client_gone;
mod connections;
mod crash;
mod deploy;
mod doctor;
mod guarantees;
mod hostile;
mod job_types;
mod life;
mod lifecycle;
mod mixed;
mod openapi;
mod overload;
mod pooler;
mod prefer;
mod queues;
mod races;
mod resources;
mod round_trips;
mod scaling;
mod schema;
mod servers;
mod settings_file;
mod statements;
mod support;
mod tls;
mod tokens;
mod trigger_dev;
mod unknown_commit;
mod waking;
mod webhooks;
