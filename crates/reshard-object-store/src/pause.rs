//! The pause that a service asks for (`Retry-After`). The clients of services do not look at it: they try again after pauses of their own.

use crate::{
    fault::{ASKS_FOR_PAUSE, Budget},
    silence, tries,
    web::Redirects,
};
use async_trait::async_trait;
use chrono::DateTime;
use futures_util::StreamExt;
use object_store::{
    ClientOptions, HeaderMap,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    },
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

/// So much of an answer is kept during a pause, for the message of an error.
const MOST: usize = 64 << 10;

/// Makes clients that give an answer back only after the pause that it asks for, so that the next try comes after it.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    budget: Budget,
    redirects: Redirects,
    last: Arc<Mutex<Option<HttpClient>>>,
}

impl Connector {
    pub(crate) fn new(budget: &Budget, redirects: Redirects) -> Self {
        Self {
            budget: budget.clone(),
            redirects,
            last: Arc::default(),
        }
    }

    /// The client that was made last: that of the service. Those for credentials come before it.
    #[cfg(feature = "aws")]
    pub(crate) fn last(&self) -> Option<HttpClient> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = HttpClient::new(Patient {
            inner: silence::connect(options, self.redirects)?,
            budget: self.budget.clone(),
        });
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(client.clone());
        Ok(client)
    }
}

#[derive(Debug)]
struct Patient {
    inner: HttpClient,
    budget: Budget,
}

/// The service asks for more time than there is.
#[derive(Debug, thiserror::Error)]
#[error(
    "the service {} of {} s before the next try, and only {} s are left for tries",
    ASKS_FOR_PAUSE,
    .asked.as_secs(),
    .left.as_secs()
)]
struct TooLong {
    asked: Duration,
    left: Duration,
}

#[async_trait]
impl HttpService for Patient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.inner.execute(request).await?;
        let status = answer.status();
        if !matches!(status.as_u16(), 429 | 503) {
            if !status.is_server_error() {
                tries::answered();
            }
            return Ok(answer);
        }
        let asked = match asked(answer.headers(), SystemTime::now()) {
            // Nobody tries again.
            Some(_) if self.budget.retries == 0 => return Ok(answer),
            Some(asked) => asked,
            None => return Ok(answer),
        };
        let left = self.budget.time.saturating_sub(tries::began().elapsed());
        if asked > left {
            let e = TooLong { asked, left };
            return Err(HttpError::new(HttpErrorKind::Unknown, e));
        }
        let answer = held(answer).await;
        tokio::time::sleep(asked).await;
        Ok(answer)
    }
}

/// The pause that an answer asks for: so many seconds, or until a date of the usual form (RFC 9110's IMF-fixdate).
fn asked(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // What does not fit is longer than anybody waits.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let until: SystemTime = DateTime::parse_from_rfc2822(text).ok()?.into();
    Some(until.duration_since(now).unwrap_or_default())
}

/// The answer in memory, so that others can use its connection during the pause.
async fn held(answer: HttpResponse) -> HttpResponse {
    let (parts, body) = answer.into_parts();
    let mut body = body.bytes_stream();
    let mut start = Vec::new();
    // What can't be read would only have been part of a message.
    while let Some(Ok(bytes)) = body.next().await {
        let room = MOST - start.len();
        start.extend_from_slice(bytes.get(..room).unwrap_or(&bytes));
        if start.len() == MOST {
            break;
        }
    }
    HttpResponse::from_parts(parts, start.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_given_in_seconds_or_by_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let pause = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", text.parse().unwrap());
            asked(&headers, now).map(|pause| pause.as_secs())
        };
        for (text, seconds) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("999999999", Some(999_999_999)),
            ("99999999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:48:37 GMT", Some(0)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            assert_eq!(pause(text), seconds, "{text:?}");
        }
        assert_eq!(asked(&HeaderMap::new(), now), None);
    }
}
