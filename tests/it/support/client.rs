//! An HTTP client for tests: every call names the status it expects.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Method, Url};
use serde_json::Value;

use super::document;

/// What a call may be answered with.
pub(crate) trait Status: Debug {
    fn allows(&self, status: u16) -> bool;
}

impl Status for u16 {
    fn allows(&self, status: u16) -> bool {
        *self == status
    }
}

impl<const N: usize> Status for [u16; N] {
    fn allows(&self, status: u16) -> bool {
        self.contains(&status)
    }
}

impl Status for RangeInclusive<u16> {
    fn allows(&self, status: u16) -> bool {
        self.contains(&status)
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// The body as JSON, if it is JSON.
    pub(crate) body: Option<Value>,
    pub(crate) took: Duration,
}

impl Answer {
    pub(crate) fn new(status: u16, headers: HeaderMap, body: &[u8], took: Duration) -> Self {
        let text = String::from_utf8_lossy(body).into_owned();
        Answer {
            status,
            headers,
            body: document::parse(&text).ok(),
            text,
            took,
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The value at a JSON pointer; `null` where there is none.
    pub(crate) fn at(&self, pointer: &str) -> &Value {
        self.body
            .as_ref()
            .and_then(|body| document::at(body, pointer))
            .unwrap_or(&Value::Null)
    }

    /// The text at a JSON pointer; fails where there is none.
    pub(crate) fn str(&self, pointer: &str) -> &str {
        match self.at(pointer).as_str() {
            Some(text) => text,
            None => panic!("no text at {pointer} in {}", self.text),
        }
    }

    pub(crate) fn job_id(&self) -> &str {
        self.str("/job_id")
    }

    /// Checks that this is a problem as every error must be: RFC 9457, with this status and code.
    pub(crate) fn assert_problem(&self, status: u16, codes: &[&str]) {
        let shown = self.text.chars().take(600).collect::<String>();
        assert_eq!(self.status, status, "wanted {status} {codes:?}, got {shown}");
        let kind = self.header("content-type").unwrap_or_default();
        assert!(
            kind.starts_with("application/problem+json"),
            "a problem came as `{kind}`: {shown}"
        );
        let code = self.str("/code");
        assert!(codes.contains(&code), "wanted one of {codes:?}, got {shown}");
        assert_eq!(self.at("/status"), &Value::from(status), "status in the body: {shown}");
        assert_eq!(self.str("/type"), format!("/errors/{code}"), "{shown}");
        assert!(!self.str("/title").is_empty(), "{shown}");
        assert!(!self.str("/detail").is_empty(), "{shown}");
        assert!(self.header("x-request-id").is_some(), "no request id beside {shown}");
    }
}

/// One request as the black-box cases and the hostile tests write it.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Vec<u8>>,
}

impl Call {
    /// A post of JSON.
    pub(crate) fn json(path: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        Call {
            method: Method::POST,
            path: path.to_owned(),
            headers,
            body: Some(body.into()),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<String>,
}

impl Client {
    pub(crate) fn new(base: &str) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .timeout(Duration::from_secs(60));
        let http = http.build().expect("building a client cannot fail");
        Client {
            http,
            base: base.parse().expect("the server prints a URL"),
            token: None,
        }
    }

    /// The same client, acting with this token.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Client {
            token: Some(token.to_owned()),
            ..self.clone()
        }
    }

    /// `host:port`, for tests that write bytes themselves.
    pub(crate) fn address(&self) -> String {
        format!(
            "{}:{}",
            self.base.host_str().expect("a host"),
            self.base.port().expect("a port")
        )
    }

    pub(crate) async fn get(&self, path: &str, expected: impl Status) -> Answer {
        self.call(Method::GET, path, None, expected).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value, expected: impl Status) -> Answer {
        self.call(Method::POST, path, Some(body.to_string().into_bytes()), expected)
            .await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value, expected: impl Status) -> Answer {
        self.call(Method::PUT, path, Some(body.to_string().into_bytes()), expected)
            .await
    }

    /// Without a body, as `curl -X POST` sends it.
    pub(crate) async fn post_nothing(&self, path: &str, expected: impl Status) -> Answer {
        self.call(Method::POST, path, None, expected).await
    }

    /// A body written by hand, sent as JSON.
    pub(crate) async fn post_raw(&self, path: &str, body: impl Into<Vec<u8>>, expected: impl Status) -> Answer {
        self.call(Method::POST, path, Some(body.into()), expected).await
    }

    pub(crate) async fn delete(&self, path: &str, expected: impl Status) -> Answer {
        self.call(Method::DELETE, path, None, expected).await
    }

    async fn call(&self, method: Method, path: &str, body: Option<Vec<u8>>, expected: impl Status) -> Answer {
        let mut headers = HeaderMap::new();
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let what = format!("{method} {path}");
        let answer = self
            .send(Call {
                method,
                path: path.to_owned(),
                headers,
                body,
            })
            .await;
        let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
        let shown = answer.text.chars().take(600).collect::<String>();
        assert!(
            expected.allows(answer.status),
            "{what}: wanted {expected:?}, got {}: {shown}",
            answer.status
        );
        answer
    }

    /// Sends a request as it is; an error is one of the connection.
    pub(crate) async fn send(&self, mut call: Call) -> Result<Answer, String> {
        if let Some(token) = &self.token {
            call.headers
                .entry(AUTHORIZATION)
                .or_insert(format!("Bearer {token}").parse().expect("a token is plain ASCII"));
        }
        // Put together by hand: `join` takes `//x` for another host.
        let url = format!("{}{}", self.base.as_str().trim_end_matches('/'), call.path);
        let url = url.parse::<Url>().map_err(|error| format!("{url}: {error}"))?;
        let began = Instant::now();
        let request = self.http.request(call.method, url).headers(call.headers);
        let request = match call.body {
            Some(body) => request.body(body),
            None => request,
        };
        let answer = request.send().await.map_err(|error| format!("{error:?}"))?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = answer.bytes().await.map_err(|error| format!("{error:?}"))?;
        Ok(Answer::new(status, headers, &body, began.elapsed()))
    }
}
