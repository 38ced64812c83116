//! A client of a Solejob server, over HTTP: for the command line. It knows the wire and nothing of how a server works.
//!
//! What the server answers comes back as a [`Document`]: the text to the letter, from which the members that somebody
//! needs are read. A failed request is tried again only where that cannot do anything twice: see [`Repeat`].

mod error;
mod jobs;
mod probe;
mod repeat;
mod worker;

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::Instant;

pub use error::{Error, ItemProblem, Problem, printable};
pub use probe::readiness;
pub use repeat::Repeat;
pub use worker::{Failure, Heartbeat, LeaseToken, Reserve, Reserved};

/// How long the server may take to answer, beside what it was asked to wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// All but what RFC 3986 calls unreserved.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Whom to call, as whom, and how patiently.
#[derive(Clone)]
pub struct Settings {
    /// Where the server is, such as `http://127.0.0.1:8080`.
    pub url: String,
    pub token: Option<String>,
    /// How long a request is tried again, counted from its first failure.
    pub retry_for: Duration,
}

/// A client; clones share their connections.
#[derive(Clone)]
pub struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Body>,
    /// Without a slash at its end.
    base: String,
    authorization: Option<HeaderValue>,
    retry_for: Duration,
}

type Body = Full<Cursor<Arc<[u8]>>>;

/// What a server answered, as it came.
#[derive(Clone, Debug)]
pub struct Document(pub String);

impl Document {
    /// Reads the members that are asked for. Others may be there: a newer server has more to say.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        serde_json::from_str(&self.0)
            .map_err(|error| Error::Strange(format!("its JSON is not the one expected: {error}")))
    }
}

/// A request on its way.
struct Call {
    method: Method,
    /// Path and query, encoded.
    path: String,
    body: Option<String>,
    repeat: Repeat,
    /// How long the server was asked to wait before it answers.
    wait: Duration,
    /// Whether it was asked by a `Prefer` header.
    prefer: bool,
    /// How long each try may take, beside that wait.
    answer_within: Duration,
    /// Until when it is tried again, if not for the client's `retry_for`.
    until: Option<Instant>,
}

impl Call {
    fn new(method: Method, path: impl Into<String>, repeat: Repeat) -> Call {
        Call {
            method,
            path: path.into(),
            body: None,
            repeat,
            wait: Duration::ZERO,
            prefer: false,
            answer_within: ANSWER_WITHIN,
            until: None,
        }
    }

    fn body(mut self, body: impl Into<String>) -> Call {
        self.body = Some(body.into());
        self
    }

    fn prefer_wait(mut self, wait: Option<Duration>) -> Call {
        self.prefer = wait.is_some();
        self.wait = wait.unwrap_or_default();
        self
    }

    fn until(mut self, until: Instant) -> Call {
        self.until = Some(until);
        self
    }
}

/// A text as one segment of a path, or one part of a query.
fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

