//! TLS: what is served over it, with which certificate, and what becomes of those who do not get through the handshake.
//!
//! The files in `tls/` are made with openssl and mean nothing anywhere else: two certificates for localhost of one
//! authority, whose key is thrown away, and another authority that nobody here knows. They last until 2126.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{App, Cli, Scratch, Server, eventually, solejob};

/// For a busy machine.
const BY_THEN: Duration = Duration::from_secs(15);

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name)
}

fn path(name: &str) -> String {
    file(name).to_str().expect("the path is UTF-8").to_owned()
}

/// A server beside the application's own that speaks TLS with these files.
async fn server(app: &App, certificate: &str, key: &str, args: &[&str]) -> Server {
    let mut command = solejob(app.database_url());
    command.args(["serve", "--anonymous", "--listen", "127.0.0.1:0"]);
    command.args(["--tls-cert", certificate, "--tls-key", key]).args(args);
    let server = Server::start(command).await;
    assert!(server.base.starts_with("https://127.0.0.1:"), "{}", server.base);
    server
}

fn address(server: &Server) -> &str {
    server.base.trim_start_matches("https://")
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(address(server)).await.unwrap()
}

/// A client that trusts the authority and offers these protocols.
async fn shake(server: &Server, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(file("authority.pem")).unwrap())
        .unwrap();
    let provider = rustls::crypto::ring::default_provider();
    let mut config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = connect(server).await;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The certificate that a new connection is shown.
async fn shown(server: &Server) -> CertificateDer<'static> {
    let stream = shake(server, &[]).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file(name)).unwrap()
}

async fn healthy(stream: &mut TlsStream<TcpStream>) {
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut said = [0; 4_096];
    let length = stream.read(&mut said).await.unwrap();
    let said = String::from_utf8_lossy(&said[..length]);
    assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
}

