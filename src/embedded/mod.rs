//! A private PostgreSQL cluster for `dev` and for tests.
