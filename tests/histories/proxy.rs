//! Between one server and PostgreSQL: cuts connections around a COMMIT or altogether, delays and drops. A write that is a
//! transaction of its own is committed by the message that asks for its answer.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::unix::{OwnedReadHalf as FromPostgres, OwnedWriteHalf as ToPostgres};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, watch};

/// What becomes of a COMMIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    /// PostgreSQL never gets it.
    Before,
    /// PostgreSQL gets it, and both sides are cut at once.
    After,
    /// PostgreSQL gets it and answers. The answer goes nowhere.
    Answer,
}

struct Shared {
    socket: PathBuf,
    cuts: Mutex<VecDeque<Cut>>,
    met: AtomicUsize,
    delay_micros: AtomicU64,
    /// Goes up with every cut of all connections.
    era: watch::Sender<u64>,
    /// Whether what is sent goes nowhere.
    dropping: watch::Sender<bool>,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Before the PostgreSQL of this URL, which names the directory of a socket.
    pub(crate) async fn before(url: &str) -> Proxy {
        let options: PgConnectOptions = url.parse().expect("a URL of PostgreSQL");
        let directory = options.get_socket().expect("the private cluster has a socket");
        let socket = directory.join(format!(".s.PGSQL.{}", options.get_port()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            socket,
            cuts: Mutex::default(),
            met: AtomicUsize::new(0),
            delay_micros: AtomicU64::new(0),
            era: watch::Sender::new(0),
            dropping: watch::Sender::new(false),
        });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = accepting.clone();
                tokio::spawn(async move { shared.serve(client).await });
            }
        });
        Proxy { shared, port, task }
    }

    /// Leads to a database through the proxy. Encrypted, a COMMIT could not be told from the rest.
    pub(crate) fn url(&self, url: &str) -> String {
        let options: PgConnectOptions = url.parse().expect("a URL of PostgreSQL");
        let (user, database) = (options.get_username(), options.get_database().expect("a database"));
        format!("postgres://{user}@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    pub(crate) fn cut_commits(&self, cut: Cut, times: usize) {
        let mut cuts = self.shared.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.extend(std::iter::repeat_n(cut, times));
    }

    /// How many COMMITs met a cut so far. What was planned and did not happen is forgotten.
    pub(crate) fn cuts_met(&self) -> usize {
        self.shared.cuts.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.shared.met.load(Ordering::SeqCst)
    }

    /// Cuts every connection; new ones are taken.
    pub(crate) fn cut_all(&self) {
        self.shared.era.send_modify(|era| *era += 1);
    }

    /// From now on each message waits so long.
    pub(crate) fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.shared.delay_micros.store(micros, Ordering::SeqCst);
    }

    /// Nothing gets through, in either direction, and nobody is told. Ends with a cut of all connections.
    pub(crate) fn drop_traffic(&self, dropping: bool) {
        self.shared.dropping.send_replace(dropping);
        if !dropping {
            self.cut_all();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut_all();
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, client: TcpStream) {
        let mut era = self.era.subscribe();
        // While PostgreSQL is away, whoever comes is hung up on.
        let Ok(postgres) = UnixStream::connect(&self.socket).await else {
            return;
        };
        let _small_messages = client.set_nodelay(true);
        let (requests, answers) = client.into_split();
        let (from_postgres, to_postgres) = postgres.into_split();
        let answered = Notify::new();
        let muted = watch::Sender::new(false);
        let back = self.pass_back(from_postgres, answers, &answered, muted.subscribe());
        let there = self.pass_on(requests, to_postgres, &answered, &muted);
        // Whichever ends first, the other direction ends with it.
        tokio::select! {
            () = back => {}
            () = there => {}
            _ = era.changed() => {}
        }
    }

    async fn pause(&self) {
        let micros = self.delay_micros.load(Ordering::SeqCst);
        if micros > 0 {
            tokio::time::sleep(Duration::from_micros(micros)).await;
        }
        let mut dropping = self.dropping.subscribe();
        let _closed = dropping.wait_for(|dropping| !dropping).await;
    }

    async fn pass_back(
        &self,
        mut postgres: FromPostgres,
        mut server: OwnedWriteHalf,
        answered: &Notify,
        muted: watch::Receiver<bool>,
    ) {
        let mut buffer = vec![0; 16_384];
        while let Ok(count @ 1..) = postgres.read(&mut buffer).await {
            answered.notify_one();
            if *muted.borrow() {
                continue;
            }
            self.pause().await;
            if server.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    }

    /// Message by message, so that a COMMIT is seen before it is passed on.
    async fn pass_on(
        &self,
        mut server: OwnedReadHalf,
        mut postgres: ToPostgres,
        answered: &Notify,
        muted: &watch::Sender<bool>,
    ) {
        let mut first = true;
        let mut commits = Commits::default();
        while let Some(message) = read_message(&mut server, std::mem::take(&mut first)).await {
            self.pause().await;
            let cut = if commits.is_one(&message) {
                self.next_cut()
            } else {
                None
            };
            let Some(cut) = cut else {
                if postgres.write_all(&message).await.is_err() {
                    break;
                }
                continue;
            };
            self.met.fetch_add(1, Ordering::SeqCst);
            muted.send_replace(true);
            if cut == Cut::Before {
                break;
            }
            // An answer to what came before it is not the one that is waited for.
            let _earlier = tokio::time::timeout(Duration::ZERO, answered.notified()).await;
            if postgres.write_all(&message).await.is_ok() && cut == Cut::Answer {
                answered.notified().await;
            }
            break;
        }
    }

    fn next_cut(&self) -> Option<Cut> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Where the transactions of one connection are committed.
#[derive(Default)]
struct Commits {
    /// The name that the connection gave to the statement that writes dispatches.
    write: Option<Vec<u8>>,
    /// Between BEGIN and COMMIT.
    begun: bool,
    /// That statement is to be executed outside of it.
    writes_alone: bool,
}

impl Commits {
    /// Whether this message commits: a simple query whose last statement is COMMIT, or what follows a write alone.
    fn is_one(&mut self, message: &[u8]) -> bool {
        let mut texts = message.get(5..).unwrap_or_default().split(|byte| *byte == 0);
        match message.first() {
            Some(b'P') => {
                let name = texts.next().unwrap_or_default();
                if texts
                    .next()
                    .is_some_and(|query| query.starts_with(b"-- solejob write:"))
                {
                    self.write = Some(name.to_vec());
                }
                false
            }
            Some(b'B') => {
                let name = texts.nth(1);
                self.writes_alone = !self.begun && name.is_some() && name == self.write.as_deref();
                false
            }
            Some(b'S') => std::mem::take(&mut self.writes_alone),
            Some(b'Q') => {
                let text = String::from_utf8_lossy(texts.next().unwrap_or_default()).to_ascii_lowercase();
                let text = text.trim_end_matches([';', ' ', '\n']);
                self.begun = text.starts_with("begin");
                text.rsplit(';').next().is_some_and(|last| last.trim() == "commit")
            }
            _ => false,
        }
    }
}

/// A message of the protocol, whole. Only the first one has no kind.
async fn read_message(server: &mut OwnedReadHalf, first: bool) -> Option<Vec<u8>> {
    let head = if first { 4 } else { 5 };
    let mut message = vec![0; head];
    server.read_exact(&mut message).await.ok()?;
    let length = message[head - 4..].try_into().map(u32::from_be_bytes).ok()?;
    let rest = usize::try_from(length).ok()?.checked_sub(4)?;
    message.resize(head + rest, 0);
    server.read_exact(&mut message[head..]).await.ok()?;
    Some(message)
}

#[test]
fn a_commit_is_known_by_its_last_statement_and_a_write_alone_by_what_follows_it() {
    let message = |kind: u8, text: &str| [&[kind, 0, 0, 0, 0], text.as_bytes(), b"\0"].concat();
    let mut commits = Commits::default();
    for text in ["COMMIT", "commit;", "select 1; COMMIT"] {
        assert!(commits.is_one(&message(b'Q', text)), "{text}");
    }
    for text in ["ROLLBACK", "select 'commit' as x", "begin; select 1"] {
        assert!(!commits.is_one(&message(b'Q', text)), "{text}");
    }
    let write = [
        message(b'P', "s1\0-- solejob write: it"),
        message(b'B', "\0s1"),
        message(b'E', ""),
        message(b'S', ""),
    ];
    let seen = |commits: &mut Commits| write.each_ref().map(|message| commits.is_one(message));
    assert_eq!(seen(&mut commits), [false; 4], "it is within a transaction");
    assert!(commits.is_one(&message(b'Q', "commit")));
    assert_eq!(seen(&mut commits), [false, false, false, true]);
    assert!(!commits.is_one(&message(b'S', "")), "nothing was written since");
}
