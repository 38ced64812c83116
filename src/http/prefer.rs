//! `Prefer: wait=N` (RFC 7240): hold the answer until the job has finished.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

use crate::http::App;
use crate::http::problem::Problem;

/// The longest wait, in seconds.
pub const WAIT_SECONDS_MAX: u64 = 60;

const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// For how long the client would have its answer held. None, or nothing that is understood: not at all.
#[derive(Clone, Copy, Debug)]
pub struct PreferWait(pub Option<Duration>);

impl FromRequestParts<App> for PreferWait {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let values = parts
            .headers
            .get_all("prefer")
            .iter()
            .filter_map(|value| value.to_str().ok());
        // A preference that is not understood is ignored, as the RFC has it.
        Ok(PreferWait(
            values.flat_map(|value| value.split([',', ';'])).find_map(wait),
        ))
    }
}

fn wait(preference: &str) -> Option<Duration> {
    let (name, value) = preference.split_once('=')?;
    let seconds: u64 = value.trim().trim_matches('"').parse().ok()?;
    name.trim()
        .eq_ignore_ascii_case("wait")
        .then(|| Duration::from_secs(seconds.min(WAIT_SECONDS_MAX)))
}

impl PreferWait {
    /// Says in the answer how long it would have been held.
    pub fn applied(self, mut response: Response) -> Response {
        if let PreferWait(Some(wait)) = self
            && let Ok(value) = HeaderValue::from_str(&format!("wait={}", wait.as_secs()))
        {
            response.headers_mut().insert(PREFERENCE_APPLIED, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_understood_as_a_wait() {
        let seconds = |text| wait(text).map(|wait| wait.as_secs());
        assert_eq!(seconds("wait=30"), Some(30));
        assert_eq!(seconds(" Wait = \"5\" "), Some(5));
        assert_eq!(seconds("wait=3600"), Some(60));
        assert_eq!(seconds("wait=-1"), None);
        assert_eq!(seconds("wait"), None);
        assert_eq!(seconds("respond-async"), None);
    }
}