async fn logged(server: &Server, text: &str, times: usize) {
    eventually(text, async || {
        let log = server.log.text();
        if log.matches(text).count() == times {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
}

/// All that comes until the server hangs up.
async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let ended = tokio::time::timeout(BY_THEN, stream.read_to_end(&mut bytes)).await;
    // A reset is as good an end as any.
    let _how = ended.expect("the server never hung up");
    bytes
}

#[tokio::test]
async fn commands_call_over_tls_and_believe_whom_they_are_told_to() {
    let app = App::start().await;
    let server = server(&app, &path("first.pem"), &path("first.key"), &[]).await;
    let dispatch = ["dispatch", "n", "--payload", "1", "--retry-for", "0s", "--json"];
    let knows = |authority: &str| Cli::new(&server.base).env("SSL_CERT_FILE", &path(authority));
    let receipt = knows("authority.pem").run(&dispatch, 0).await.json();
    assert_eq!(receipt["disposition"], "created");
    let refused = knows("stranger.pem").run(&dispatch, 5).await.stderr;
    assert!(refused.contains("certificate"), "{refused}");

    let cli = Cli::new(&server.base);
    let listen = ["healthcheck", "--listen", address(&server)];
    cli.run(&[&listen[..], &["--tls-cert", &path("first.pem")]].concat(), 0)
        .await;
    cli.run(&listen, 1).await;
    // No request in plain HTTP is taken for one.
    let mut plain = connect(&server).await;
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let said = rest(plain).await;
    assert!(!String::from_utf8_lossy(&said).contains("HTTP/1.1"), "{said:?}");
    app.finish().await;
}

#[tokio::test]
async fn one_protocol_is_spoken_over_tls() {
    let app = App::start().await;
    let server = server(&app, &path("first.pem"), &path("first.key"), &[]).await;
    let mut stream = shake(&server, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    healthy(&mut stream).await;
    let refused = shake(&server, &["h2"]).await.map(drop);
    assert!(refused.is_err(), "HTTP/2 was promised");
    app.finish().await;
}

#[tokio::test]
async fn a_new_certificate_is_used_from_the_next_connection_on_and_a_bad_one_never() {
    let app = App::start().await;
    let scratch = Scratch::new();
    let put = |name: &str, from: &str| scratch.write(name, std::fs::read(file(from)).unwrap());
    let (in_use, key) = (put("cert", "first.pem"), put("key", "first.key"));
    let server = server(&app, &in_use, &key, &[]).await;
    let hang_up = || kill_process(Pid::from_child(&server.child), Signal::HUP).unwrap();
    let mut kept = shake(&server, &[]).await.unwrap();
    healthy(&mut kept).await;
    assert_eq!(shown(&server).await, certificate("first.pem"));

    // Half of a renewal: the certificate is new and the key is not.
    put("cert", "second.pem");
    hang_up();
    logged(&server, "the one before stays in use", 1).await;
    assert!(
        server.log.text().contains("is not that of the certificate"),
        "{}",
        server.log.text()
    );
    assert_eq!(shown(&server).await, certificate("first.pem"));
    // Nothing there at all.
    std::fs::remove_file(&in_use).unwrap();
    hang_up();
    logged(&server, "the one before stays in use", 2).await;
    assert_eq!(shown(&server).await, certificate("first.pem"));

    put("cert", "second.pem");
    put("key", "second.key");
    hang_up();
    logged(&server, "certificate and key are read again", 1).await;
    assert_eq!(shown(&server).await, certificate("second.pem"));
    healthy(&mut kept).await;
    app.finish().await;
}

#[tokio::test]
async fn who_finds_no_room_hears_so_over_tls() {
    let app = App::start().await;
    let one = ["--http-connections", "1"];
    let server = server(&app, &path("first.pem"), &path("first.key"), &one).await;
    let mut only = shake(&server, &[]).await.unwrap();
    healthy(&mut only).await;
    let mut other = shake(&server, &[]).await.unwrap();
    other
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut said = Vec::new();
    other.read_to_end(&mut said).await.unwrap();
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.starts_with("HTTP/1.1 503 ") && said.contains("overloaded"),
        "{said}"
    );
    healthy(&mut only).await;
    app.finish().await;
}

/// Without TLS there is nothing to read again; it is no reason to end either.
#[tokio::test]
async fn a_server_without_files_outlives_a_hang_up() {
    let app = App::start().await;
    let mut command = solejob(app.database_url());
    command.args(["serve", "--anonymous", "--listen", "127.0.0.1:0"]);
    let mut server = Server::start(command).await;
    kill_process(Pid::from_child(&server.child), Signal::HUP).unwrap();
    logged(&server, "there are no files to read again", 1).await;
    assert_eq!(server.stop().await.code(), Some(0));
    app.finish().await;
}

#[tokio::test]
async fn a_handshake_that_stalls_is_given_up() {
    let app = App::start().await;
    let server = server(
        &app,
        &path("first.pem"),
        &path("first.key"),
        &["--client-patience", "1s"],
    )
    .await;
    // The head of a record that never comes, and a part of a greeting.
    for begun in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut stream = connect(&server).await;
        stream.write_all(begun).await.unwrap();
        assert_eq!(rest(stream).await, b"", "{begun:?}");
    }
    // Who sends a little now and then is not on the way either.
    let mut stream = connect(&server).await;
    stream.write_all(b"\x16\x03\x01\x02\x00").await.unwrap();
    let begun = Instant::now();
    while stream.write_all(b"\x01").await.is_ok() {
        assert!(begun.elapsed() < BY_THEN, "the server never hung up");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    app.finish().await;
}

#[tokio::test]
async fn a_handshake_that_stalls_does_not_hold_the_end_up() {
    let app = App::start().await;
    let mut server = server(&app, &path("first.pem"), &path("first.key"), &[]).await;
    let stalled = connect(&server).await;
    healthy(&mut shake(&server, &[]).await.unwrap()).await;
    let began = Instant::now();
    assert_eq!(server.stop().await.code(), Some(0));
    assert!(began.elapsed() < BY_THEN, "it took {:?}", began.elapsed());
    drop(stalled);
    app.finish().await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named_and_nothing_is_served() {
    let scratch = Scratch::new();
    let (nothing, empty) = (scratch.path("nothing"), scratch.write("empty", "no PEM at all"));
    let broken = scratch.write("broken", "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n");
    let (cert, key, other) = (path("first.pem"), path("first.key"), path("second.key"));
    let cli = Cli::new("http://nowhere.invalid");
    let refused = async |args: &[&str]| {
        let serve = ["serve", "--listen", "127.0.0.1:0"];
        cli.run(&[&serve[..], args].concat(), 2).await.stderr
    };
    for (alone, needed) in [("--tls-cert", "--tls-key"), ("--tls-key", "--tls-cert")] {
        let said = refused(&[alone, &cert]).await;
        assert!(said.contains(needed), "{said}");
    }
    for (cert, key, words) in [
        (&nothing, &key, ["--tls-cert cannot be read", nothing.as_str()]),
        (&cert, &nothing, ["--tls-key cannot be read", nothing.as_str()]),
        (&empty, &key, ["--tls-cert holds no certificate", empty.as_str()]),
        (&key, &key, ["--tls-cert holds no certificate", key.as_str()]),
        (&cert, &empty, ["--tls-key holds no private key", empty.as_str()]),
        (&cert, &broken, ["--tls-key holds what is no PEM", broken.as_str()]),
        (&cert, &other, ["is not that of the certificate", other.as_str()]),
    ] {
        let said = refused(&["--tls-cert", cert, "--tls-key", key]).await;
        for word in words {
            assert!(said.contains(word), "{word} is not in: {said}");
        }
        assert!(!said.contains("MIGH"), "a key is shown: {said}");
    }
}
