//! TLS for clients: a certificate and its key from two files, read at the start and again on demand.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InconsistentKeys, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::config;

/// The one protocol that is spoken here. Who offers others alone is told so in the handshake.
const HTTP_1_1: &[u8] = b"http/1.1";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{option} cannot be read: {file}: {cause}")]
    Unreadable {
        option: &'static str,
        file: String,
        cause: std::io::Error,
    },
    #[error("{option} holds what is no PEM: {file}: {cause}")]
    NoPem {
        option: &'static str,
        file: String,
        cause: String,
    },
    #[error(
        "--tls-cert holds no certificate: {0}: it is a PEM file with the server's certificate first, and behind it those \
         that lead to the authority"
    )]
    NoCertificate(String),
    #[error(
        "--tls-key holds no private key that can be used: {0}: it is a PEM file with one key, not encrypted, that begins \
         with BEGIN PRIVATE KEY, BEGIN RSA PRIVATE KEY or BEGIN EC PRIVATE KEY"
    )]
    NoKey(String),
    #[error("the key of --tls-key is not that of the certificate: {key} does not belong to {certificate}")]
    AnotherKey { certificate: String, key: String },
    #[error("--tls-cert or --tls-key cannot be used: {certificate}, {key}: {cause}")]
    Unusable {
        certificate: String,
        key: String,
        cause: rustls::Error,
    },
}

/// The files, and what was in them when they were last found good.
pub(super) struct Tls {
    files: config::Tls,
    current: RwLock<Arc<ServerConfig>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

impl Tls {
    pub(super) fn load(files: config::Tls) -> Result<Tls, Error> {
        let current = RwLock::new(read(&files)?);
        Ok(Tls { files, current })
    }

    /// Reads the files again. What is wrong with them leaves everything as it was.
    pub(super) fn reload(&self) -> Result<(), Error> {
        let new = read(&self.files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// For a connection that begins now. One that is there keeps what it began with.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .into()
    }
}

fn read(config::Tls { certificate, key }: &config::Tls) -> Result<Arc<ServerConfig>, Error> {
    let chain = certificates(certificate)?;
    let private = private_key(key)?;
    let shown = |path: &Path| path.display().to_string();
    let unusable = |cause| match cause {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => Error::AnotherKey {
            certificate: shown(certificate),
            key: shown(key),
        },
        cause => Error::Unusable {
            certificate: shown(certificate),
            key: shown(key),
            cause,
        },
    };
    let mut config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unusable)?;
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}

fn certificates(file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, Error> {
    let not_read = |cause| no_pem("--tls-cert", file, cause);
    let chain: Vec<_> = CertificateDer::pem_file_iter(file)
        .map_err(not_read)?
        .collect::<Result<_, _>>()
        .map_err(not_read)?;
    if chain.is_empty() {
        return Err(Error::NoCertificate(file.display().to_string()));
    }
    Ok(chain)
}

fn private_key(file: &PathBuf) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_file(file).map_err(|cause| match cause {
        pem::Error::NoItemsFound => Error::NoKey(file.display().to_string()),
        cause => no_pem("--tls-key", file, cause),
    })
}

fn no_pem(option: &'static str, file: &Path, cause: pem::Error) -> Error {
    let file = file.display().to_string();
    match cause {
        pem::Error::Io(cause) => Error::Unreadable { option, file, cause },
        cause => Error::NoPem {
            option,
            file,
            cause: cause.to_string(),
        },
    }
}
