//! Between a server and PostgreSQL: cuts connections around a COMMIT, or altogether. A write that is a transaction of its
//! own is committed by the message that asks for its answer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use reqwest::Url;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, watch};

/// What servers do of their own accord, now and then.
const UPKEEP: [&str; 4] = ["sweep_jobs", "sweep_keys", "fold_counts", "unblock_missed"];

/// What becomes of a COMMIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// PostgreSQL commits and answers. The answer goes nowhere, and then the connection is cut.
    Swallow,
    /// PostgreSQL gets it, and the server's side is cut at once. PostgreSQL does not notice.
    CutServerSide,
    /// PostgreSQL gets it, and both sides are cut at once.
    CutBoth,
    /// PostgreSQL never gets it; both sides are cut.
    CutBefore,
}

impl Fault {
    pub(super) const ALL: [Fault; 4] = [Fault::Swallow, Fault::CutServerSide, Fault::CutBoth, Fault::CutBefore];
}

#[derive(Clone)]
enum Target {
    Socket(PathBuf),
    Tcp(String, u16),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

struct Shared {
    target: Target,
    faults: Mutex<VecDeque<Fault>>,
    /// Goes away after the next fault.
    last: Mutex<bool>,
    met: AtomicUsize,
    /// Whether connections are taken, and kept.
    open: watch::Sender<bool>,
    /// How many connections there are.
    live: watch::Sender<usize>,
    /// The connection is cut on which this statement is to be executed, once.
    cut_at: Mutex<Option<&'static str>>,
    /// Nothing passes any more from this statement on, once; and whether PostgreSQL still gets it.
    hole_at: Mutex<Option<(&'static str, bool)>>,
    /// Whether what is sent goes nowhere, and nobody says so.
    dark: watch::Sender<bool>,
    /// What each connection has had executed, by the names of the statements.
    sent: Mutex<Vec<Vec<String>>>,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    /// Leads to the database through the proxy.
    pub(super) url: String,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn before(database_url: &str) -> Self {
        let options: PgConnectOptions = database_url.parse().expect("a URL of PostgreSQL");
        let (host, port) = (options.get_host(), options.get_port());
        let socket = options
            .get_socket()
            .cloned()
            .or_else(|| host.starts_with('/').then(|| host.into()));
        let target = match socket {
            Some(directory) => Target::Socket(directory.join(format!(".s.PGSQL.{port}"))),
            None => Target::Tcp(host.to_owned(), port),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let original: Url = database_url.parse().expect("a URL");
        let mut url: Url = "postgres://127.0.0.1".parse().expect("a URL");
        let port = listener.local_addr().expect("an address").port();
        url.set_port(Some(port)).expect("a host has a port");
        url.set_username(options.get_username()).expect("a host has users");
        let password = original.query_pairs().find(|(name, _)| name == "password");
        let password = password.map(|(_, value)| value.into_owned());
        url.set_password(original.password().or(password.as_deref()))
            .expect("a host has users");
        url.set_path(options.get_database().expect("a database is named"));
        // Encrypted, a COMMIT could not be told from the rest.
        url.set_query(Some("sslmode=disable"));
        let shared = Arc::new(Shared {
            target,
            faults: Mutex::default(),
            last: Mutex::default(),
            met: AtomicUsize::new(0),
            open: watch::Sender::new(true),
            live: watch::Sender::new(0),
            cut_at: Mutex::default(),
            hole_at: Mutex::default(),
            dark: watch::Sender::new(false),
            sent: Mutex::default(),
        });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Who is not welcome is hung up on.
                if *accepting.open.borrow() {
                    accepting.live.send_modify(|live| *live += 1);
                    let shared = accepting.clone();
                    tokio::spawn(async move {
                        shared.serve(client).await;
                        shared.live.send_modify(|live| *live -= 1);
                    });
                }
            }
        });
        Proxy {
            shared,
            url: url.into(),
            task,
        }
    }

