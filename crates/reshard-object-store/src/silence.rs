//! The time for which a service may be silent. A client of `reqwest` counts what it sends as silence of the service, so on a slow line it
//! would give up large parts that are on their way.

use crate::web::{self, Redirects};
use async_trait::async_trait;
use object_store::{
    ClientConfigKey, ClientOptions,
    client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService},
};
use std::time::Duration;

/// A body of so few bytes is sent at once.
const SMALL: usize = 64 << 10;
/// For each of so many bytes of a body the service may be silent once more.
const STEP: usize = 1 << 20;
/// A service that copies an object answers when it has done so. An object has up to 5 GB then.
const OF_COPIES: u32 = 10;

/// The clock of a client has no time for the longest of all durations.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A client that waits longer for an answer if a request sends much, or copies.
pub(crate) fn connect(
    options: &ClientOptions,
    redirects: Redirects,
) -> object_store::Result<HttpClient> {
    let usual = web::connect(options, redirects)?;
    let silence = options.get_config_value(&ClientConfigKey::ReadTimeout);
    let Some(silence) = silence.and_then(|text| humantime::parse_duration(&text).ok()) else {
        return Ok(usual);
    };
    // The whole request has its time all the same.
    let patient = options.clone().with_read_timeout(NO_LIMIT);
    Ok(HttpClient::new(Sender {
        usual,
        patient: web::connect(&patient, redirects)?,
        silence,
    }))
}

#[derive(Debug)]
struct Sender {
    usual: HttpClient,
    /// Has no limit of its own for silence.
    patient: HttpClient,
    silence: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s to a request of {bytes} bytes", .waited.as_secs_f32())]
struct NoAnswer {
    waited: Duration,
    bytes: usize,
}

#[async_trait]
impl HttpService for Sender {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let bytes = request.body().content_length();
        let copies = [
            "x-amz-copy-source",
            "x-ms-copy-source",
            "x-goog-copy-source",
        ];
        let is_copy = copies
            .iter()
            .any(|name| request.headers().contains_key(*name));
        let times = match bytes {
            _ if is_copy => OF_COPIES,
            ..=SMALL => return self.usual.execute(request).await,
            _ => u32::try_from(1 + bytes.div_ceil(STEP)).unwrap_or(u32::MAX),
        };
        let waited = self.silence.saturating_mul(times);
        let answer = tokio::time::timeout(waited, self.patient.execute(request)).await;
        answer.unwrap_or_else(|_| {
            Err(HttpError::new(
                HttpErrorKind::Timeout,
                NoAnswer { waited, bytes },
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
        time::Instant,
    };

    const SILENCE: Duration = Duration::from_secs(2);

    /// Sends so many bytes to a server that takes `pause` for each 256 KiB of them.
    fn sent(bytes: usize, pause: Duration) -> Result<Bytes, String> {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/part", server.local_addr().unwrap());
        thread::spawn(move || {
            let (mut line, _) = server.accept().unwrap();
            let (mut left, mut block) = (bytes, vec![0; 256 << 10]);
            while left > 0 {
                let most = left.min(block.len());
                let Ok(n @ 1..) = line.read(&mut block[..most]) else {
                    return;
                };
                left = left.saturating_sub(n);
                thread::sleep(pause.mul_f64(n as f64 / (256 << 10) as f64));
            }
            line.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .unwrap_or_default();
            // Takes the rest, so that the answer is not lost.
            while matches!(line.read(&mut block), Ok(1..)) {}
        });
        let options = ClientOptions::new()
            .with_allow_http(true)
            .with_read_timeout(SILENCE);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = connect(&options, Redirects::Web).unwrap();
            let mut request = HttpRequest::new(vec![7; bytes].into());
            *request.method_mut() = "PUT".parse().unwrap();
            *request.uri_mut() = url.parse().unwrap();
            let answer = client.execute(request).await;
            let answer = answer.map_err(|e| format!("{e:?}"))?;
            let body = answer.into_body().bytes().await;
            body.map_err(|e| format!("{e:?}"))
        })
    }

    #[test]
    fn a_part_may_take_longer_than_a_service_may_be_silent() {
        let began = Instant::now();
        assert_eq!(sent(4 << 20, Duration::from_millis(200)), Ok("ok".into()));
        assert!(began.elapsed() > SILENCE, "the line was not slow");
    }

    #[test]
    fn a_service_that_takes_no_part_is_given_up() {
        let e = sent(1 << 20, Duration::from_secs(60)).unwrap_err();
        assert!(e.contains("NoAnswer") && e.contains("Timeout"), "{e}");
        let e = sent(1 << 10, Duration::from_secs(6000)).unwrap_err();
        assert!(e.contains("Timeout"), "{e}");
    }
}
