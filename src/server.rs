//! The composition root: one function builds a server from its settings, runs it, and stops it in order.

mod connections;
mod files;
mod tls;

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{self, Access, Config, Secret};
use crate::dispatch::{DatabaseClock, Dispatcher, Types};
use crate::http::{self, App, auth};
use crate::maintenance;
use crate::server::tls::Tls;
use crate::store::{self, Class, Store, TokenHash};
use crate::trigger_dev;
use crate::wakeups::Wakeups;
use crate::work::{Calls, Reserver, Waits};

/// The application and environment of the bootstrap token.
const BOOTSTRAP: (&str, &str) = ("default", "prod");

const BOOTSTRAP_ID: &str = "bootstrap";

/// Connections of those who collect metrics: a few of them, each with a few.
const METRICS_CONNECTIONS: usize = 32;

/// How often old samples of the metrics are folded up.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] config::Invalid),
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error("cannot listen on {0}: {1}; choose another address with --listen")]
    Listen(std::net::SocketAddr, std::io::Error),
    #[error("cannot listen on {0} for metrics: {1}; choose another address with --metrics-listen")]
    ListenForMetrics(std::net::SocketAddr, std::io::Error),
    #[error("the database cannot be used: {0}")]
    Store(#[from] store::Error),
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
    #[error("cannot serve: {0}")]
    Serve(std::io::Error),
}

/// What a server is told from outside while it runs.
#[derive(Clone, Debug, Default)]
pub struct Orders {
    /// To end.
    pub stop: CancellationToken,
    /// To read its files again.
    pub reload: Arc<Notify>,
}

