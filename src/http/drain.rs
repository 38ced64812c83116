//! A request that is refused before its body was read: the rest is read and thrown away, within bounds, so that
//! the client hears the answer. Many do not listen before they have sent everything, and meet a closed
//! connection instead.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};

/// What fits into the buffers on the way is read without this.
const SMALL: u64 = 16 << 10;

/// A client that sends more than this, or takes longer, is cut off.
const BYTES_MAX: usize = 64 << 20;
const TIME_MAX: Duration = Duration::from_secs(5);

/// The body, within reach of the handler and of who drains it.
#[derive(Clone)]
struct Shared(Arc<Mutex<Body>>);

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut body = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}

/// Reads what a refused request left unread.
pub async fn drain(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // Who waits for leave to send has not sent: it is answered at once.
    let waits = parts.headers.contains_key(header::EXPECT);
    if waits || body.size_hint().upper().is_some_and(|most| most <= SMALL) {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let shared = Shared(Arc::new(Mutex::new(body)));
    let response = next.run(Request::from_parts(parts, Body::new(shared.clone()))).await;
    if response.status().is_client_error() || response.status().is_server_error() {
        let _too_slow = tokio::time::timeout(TIME_MAX, read_on(shared)).await;
    }
    response
}

async fn read_on(mut body: Shared) {
    let mut read = 0;
    while let Some(Ok(frame)) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > BYTES_MAX {
            break;
        }
    }
}
