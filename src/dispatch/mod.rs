//! The use case: a dispatch is prepared, joins a group, is decided in the group's transaction, and is answered.
//!
//! [`prepare::prepare`] turns a request into a [`prepare::Prepared`] or says what is wrong with it, before
//! anything is looked up, by the job types that this server knows ([`Types`]). [`Dispatcher`] decides and writes; [`preview`] decides and does not.

mod clock;
mod dispatcher;
mod group;
pub mod prepare;
mod preview;
mod straight;
mod types;
mod unit;
mod window;

pub use clock::DatabaseClock;
pub use dispatcher::{Dispatcher, Failure, Limits, Outcome, counted};
pub use preview::preview;
pub use types::Types;
pub use unit::{Draft, PreparedUnit, prepare_unit};
pub use window::{Parents, WindowRequest, exact_scope};
