//! One binary for all tests of the system as a whole.

mod architecture;
mod batches;
mod cases;
mod cli_dispatch;
mod cli_jobs;
mod cli_retries;
mod cli_work;
mod client_gone;
mod hostile;
mod races;
mod support;
mod webhooks;
