//! One binary for all tests of the system as a whole.

mod cases;
mod races;
mod support;
