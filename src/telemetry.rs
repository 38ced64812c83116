//! Logs and metrics: set up once, used everywhere through `tracing` and `metrics`.

use std::io::IsTerminal as _;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Sends log lines to standard error. `filter` is a level or a list of `target=level`.
pub fn log(format: LogFormat, filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).init(),
        LogFormat::Text => builder.compact().with_target(false).init(),
    }
}

const SECONDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];
const UNITS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 1024.0];

/// Starts counting. The handle renders what has been counted.
pub fn metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_size".into()), &UNITS)?
        .install_recorder()?;
    describe();
    Ok(handle)
}

fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_counter!("solejob_dispatches_total", "Dispatches by what became of them");
    describe_counter!(
        "solejob_dispatch_retries_total",
        "Groups that were decided anew, by reason"
    );
    describe_counter!(
        "solejob_dispatch_groups_split_total",
        "Groups that were stored unit by unit"
    );
    describe_counter!(
        "solejob_commits_unknown_total",
        "Commits whose answer was lost, and that were looked for"
    );
    describe_histogram!(
        "solejob_dispatch_group_size",
        Unit::Count,
        "Singles and batches in a transaction"
    );
    describe_histogram!(
        "solejob_dispatch_commit_seconds",
        Unit::Seconds,
        "How long a commit took"
    );
    describe_counter!("solejob_jobs_reserved_total", "Jobs given to workers");
    describe_counter!(
        "solejob_jobs_given_back_total",
        "Jobs given back because their worker had hung up"
    );
    describe_histogram!(
        "solejob_reserve_group_size",
        Unit::Count,
        "Workers served by one look for jobs"
    );
    describe_gauge!("solejob_reserve_lines", "Lines of workers that look at the same queues");
    describe_gauge!("solejob_reserve_waiting", "Workers that wait for jobs");
    describe_gauge!("solejob_jobs_awaited", "Requests that wait for a job to finish");
    describe_histogram!("solejob_call_group_size", Unit::Count, "Calls on jobs in a transaction");
    describe_counter!(
        "solejob_call_retries_total",
        "Groups of calls on jobs that were decided anew"
    );
    describe_counter!("solejob_jobs_finished_total", "Jobs that ended, by final state");
    describe_counter!(
        "solejob_leases_expired_total",
        "Leases and timeouts found to be over by this server"
    );
    describe_counter!(
        "solejob_jobs_swept_total",
        "Finished jobs forgotten after their retention"
    );
    describe_counter!(
        "solejob_window_keys_swept_total",
        "Window keys forgotten after their window"
    );
    describe_gauge!("solejob_queue_jobs", "Live jobs of a queue, by state");
    describe_gauge!(
        "solejob_queue_oldest_pending_seconds",
        Unit::Seconds,
        "For how long the oldest due job of a queue has waited"
    );
    describe_gauge!("solejob_queue_paused", "1 for a queue that is paused");
    describe_gauge!(
        "solejob_queues_not_shown",
        "Queues beyond the number for which there are metrics"
    );
    describe_gauge!("solejob_http_connections", "Connections of clients that are served");
    describe_counter!(
        "solejob_http_connections_turned_away_total",
        "Connections for which there was no room"
    );
    describe_counter!("solejob_http_requests_total", "Requests by method, route and status");
    describe_histogram!(
        "solejob_http_request_duration_seconds",
        Unit::Seconds,
        "From request to answer, by route"
    );
}
