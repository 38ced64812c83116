//! The pure core: what makes a dispatch the same as another, and what becomes of it.
//!
//! Nothing here waits, reads a clock, or touches a socket. A dispatch is turned into an [`decide::Ask`]: its
//! keys, each with a digest to find it by, the fingerprint of what was asked for, and its policy. The store
//! says who holds those keys ([`holders::Holders`]); [`decide::decide`] says what follows, one dispatch at a
//! time, and [`holders::Holders::apply`] folds units of them over the view and lists what has to be written.

pub mod canonical;
pub mod decide;
pub mod fingerprint;
pub mod holders;
pub mod key;
pub mod locks;
mod number;
pub mod receipt;
pub mod window;
