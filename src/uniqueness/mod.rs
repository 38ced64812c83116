//! The pure core: what makes a dispatch the same as another.

pub mod canonical;
mod number;
