//! Load over HTTP: connections that each go on from one answer to the next request, and what they got done.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::cpu::{self, Cpu};

pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// One kept-alive connection.
pub struct Connection {
    send: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Connection, Failed> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (send, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection {
            send,
            host: address.to_string(),
        })
    }

    pub async fn request(&mut self, method: Method, path: &str, body: String) -> Result<(StatusCode, Bytes), Failed> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.host)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        self.send.ready().await?;
        let response = self.send.send_request(request).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }

    /// Posts, and fails unless this status comes back.
    pub async fn post(&mut self, path: &str, body: String, expected: u16) -> Result<Bytes, Failed> {
        let (status, answer) = self.request(Method::POST, path, body).await?;
        if status.as_u16() == expected {
            Ok(answer)
        } else {
            Err(format!("POST {path}: {status}: {}", String::from_utf8_lossy(&answer)).into())
        }
    }
}

/// What connections have got done while it was measured.
#[derive(Default)]
pub struct Tally {
    measuring: AtomicBool,
    over: AtomicBool,
    done: AtomicU64,
    waits: Mutex<Vec<u32>>,
}

impl Tally {
    pub fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Something was answered, and this many things were done by it.
    pub fn note(&self, began: Instant, done: usize) {
        if self.measuring.load(Ordering::Relaxed) {
            self.done.fetch_add(done as u64, Ordering::Relaxed);
            let micros = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
            self.waits.lock().expect("no holder panics").push(micros);
        }
    }
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Sample {
    pub per_second: f64,
    /// Milliseconds from request to answer.
    pub p50: f64,
    pub p99: f64,
    /// Microseconds of processor time for each thing done.
    pub cpu: Cpu,
    /// How many were in a group on average: dispatches, workers that reserve, calls.
    pub groups: [f64; 3],
}

/// Sum and count of the sizes of groups that a server has had.
pub async fn groups(server: SocketAddr) -> Result<[(f64, f64); 3], Failed> {
    let (_, text) = Connection::open(server)
        .await?
        .request(Method::GET, "/metrics", String::new())
        .await?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let value = |name: String| {
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(&*name)?.trim().parse().ok());
        value.unwrap_or(0.0)
    };
    Ok(["dispatch", "reserve", "call"].map(|what| {
        let part = |part: &str| value(format!("solejob_{what}_group_size_{part} "));
        (part("sum"), part("count"))
    }))
}

/// How long one sample takes.
#[derive(Clone, Copy)]
pub struct Span {
    pub warm: Duration,
    pub measured: Duration,
}

/// Lets every future of `work` run until the tally is over. The first one that fails fails the sample: a benchmark
/// of wrong answers is none.
pub async fn measure<F>(
    span: Span,
    servers: &[u32],
    tally: Arc<Tally>,
    work: impl IntoIterator<Item = F>,
) -> Result<Sample, Failed>
where
    F: Future<Output = Result<(), Failed>> + Send + 'static,
{
    let mut running: JoinSet<Result<(), Failed>> = work.into_iter().collect();
    let guard = |running: &mut JoinSet<_>| match running.try_join_next() {
        Some(Ok(Err(error))) => Err(error),
        Some(Ok(Ok(()))) => Err("a connection ran out of work before the sample was over".into()),
        Some(Err(error)) => Err(error.into()),
        None => Ok::<(), Failed>(()),
    };
    tokio::time::sleep(span.warm).await;
    guard(&mut running)?;
    let cpu_before = cpu::now(servers)?;
    let began = Instant::now();
    tally.measuring.store(true, Ordering::Relaxed);
    tokio::time::sleep(span.measured).await;
    tally.measuring.store(false, Ordering::Relaxed);
    let (seconds, done) = (began.elapsed().as_secs_f64(), tally.done.load(Ordering::Relaxed));
    let cpu = cpu::now(servers)?.since(&cpu_before).for_each(done);
    guard(&mut running)?;
    tally.over.store(true, Ordering::Relaxed);
    while let Some(end) = running.join_next().await {
        end??;
    }
    let mut waits = std::mem::take(&mut *tally.waits.lock().expect("no holder panics"));
    waits.sort_unstable();
    let at = |share: f64| {
        let place = (waits.len() as f64 * share) as usize;
        waits
            .get(place.min(waits.len().saturating_sub(1)))
            .map_or(0.0, |micros| f64::from(*micros) / 1_000.0)
    };
    Ok(Sample {
        per_second: done as f64 / seconds,
        p50: at(0.5),
        p99: at(0.99),
        cpu,
        groups: [0.0; 3],
    })
}
