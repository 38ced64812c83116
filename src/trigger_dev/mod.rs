//! The wire that Trigger.dev's clients speak: the paths and shapes that `@trigger.dev/sdk` 4.8.3 calls, on the same use
//! cases as [`crate::http`]. A run is a job, and a task's identifier is its name.
//!
//! What is another rule there is that rule here: a key leads to its run whatever the payload, and a failed run frees it.
//! What has no counterpart is refused, or ignored where `docs/coming-from-trigger-dev.md` says so.

mod batch;
mod list;
mod options;
mod payload;
mod refusal;
mod run;
mod runs;
mod trigger;

use axum::Router;
use axum::routing::{any, get, post};

use crate::http::App;

/// Every route.
pub fn routes() -> Router<App> {
    Router::new()
        .route("/api/v1/tasks/{task}/trigger", post(trigger::trigger))
        .route("/api/v3/batches", post(batch::create))
        .route("/api/v3/batches/{batch}/items", post(batch::items))
        .route("/api/v1/idempotencyKeys/{key}/reset", post(trigger::reset))
        .route("/api/v3/runs/{job_id}", get(runs::retrieve))
        .route("/api/v1/runs", get(list::list))
        .route("/api/v2/runs/{job_id}/cancel", post(runs::cancel))
        .route("/api/v1/runs/{job_id}/replay", post(runs::replay))
        .route("/api/v1/packets/{*path}", any(payload::no_store))
        .route("/api/v2/packets/{*path}", any(payload::no_store))
        .method_not_allowed_fallback(refusal::method_not_allowed)
        .route("/api/{*path}", any(refusal::unknown))
}
