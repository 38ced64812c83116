//! One binary for all tests of the system as a whole.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics, and says where")]

mod architecture;
mod batches;
mod cases;
mod client_gone;
mod crash;
mod hostile;
mod life;
mod mixed;
mod openapi;
mod races;
mod resources;
mod servers;
mod statements;
mod support;
mod tokens;
mod waking;
mod webhooks;
