//! Tests that need an installed PostgreSQL rather than a running one. They are a program of their own, and a module with a
//! name, so that they can be left out where there is none: `cargo test -- --skip private_cluster::`.

mod private_cluster;
