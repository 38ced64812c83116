//! One binary for all tests of the system as a whole.

mod batches;
mod cases;
mod races;
mod support;
