//! The wire: routes, status codes, the OpenAPI document.
//!
//! A route is one file or a part of one, read from top to bottom: wire types, description, handler. Handlers
//! extract, call one use case, and answer. Every rejection is a [`problem::Problem`].

pub mod auth;
mod batch;
mod calls;
pub mod dispatch;
mod drain;
mod examples;
pub mod extract;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzed;
mod idempotency;
pub mod job_types;
mod jobs;
mod keys;
mod meta;
pub mod object;
mod observe;
pub mod openapi;
mod prefer;
pub mod problem;
mod queues;
mod receipt;
mod scopes;
pub mod token;
mod wire;
mod worker;

pub use self::wire::Members;

use std::any::Any;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::dispatch::{Dispatcher, Types};
use crate::job::{AppId, JobId};
use crate::store::{self, Store};
use crate::wakeups::Wakeups;
use crate::work::{Calls, Reserver, Waits};

/// How much a request may bring.
#[derive(Clone, Debug)]
pub struct Limits {
    pub payload_bytes: usize,
    pub batch_items: usize,
    pub batch_bytes: usize,
    /// How long a client may keep silent in the middle of a request.
    pub patience: Duration,
    /// Connections at once; one more is answered `overloaded`.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            payload_bytes: 1 << 20,
            batch_items: 1_000,
            batch_bytes: 16 << 20,
            patience: Duration::from_secs(30),
            // The workers that may wait, and then some.
            connections: 32_768,
        }
    }
}

/// What handlers work with. Every request clones it several times, so that is one count and not many.
#[derive(Clone, Debug)]
pub struct App(Arc<Parts>);

/// The use cases and settings behind the routes.
#[derive(Debug)]
pub struct Parts {
    pub store: Store,
    pub dispatcher: Dispatcher,
    pub types: Types,
    pub calls: Calls,
    pub reserver: Reserver,
    pub waits: Waits,
    pub wakeups: Wakeups,
    pub access: auth::Access,
    pub limits: Limits,
    pub metrics: PrometheusHandle,
    /// Cancelled when the server has been told to stop: it is not ready any more.
    pub draining: CancellationToken,
    /// Cancelled when the server has begun to stop.
    pub stopping: CancellationToken,
    /// What goes on though its client hung up.
    pub tasks: TaskTracker,
}

impl From<Parts> for App {
    fn from(parts: Parts) -> App {
        App(Arc::new(parts))
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl App {
    /// Waits for a job to finish, while the server does not stop.
    async fn finished(&self, app: AppId, job: JobId, wait: Duration) -> Result<(), problem::Problem> {
        tokio::select! {
            finished = self.waits.finished(app, job, wait) => finished.map(drop)?,
            () = self.stopping.cancelled() => {}
        }
        Ok(())
    }

    /// Runs a transaction to its end, whatever becomes of the client: axum drops the handler of one that hung
    /// up, and a transaction must not be left half way.
    pub async fn undisturbed<T: Send + 'static>(
        &self,
        transaction: impl Future<Output = Result<T, store::Error>> + Send + 'static,
    ) -> Result<T, problem::Problem> {
        match self.tasks.spawn(transaction).await {
            Ok(result) => Ok(result?),
            Err(panic) => Err(problem::internal().because(panic.to_string())),
        }
    }
}

/// Every route, with its description.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(dispatch::dispatch, jobs::list))
        .routes(routes!(batch::batch))
        .routes(routes!(dispatch::preview))
        .routes(routes!(jobs::get, jobs::delete))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(worker::reserve))
        .routes(routes!(calls::finish))
        .routes(routes!(calls::start))
        .routes(routes!(calls::heartbeat))
        .routes(routes!(calls::succeed))
        .routes(routes!(calls::fail))
        .routes(routes!(calls::release))
        .routes(routes!(queues::list))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(scopes::list))
        .routes(routes!(scopes::get, scopes::put, scopes::delete))
        .routes(routes!(job_types::list))
        .routes(routes!(job_types::get, job_types::put, job_types::delete))
        .routes(routes!(job_types::evaluate))
        .routes(routes!(keys::holder))
        .routes(routes!(keys::reset))
        .routes(routes!(meta::healthz))
        .routes(routes!(meta::readyz))
        .routes(routes!(meta::metrics))
        .routes(routes!(meta::error_page))
        .routes(routes!(meta::openapi))
}

/// The server's router, with the routes of other rooms beside its own.
pub fn router(app: App, others: Router<App>) -> Router {
    let (router, _) = routes().split_for_parts();
    // Without the validator: it would have browsers tell another host about this server.
    let docs = SwaggerUi::new("/docs").config(Config::from("/openapi.json").validator_url("none"));
    router
        .merge(docs)
        .merge(others)
        .fallback(meta::fallback)
        .method_not_allowed_fallback(meta::method_not_allowed)
        // A panic is caught inside of what counts and logs, so that it is counted and logged as well. Both are one layer:
        // each costs every request a box around the rest.
        .layer((
            axum::middleware::from_fn(observe::observe),
            CatchPanicLayer::custom(panicked),
        ))
        .with_state(app)
}

/// What the listener for metrics gives, to whoever reaches it: `/metrics`, and no other route.
pub fn metrics_router(metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/metrics", axum::routing::get(meta::open_metrics))
        .fallback(meta::fallback)
        .method_not_allowed_fallback(meta::method_not_allowed)
        .layer(axum::middleware::from_fn(observe::observe))
        .with_state(metrics)
}

/// What is answered where there is no room for another connection: the same to every request.
pub fn no_room() -> Router {
    let refuse = async || {
        let detail = "this server has as many connections as it takes: nothing was done; try again after the time in \
                      Retry-After, or keep fewer connections open";
        problem::Problem::new(problem::Code::Overloaded, detail)
    };
    Router::new()
        .fallback(refuse)
        .layer(axum::middleware::from_fn(observe::observe))
}

fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    problem::internal().because(format!("panic: {text}")).into_response()
}

/// A JSON answer.
#[derive(Debug)]
pub struct JsonBody<T>(pub T);

impl<T: Serialize> IntoResponse for JsonBody<T> {
    fn into_response(self) -> Response {
        const JSON: HeaderValue = HeaderValue::from_static("application/json");
        match serde_json::to_vec(&self.0) {
            Ok(text) => ([(header::CONTENT_TYPE, JSON)], text).into_response(),
            Err(error) => problem::internal().because(error.to_string()).into_response(),
        }
    }
}
