//! A server's life: the database that it begins with, what it says of itself, its transactions, its end.

mod clock;
mod migrations;
mod schema;
mod standby;
mod stop;
mod transactions;