/// Runs a server until it is told to stop and everything that it had taken on is done.
pub async fn run(config: Config, metrics: PrometheusHandle, orders: Orders) -> Result<(), Error> {
    config.check()?;
    let tls = config.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
    let Orders { stop: told, reload } = orders;
    // Between the order to stop and the end of listening lies the drain.
    let stop = CancellationToken::new();
    let draining = tokio::spawn(drain(told.clone(), config.drain_delay, stop.clone()));
    let store = open_store(&config, &told).await?;
    let access = match config.access {
        Access::Anonymous {
            application,
            environment,
        } => {
            let app = store.application(&application, &environment).await?;
            auth::Access::open(app, application, environment)
        }
        Access::Tokens { bootstrap } => {
            match bootstrap {
                Some(Secret(token)) => {
                    let app = store.application(BOOTSTRAP.0, BOOTSTRAP.1).await?;
                    let hash = TokenHash::of(&token);
                    store.set_bootstrap_token(BOOTSTRAP_ID, app, hash).await?;
                }
                // Who takes the variable away means the token.
                None => drop(store.revoke_token(BOOTSTRAP_ID).await?),
            }
            auth::Access::Tokens(auth::Tokens::new(store.clone()))
        }
    };
    let tasks = TaskTracker::new();
    let clock = Arc::new(DatabaseClock::new(store.now().await?));
    let wakeups = Wakeups::default();
    if let Some(file) = &config.job_types {
        let app = store.application(&file.application, &file.environment).await?;
        let declared = store.declare(app, &file.types).await?;
        tracing::info!(
            types = file.types.len(),
            changed = declared.changed,
            "job types of the file are declared"
        );
    }
    let types = Types::load(store.clone()).await?;
    types.keep_fresh(&stop, &tasks);
    let dispatcher = Dispatcher::start(
        store.clone(),
        types.clone(),
        clock,
        wakeups.clone(),
        &config.dispatch,
        &tasks,
    );
    let calls = Calls::start(store.clone(), wakeups.clone(), config.work.in_flight, &tasks);
    let reserver = Reserver::new(
        store.clone(),
        wakeups.clone(),
        calls.clone(),
        &config.work,
        stop.clone(),
        tasks.clone(),
    );
    maintenance::start(&store, &wakeups, &calls, &stop, &tasks);
    let patience = config.http.patience;
    let most = files::connections(config.http.connections, &config.store);
    let app = App::from(http::Parts {
        store: store.clone(),
        dispatcher: dispatcher.clone(),
        types,
        calls: calls.clone(),
        reserver,
        waits: Waits::new(store.clone(), wakeups.clone()),
        wakeups,
        access,
        limits: config.http,
        metrics: metrics.clone(),
        draining: told,
        stopping: stop.clone(),
        tasks: tasks.clone(),
    });

    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| Error::Listen(config.listen, error))?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let address = listener.local_addr().map_err(Error::Serve)?;
    writeln!(std::io::stdout(), "solejob listening on {scheme}://{address}").map_err(Error::Output)?;
    tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "serving");
    if let Some(listen) = config.metrics_listen {
        let refused = |error| Error::ListenForMetrics(listen, error);
        let listener = TcpListener::bind(listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(Error::Serve)?;
        tracing::info!(%address, "serving metrics");
        let doors = connections::Doors {
            tls: None,
            router: http::metrics_router(metrics.clone()),
            no_room: http::no_room(),
            most: METRICS_CONNECTIONS,
            patience,
        };
        let stop = stop.clone();
        tasks.spawn(async move { connections::serve(listener, doors, &stop).await });
    }
    let reloading = tokio::spawn(read_again(tls.clone(), reload));
    let upkeep = tokio::spawn(async move {
        loop {
            tokio::time::sleep(METRICS_UPKEEP).await;
            metrics.run_upkeep();
        }
    });

    let doors = connections::Doors {
        tls,
        router: http::router(app, trigger_dev::routes()),
        no_room: http::no_room(),
        most,
        patience,
    };
    let serve = connections::serve(listener, doors, &stop);
    // The last fifth of the grace is for what still has to be stored.
    let grace = config.shutdown_grace.mul_f64(0.8);
    let mut out_of_time = std::pin::pin!(async {
        stop.cancelled().await;
        tracing::info!(
            grace_seconds = grace.as_secs(),
            "stopping: no new connections, finishing what was begun"
        );
        tokio::time::sleep(grace).await;
    });
    let in_time = tokio::select! {
        () = serve => true,
        () = &mut out_of_time => false,
    };
    if !in_time {
        tracing::warn!("some requests did not finish in time and are cut off");
    }
    // A request that was cut off still has its connection, and handles to these.
    dispatcher.close();
    calls.close();
    tasks.close();
    let end = async {
        tasks.wait().await;
        store.close().await;
    };
    let cut_off = async {
        if in_time {
            out_of_time.await;
        }
        tokio::time::sleep(config.shutdown_grace - grace).await;
    };
    tokio::select! {
        () = end => {}
        () = cut_off => tracing::warn!("some transactions did not finish in time and are cut off"),
    }
    upkeep.abort();
    reloading.abort();
    draining.abort();
    tracing::info!("stopped");
    Ok(())
}

/// Lets those that watch `/readyz` see that this server is about to stop, before it does.
async fn drain(told: CancellationToken, delay: Duration, stop: CancellationToken) {
    told.cancelled().await;
    if !delay.is_zero() {
        tracing::info!(
            delay_seconds = delay.as_secs_f64(),
            "told to stop: not ready any more, and serving on for the drain delay"
        );
        tokio::time::sleep(delay).await;
    }
    stop.cancel();
}

async fn read_again(tls: Option<Arc<Tls>>, reload: Arc<Notify>) {
    loop {
        reload.notified().await;
        match tls.as_deref().map(Tls::reload) {
            None => tracing::info!("there are no files to read again: --tls-cert is not given"),
            Some(Ok(())) => tracing::info!("certificate and key are read again: new connections use them"),
            Some(Err(error)) => tracing::error!(%error, "the certificate is not changed: the one before stays in use"),
        }
    }
}

/// Connects, and waits for a database that is not there yet: in a container it may start later than this.
async fn open_store(config: &Config, stop: &CancellationToken) -> Result<Store, Error> {
    let began = Instant::now();
    loop {
        let opened = async {
            if config.migrate {
                store::migrate(&config.database_url).await?;
            }
            Store::connect(&config.database_url, &config.store).await
        };
        match opened.await {
            Err(error)
                if error.class() == Class::Unavailable
                    && began.elapsed() < config.database_wait
                    && !stop.is_cancelled() =>
            {
                tracing::warn!(%error, "the database does not answer: trying again");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            opened => return Ok(opened?),
        }
    }
}
