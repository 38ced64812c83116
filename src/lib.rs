//! Solejob: an HTTP server that takes job dispatches and never creates the same job twice.

pub mod duration;
pub mod embedded;
pub mod json;
pub mod uniqueness;
