//! Job types: what is declared for a job name once, so that no dispatch has to say it.
//!
//! A [`definition::Definition`] is what was declared, a [`definition::JobType`] the same, checked and compiled. A
//! server holds those of all its applications in a [`registry::Registry`]. Nothing here waits or reads a clock.

pub mod definition;
pub mod registry;
pub mod selector;