impl Client {
    pub fn new(Settings { url, token, retry_for }: Settings) -> Result<Client, Error> {
        let invalid = |reason: &str| Error::Settings(format!("{reason}: give a URL such as http://127.0.0.1:8080"));
        let base: Uri = url
            .trim_end_matches('/')
            .parse()
            .map_err(|_| invalid("the server's URL is not one"))?;
        if !matches!(base.scheme_str(), Some("http" | "https")) || base.query().is_some() {
            return Err(invalid(
                "the server's URL has to begin with http:// or https:// and to have no query",
            ));
        }
        if base
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err(Error::Settings(
                "the server's URL names a user: servers know tokens alone, so give one with SOLEJOB_TOKEN".into(),
            ));
        }
        let authorization = token.map(|token| {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| Error::Settings("the token holds a character that no token has".into()))?;
            value.set_sensitive(true);
            Ok(value)
        });
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_WITHIN));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // Shorter than servers and balancers usually keep theirs, so that few requests meet a closed one.
            .pool_idle_timeout(Duration::from_secs(15))
            .build(tls(connector, base.scheme_str() == Some("https"))?);
        Ok(Client {
            http,
            base: base.to_string().trim_end_matches('/').into(),
            authorization: authorization.transpose()?,
            retry_for,
        })
    }

    /// Sends a request, and again where that is safe, until there is an answer or the time for it is over.
    async fn call(&self, call: Call) -> Result<Document, Error> {
        let body: Arc<[u8]> = call.body.as_deref().unwrap_or_default().as_bytes().into();
        let mut deadline = call.until;
        let mut round = 0;
        loop {
            let error = match self.send(&call, &body).await {
                Ok(document) => return Ok(document),
                Err(error) => error,
            };
            let Some(pause) = repeat::pause(&error, call.repeat, round, rand::random()) else {
                return Err(error);
            };
            let again_at = Instant::now() + pause;
            if again_at > *deadline.get_or_insert_with(|| Instant::now() + self.retry_for) {
                return Err(error);
            }
            tracing::debug!(%error, ?pause, "trying again");
            tokio::time::sleep_until(again_at).await;
            round += 1;
        }
    }

    async fn send(&self, call: &Call, body: &Arc<[u8]>) -> Result<Document, Error> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.base, call.path))
            .header(USER_AGENT, concat!("solejob/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json, application/problem+json");
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if call.prefer {
            request = request.header("prefer", format!("wait={}", call.wait.as_secs()));
        }
        let request = request.body(Full::new(Cursor::new(body.clone())));
        let request = request.map_err(|error| Error::Settings(format!("the request cannot be written: {error}")))?;
        let exchange = async {
            let response = self.http.request(request).await.map_err(|error| {
                let reason = error::chain(&error);
                match error.is_connect() {
                    true => Error::Unreachable {
                        url: self.base.clone(),
                        reason,
                    },
                    false => Error::Lost(reason),
                }
            })?;
            let (head, body) = response.into_parts();
            let body = body
                .collect()
                .await
                .map_err(|error| Error::Lost(error::chain(&error)))?;
            Ok((head, body.to_bytes()))
        };
        let patience = call.answer_within + call.wait;
        let (head, body) = tokio::time::timeout(patience, exchange)
            .await
            .map_err(|_| Error::Lost(format!("there was no answer within {} s", patience.as_secs())))??;
        error::read(&head, &body)
    }
}

/// Certificates are looked for only where they are needed: a machine that has none can still call over http.
fn tls(connector: HttpConnector, needed: bool) -> Result<HttpsConnector<HttpConnector>, Error> {
    let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Settings(format!("TLS cannot be used: {error}")))?;
    let config = if needed {
        let found = config.with_native_roots();
        found.map_err(|error| Error::Settings(format!("no certificates of authorities were found: {error}")))?
    } else {
        config.with_root_certificates(rustls::RootCertStore::empty())
    };
    let builder = HttpsConnectorBuilder::new().with_tls_config(config.with_no_client_auth());
    Ok(builder.https_or_http().enable_http1().wrap_connector(connector))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<Client, Error> {
        Client::new(Settings {
            url: url.into(),
            token: Some("sole_secret".into()),
            retry_for: Duration::ZERO,
        })
    }

    #[test]
    fn urls_of_servers_are_checked() {
        for (url, base) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
            ("http://jobs.internal/solejob/", "http://jobs.internal/solejob"),
        ] {
            assert_eq!(client(url).unwrap_or_else(|error| panic!("{url}: {error}")).base, base);
        }
        for url in [
            "",
            "127.0.0.1:8080",
            "ftp://x",
            "http://u:p@x",
            "http://x/?a=b",
            "unix:/x",
            "http://",
        ] {
            let error = client(url).err().unwrap_or_else(|| panic!("{url} was accepted"));
            assert!(!error.to_string().contains("u:p"), "{error}");
        }
    }

    #[test]
    fn parts_of_paths_stay_parts() {
        assert_eq!(escaped("a/../b?c=d&e#f g"), "a%2F..%2Fb%3Fc%3Dd%26e%23f%20g");
        assert_eq!(escaped("0193a5c4-9f3e_x~1.é"), "0193a5c4-9f3e_x~1.%C3%A9");
    }
}
