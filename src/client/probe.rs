//! Asks a server on this machine whether it is ready, for those that watch it: without a token, without a second try.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::Error;

const WITHIN: Duration = Duration::from_secs(3);

/// The status of `/readyz`.
pub async fn readiness(address: SocketAddr, over_tls: bool) -> Result<u16, Error> {
    let url = format!("{}://{address}", if over_tls { "https" } else { "http" });
    let asked = async {
        let stream = TcpStream::connect(address).await?;
        if over_tls {
            let stream = connector()?.connect(ServerName::from(address.ip()), stream).await?;
            ask(stream).await
        } else {
            ask(stream).await
        }
    };
    let unreachable = |reason: String| Error::Unreachable {
        url: url.clone(),
        reason,
    };
    let answer = tokio::time::timeout(WITHIN, asked)
        .await
        .map_err(|_| unreachable(format!("there was no answer within {} s", WITHIN.as_secs())))?
        .map_err(|error| unreachable(error.to_string()))?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| Error::Strange("what answers there speaks no HTTP/1.1".into()))
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<String> {
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await?;
    let mut head = [0; 64];
    let mut read = 0;
    while read < head.len() && !head[..read].contains(&b'\n') {
        match stream.read(&mut head[read..]).await? {
            0 => break,
            more => read += more,
        }
    }
    Ok(String::from_utf8_lossy(&head[..read]).into_owned())
}

fn connector() -> std::io::Result<TlsConnector> {
    let provider = rustls::crypto::ring::default_provider();
    let anybody = Anybody(provider.signature_verification_algorithms);
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(anybody))
        .with_no_client_auth();
    Ok(Arc::new(config).into())
}

/// Believes every certificate. It names the host that clients call, and never the loopback that is called here; nothing
/// is sent that anybody may not read, and nothing is believed but that somebody answers.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