    /// The next COMMITs meet these.
    pub(super) fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.faults.lock().unwrap().extend(faults);
    }

    /// The next COMMIT meets this, and then the database is gone.
    pub(super) fn plan_last(&self, fault: Fault) {
        *self.shared.last.lock().unwrap() = true;
        self.plan([fault]);
    }

    /// How many COMMITs met a fault.
    pub(super) fn met(&self) -> usize {
        self.shared.met.load(Ordering::SeqCst)
    }

    /// The next time that this statement is to be executed, PostgreSQL never gets it, and both sides are cut.
    pub(super) fn cut_at(&self, statement: &'static str) {
        *self.shared.cut_at.lock().unwrap() = Some(statement);
    }

    /// From the moment that this statement is executed the next time, nothing passes on any connection, and nobody says
    /// so. Whether PostgreSQL gets that statement.
    pub(super) fn darken_at(&self, statement: &'static str, delivered: bool) {
        *self.shared.hole_at.lock().unwrap() = Some((statement, delivered));
    }

    /// From now on nothing passes, and nobody says so.
    pub(super) fn darken(&self) {
        self.shared.dark.send_replace(true);
    }

    /// Waits until nothing passes any more.
    pub(super) async fn until_dark(&self) {
        let mut dark = self.shared.dark.subscribe();
        dark.wait_for(|dark| *dark).await.expect("it is watched");
    }

    /// New connections pass. Those that were there stay silent.
    pub(super) fn lighten(&self) {
        self.shared.dark.send_replace(false);
    }

    /// What the connections have had executed since this was last asked, those that had anything: statements by
    /// name, each a round trip.
    pub(crate) fn sent(&self) -> Vec<Vec<String>> {
        let mut all = self.shared.sent.lock().unwrap();
        let sent = all.iter_mut().map(std::mem::take);
        sent.filter(|sent| !sent.is_empty()).collect()
    }

    /// Cuts every connection, and takes no more.
    pub(super) async fn go_away(&self) {
        self.shared.open.send_replace(false);
        let mut live = self.shared.live.subscribe();
        live.wait_for(|live| *live == 0).await.expect("it is watched");
    }

    pub(super) fn come_back(&self) {
        self.shared.open.send_replace(true);
    }

    /// Cuts every connection, and takes new ones.
    pub(super) async fn restart(&self) {
        self.go_away().await;
        self.come_back();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The way to the server; nothing once it is cut.
type Answers = Arc<tokio::sync::Mutex<Option<tokio::net::tcp::OwnedWriteHalf>>>;

impl Shared {
    async fn serve(&self, client: TcpStream) {
        let (mut open, mut dark) = (self.open.subscribe(), self.dark.subscribe());
        let postgres: Box<dyn Stream> = match &self.target {
            Target::Socket(path) => Box::new(UnixStream::connect(path).await.expect("PostgreSQL is there")),
            Target::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                Box::new(stream.expect("PostgreSQL is there"))
            }
        };
        let (requests, answers) = client.into_split();
        let answers: Answers = Arc::new(tokio::sync::Mutex::new(Some(answers)));
        let (from_postgres, to_postgres) = split(postgres);
        let answered = Arc::new(Notify::new());
        let back = pass_back(from_postgres, answers.clone(), answered.clone());
        let there = self.pass_on(requests, to_postgres, &answers, &answered);
        let mut passing = pin!(async { tokio::join!(back, there) });
        // Any change of mind cuts: it is closed, or was for a moment.
        tokio::select! {
            biased;
            // Both ends are kept open, so that neither hears anything, of the other or of an end.
            () = async { drop(dark.wait_for(|dark| *dark).await) } => std::future::pending().await,
            _ = open.changed() => {}
            _ = &mut passing => {}
        }
    }

    /// Message by message, so that a COMMIT is seen before it is passed on.
    async fn pass_on(
        &self,
        mut requests: OwnedReadHalf,
        mut postgres: WriteHalf<Box<dyn Stream>>,
        answers: &Answers,
        answered: &Notify,
    ) {
        let mut first = true;
        let mut statements = Statements::default();
        let mut names = HashMap::new();
        let place = {
            let mut sent = self.sent.lock().unwrap();
            sent.push(Vec::new());
            sent.len() - 1
        };
        while let Some(message) = read_message(&mut requests, std::mem::take(&mut first)).await {
            let commits = statements.note(&message);
            if let Some(executed) = executed(&mut names, &message) {
                if self.cut_at.lock().unwrap().take_if(|name| *name == executed).is_some() {
                    self.met.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                let dark = self.hole_at.lock().unwrap().take_if(|(name, _)| *name == executed);
                if let Some((_, delivered)) = dark {
                    if delivered {
                        let _ = postgres.write_all(&message).await;
                        // What makes PostgreSQL act on it comes behind it.
                        if message.first() != Some(&b'Q') {
                            let _ = pass_until_sync(&mut requests, &mut postgres).await;
                        }
                    }
                    self.met.fetch_add(1, Ordering::SeqCst);
                    self.dark.send_replace(true);
                    return std::future::pending().await;
                }
                self.sent.lock().unwrap()[place].push(executed);
            }
            let fault = if commits { self.next_fault() } else { None };
            let Some(fault) = fault else {
                if postgres.write_all(&message).await.is_err() {
                    break;
                }
                continue;
            };
            // From here on nothing reaches the server any more.
            let muted = answers.lock().await.take();
            if fault != Fault::CutBefore {
                let _ = postgres.write_all(&message).await;
            }
            match fault {
                Fault::Swallow => answered.notified().await,
                Fault::CutServerSide => {
                    drop((muted, requests));
                    self.went(fault);
                    answered.notified().await;
                    return;
                }
                Fault::CutBoth | Fault::CutBefore => {}
            }
            self.went(fault);
            break;
        }
        let _ = postgres.shutdown().await;
        answers.lock().await.take();
    }

    fn next_fault(&self) -> Option<Fault> {
        self.faults.lock().unwrap().pop_front()
    }

    fn went(&self, fault: Fault) {
        self.met.fetch_add(1, Ordering::SeqCst);
        // Not while PostgreSQL still commits: it is to do that undisturbed.
        if std::mem::take(&mut *self.last.lock().unwrap()) && fault != Fault::CutServerSide {
            self.open.send_replace(false);
        }
    }
}

/// The name of the statement that a message has executed. `names` are those that this connection has prepared.
fn executed(names: &mut HashMap<Vec<u8>, String>, message: &[u8]) -> Option<String> {
    let mut texts = message.get(5..)?.split(|byte| *byte == 0);
    match message.first()? {
        b'P' => {
            let (name, query) = (texts.next()?, String::from_utf8_lossy(texts.next()?).into_owned());
            names.insert(name.to_vec(), title(&query));
            None
        }
        b'B' => names.get(texts.nth(1)?).cloned(),
        b'Q' => Some(title(&String::from_utf8_lossy(texts.next()?))),
        _ => None,
    }
}

/// What stands behind `-- solejob`, or the first word.
fn title(query: &str) -> String {
    let words = query.trim_start().trim_start_matches("-- solejob ");
    let title = words.split([' ', ':', ';']).next().unwrap_or_default();
    title.to_lowercase()
}

/// Statements by the name that a connection gave them, and what its transaction used.
#[derive(Default)]
struct Statements {
    upkeep: HashSet<Vec<u8>>,
    used_upkeep: bool,
    write: Option<Vec<u8>>,
    /// Between BEGIN and COMMIT.
    begun: bool,
    /// A write is to be executed outside of that.
    writes_alone: bool,
}

impl Statements {
    /// Notes a message; whether it commits a transaction that somebody asked for, and that is not upkeep.
    fn note(&mut self, message: &[u8]) -> bool {
        let mut texts = message.get(5..).unwrap_or_default().split(|byte| *byte == 0);
        match message.first() {
            Some(b'P') => {
                let (name, query) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
                let query = String::from_utf8_lossy(query);
                if UPKEEP.iter().any(|name| query.contains(&format!("-- solejob {name}:"))) {
                    self.upkeep.insert(name.to_vec());
                } else {
                    self.upkeep.remove(name);
                }
                if query.starts_with("-- solejob write:") {
                    self.write = Some(name.to_vec());
                }
                false
            }
            Some(b'B') => {
                let name = texts.nth(1);
                self.used_upkeep |= name.is_some_and(|name| self.upkeep.contains(name));
                self.writes_alone = !self.begun && name.is_some() && name == self.write.as_deref();
                false
            }
            Some(b'S') => std::mem::take(&mut self.writes_alone),
            // A transaction begins or ends.
            Some(b'Q') => {
                let text = texts.next().unwrap_or_default().to_ascii_lowercase();
                self.begun = text.starts_with(b"begin");
                text == b"commit" && !std::mem::take(&mut self.used_upkeep)
            }
            _ => false,
        }
    }
}

/// Reads on when the server is no longer there, so that PostgreSQL can finish.
async fn pass_back(mut postgres: ReadHalf<Box<dyn Stream>>, answers: Answers, answered: Arc<Notify>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = postgres.read(&mut buffer).await {
        let mut answers = answers.lock().await;
        match &mut *answers {
            Some(server) => {
                if server.write_all(&buffer[..count]).await.is_err() {
                    answers.take();
                }
            }
            None => answered.notify_one(),
        }
    }
    answers.lock().await.take();
    answered.notify_one();
}

/// Passes on what belongs to a statement.
async fn pass_until_sync(requests: &mut OwnedReadHalf, postgres: &mut WriteHalf<Box<dyn Stream>>) -> Option<()> {
    loop {
        let message = read_message(requests, false).await?;
        postgres.write_all(&message).await.ok()?;
        if message.first() == Some(&b'S') {
            return Some(());
        }
    }
}

/// One message of the frontend: all but the first begin with their type.
async fn read_message(requests: &mut OwnedReadHalf, first: bool) -> Option<Vec<u8>> {
    let mut message = vec![0; if first { 4 } else { 5 }];
    requests.read_exact(&mut message).await.ok()?;
    let length = u32::from_be_bytes(message[message.len() - 4..].try_into().expect("four bytes"));
    let head = message.len();
    message.resize(head + (length as usize).checked_sub(4)?, 0);
    requests.read_exact(&mut message[head..]).await.ok()?;
    Some(message)
}
