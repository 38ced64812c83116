//! The use cases of workers and of those who look after jobs.
//!
//! A worker gets jobs through [`Reserver`], and everything that happens to a job afterwards — its worker's
//! calls, an operator's cancel, the end of its lease — goes through [`Calls`], which carries out the pure
//! rules of [`crate::life`] on locked rows, many in one transaction. Nobody who lost a lease can change a job:
//! the rules ask for its current token.

mod calls;
mod reserve;
mod wait;

pub use calls::{Answer, Calls, Failure};
pub use reserve::{Limits, Request, Reserver};
pub use wait::{Waits, poll_awaited};
