//! Connections of clients: taken, served, and given up when a client keeps silent in the middle of something.
//!
//! There is room for so many. Who comes beyond that is answered 503 at once, rather than left to wait in the kernel where
//! nothing tells it from a server that is dead: a client can try another server, or wait for as long as it is told to.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics::{counter, gauge};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::server::tls::Tls;

/// After an error that is no single connection's, such as too many open files, there may be room a moment later.
const PAUSE: Duration = Duration::from_secs(1);

/// For so long a connection is still listened to at the end: a request may be on its way, or lie unread.
const LINGER: Duration = Duration::from_millis(100);

/// So many connections that were made before the end, and not taken by then, are taken all the same.
const LATE_MAX: usize = 1_024;

/// So many are turned away at a time. With more than that nobody is taken, and they wait in the kernel after all: each
/// costs a file, and there are files for so many.
pub(super) const TURNED_AWAY: usize = 256;

/// And so long each has to say what it wants and to hear that it is not to be had.
const FAREWELL: Duration = Duration::from_secs(3);

/// Who is served, and by what.
pub(super) struct Doors {
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) router: Router,
    /// For those for whom there is no room.
    pub(super) no_room: Router,
    /// Connections that are served at once.
    pub(super) most: usize,
    pub(super) patience: Duration,
}

/// A place among the connections that are served.
struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn take(places: &Arc<Semaphore>) -> Option<Place> {
        let permit = Arc::clone(places).try_acquire_owned().ok()?;
        gauge!("solejob_http_connections").increment(1.0);
        Some(Place { _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        gauge!("solejob_http_connections").decrement(1.0);
    }
}

/// Serves until `stop` is cancelled, and then until what was begun is answered.
pub(super) async fn serve(listener: TcpListener, doors: Doors, stop: &CancellationToken) {
    let connections = TaskTracker::new();
    let (places, refusals) = (
        Arc::new(Semaphore::new(doors.most)),
        Arc::new(Semaphore::new(TURNED_AWAY)),
    );
    let mut late = 0;
    while late < LATE_MAX {
        let next = async {
            // Whoever comes may have to be turned away.
            let refusal = Arc::clone(&refusals).acquire_owned().await;
            (listener.accept().await, refusal)
        };
        // Who has connected before the end is taken, noticed or not.
        let (taken, refusal) = tokio::select! {
            biased;
            taken = next => taken,
            () = stop.cancelled() => break,
        };
        match taken {
            Ok((stream, _)) => {
                late += usize::from(stop.is_cancelled());
                match Place::take(&places) {
                    Some(place) => {
                        let (tls, router, patience, stop) =
                            (doors.tls.clone(), doors.router.clone(), doors.patience, stop.clone());
                        connections.spawn(async move {
                            connection(stream, tls.as_deref(), router, patience, &stop).await;
                            drop(place);
                        });
                    }
                    None => {
                        counter!("solejob_http_connections_turned_away_total").increment(1);
                        let refused = turn_away(stream, doors.tls.clone(), doors.no_room.clone());
                        connections.spawn(async move {
                            refused.await;
                            drop(refusal);
                        });
                    }
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

async fn connection(
    stream: TcpStream,
    tls: Option<&Tls>,
    router: Router,
    patience: Duration,
    stop: &CancellationToken,
) {
    // Answers are small and complete: waiting to fill a packet would only delay them.
    let _best_effort = stream.set_nodelay(true);
    let stream = Patient {
        stream,
        patience,
        stalled: None,
    };
    let Some(tls) = tls else {
        return exchange(stream, router, patience, stop).await;
    };
    // However it is spread over time, a handshake is one thing, and no request has been begun with it.
    let handshake = timeout(patience, tls.acceptor().accept(stream));
    let shaken = tokio::select! {
        shaken = handshake => shaken,
        () = end(stop) => return,
    };
    match shaken {
        Ok(Ok(stream)) => exchange(stream, router, patience, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a client did not end its TLS handshake in time and was given up"),
    }
}

/// Requests and answers, one after another.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    patience: Duration,
    stop: &CancellationToken,
) {
    let io = TokioIo::new(stream);
    // The head of the first request and the wait for the next one count alike. A body is waited for by who reads it.
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience);
    let mut connection = pin!(http.serve_connection(io, TowerToHyperService::new(router)));
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = end(stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection was given up");
    }
}

/// Answers the first request that there is no room, whatever it is.
async fn turn_away(stream: TcpStream, tls: Option<Arc<Tls>>, no_room: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(FAREWELL)
        .keep_alive(false);
    let service = TowerToHyperService::new(no_room);
    let farewell = async {
        let Some(tls) = tls else {
            return http.serve_connection(TokioIo::new(stream), service).await;
        };
        match tls.acceptor().accept(stream).await {
            Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await,
            Err(_gone) => Ok(()),
        }
    };
    let _in_time = timeout(FAREWELL, farewell).await;
}

/// When a connection is no longer listened to.
async fn end(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(LINGER).await;
}

/// A stream whose other end has to take what is written within some time.
struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// Runs while nothing of what is to be written is taken.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// What a write led to, and the end of patience with it.
    fn judge<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        stalled
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
