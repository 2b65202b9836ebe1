//! `ListMultipartUploads` of S3, which the client has no call for. It signs the request, and its HTTP client sends it.

use super::{Unfinished, Uploads};
use crate::fault::Budget;
use async_trait::async_trait;
use chrono::DateTime;
use futures_util::StreamExt;
use object_store::{
    aws::AmazonS3,
    client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse},
    multipart::MultipartStore,
    path::Path,
    signer::{Method, SignedUrlOptions, Signer},
};
use serde::Deserialize;
use std::{
    error::Error,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

const STORE: &str = "S3";
/// An answer has at most 1,000 uploads, each with a name of 1,024 bytes and some lines about who began it.
const MOST_OF_ANSWER: usize = 8 << 20;
/// A list of uploads ends when it has so many bytes of names. Whoever aborts them can ask for the rest.
const MOST_OF_ALL: usize = 16 << 20;
/// Or after so many answers, whatever is in them.
const MOST_ANSWERS: usize = 1_000;
/// A signature is good for so long.
const GOOD_FOR: Duration = Duration::from_secs(300);
/// The first pause before a request is tried again, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(15)];

/// A bucket of S3, or of a service like it.
#[derive(Debug)]
pub(crate) struct S3Uploads {
    pub(crate) s3: AmazonS3,
    pub(crate) http: HttpClient,
    pub(crate) budget: Budget,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    is_truncated: bool,
    next_key_marker: Option<String>,
    next_upload_id_marker: Option<String>,
    #[serde(default)]
    upload: Vec<Upload>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Upload {
    key: String,
    upload_id: String,
    initiated: Option<String>,
}

impl From<Upload> for Unfinished {
    fn from(upload: Upload) -> Self {
        let began = upload.initiated.as_deref().map(str::trim);
        let began = began.and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        Self {
            key: upload.key,
            id: upload.upload_id,
            began: began.map(Into::into),
        }
    }
}

/// Why a request failed.
enum Failed {
    /// Trying again may help.
    Now(object_store::Error),
    Always(object_store::Error),
}

fn generic(source: impl Into<Box<dyn Error + Send + Sync>>) -> object_store::Error {
    let (store, source) = (STORE, source.into());
    object_store::Error::Generic { store, source }
}

/// The service does not do what it was asked.
fn unsupported(what: impl Into<Box<dyn Error + Send + Sync>>) -> object_store::Error {
    let source = what.into();
    object_store::Error::NotSupported { source }
}

fn always(source: impl Into<Box<dyn Error + Send + Sync>>) -> Failed {
    Failed::Always(generic(source))
}

fn of_http(e: HttpError) -> Failed {
    match e.kind() {
        HttpErrorKind::Decode | HttpErrorKind::Unknown => always(e),
        _ => Failed::Now(generic(e)),
    }
}

/// Reads an answer, whose length nobody can be trusted to tell.
async fn body(answer: HttpResponse) -> Result<Vec<u8>, Failed> {
    let mut body = answer.into_body().bytes_stream();
    let mut all = Vec::new();
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(of_http)?;
        if all.len().saturating_add(bytes.len()) > MOST_OF_ANSWER {
            let what = format!("an answer to a listing has more than {MOST_OF_ANSWER} bytes");
            return Err(Failed::Always(unsupported(what)));
        }
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

/// The same error as the client makes of such an answer.
fn refused(status: u16, said: String, prefix: &str) -> Failed {
    use object_store::Error as E;
    let (path, source) = (prefix.to_owned(), said.into());
    match status {
        401 => Failed::Always(E::Unauthenticated { path, source }),
        403 => Failed::Always(E::PermissionDenied { path, source }),
        404 => Failed::Always(E::NotFound { path, source }),
        408 | 429 | 500 | 502..600 => Failed::Now(generic(source)),
        _ => Failed::Always(generic(source)),
    }
}

impl S3Uploads {
    /// Makes one try of a request.
    async fn ask(&self, query: &[(&str, &str)], prefix: &str) -> Result<Answer, Failed> {
        let options = SignedUrlOptions::new().with_query(query.iter().copied());
        let bucket = Path::default();
        let url = self
            .s3
            .signed_url_opts(Method::GET, &bucket, GOOD_FOR, &options);
        let url = url.await.map_err(Failed::Always)?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.as_str().parse().map_err(always)?;
        let answer = self.http.execute(request).await.map_err(of_http)?;
        let status = answer.status();
        let body = body(answer).await?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&body);
            let said = format!("Server returned non-2xx status code: {status}: {text}");
            return Err(refused(status.as_u16(), said, prefix));
        }
        parse(&body).map_err(Failed::Always)
    }

    /// Makes a request. As the client does, it tries again after pauses that grow.
    async fn answer(&self, query: &[(&str, &str)], prefix: &str) -> object_store::Result<Answer> {
        let began = Instant::now();
        let [mut pause, longest] = PAUSES;
        let mut tries = 0;
        loop {
            let e = match self.ask(query, prefix).await {
                Ok(answer) => return Ok(answer),
                Err(Failed::Always(e)) => return Err(e),
                Err(Failed::Now(e)) => e,
            };
            if tries >= self.budget.retries || began.elapsed() >= self.budget.time {
                return Err(e);
            }
            tries += 1;
            tokio::time::sleep(pause).await;
            pause = longest.min(pause * 2);
        }
    }
}

fn parse(body: &[u8]) -> object_store::Result<Answer> {
    let mut xml = quick_xml::de::Deserializer::from_reader(body);
    // It keeps what lies between two uploads.
    xml.event_buffer_size(NonZeroUsize::new(10_000));
    Answer::deserialize(&mut xml).map_err(|e| unsupported(format!("no list of uploads: {e}")))
}

/// Whether an object has this name, or lies in the folder of this name.
fn is_at(key: &str, folder: &str) -> bool {
    let rest = key.strip_prefix(folder);
    rest.is_some_and(|rest| folder.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

#[async_trait]
impl Uploads for S3Uploads {
    async fn list(&self, folder: &str) -> object_store::Result<Vec<Unfinished>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let mut marker: Option<(String, String)> = None;
        for _ in 0..MOST_ANSWERS {
            // With a slash it would leave out the object of this name.
            let mut query = vec![("uploads", ""), ("prefix", folder)];
            if let Some((key, id)) = &marker {
                query.extend([
                    ("key-marker", key.as_str()),
                    ("upload-id-marker", id.as_str()),
                ]);
            }
            let answer = self.answer(&query, folder).await?;
            // Whatever the service says, those of others are left alone.
            let ours = answer.upload.into_iter();
            for upload in ours.filter(|upload| is_at(&upload.key, folder)) {
                bytes += upload.key.len() + upload.upload_id.len();
                found.push(upload.into());
            }
            if !answer.is_truncated || bytes > MOST_OF_ALL {
                return Ok(found);
            }
            let next = answer.next_key_marker.zip(answer.next_upload_id_marker);
            if next.is_none() || next == marker {
                return Err(unsupported("a list of uploads that never ends"));
            }
            marker = next;
        }
        Ok(found)
    }

    async fn abort(&self, path: &Path, id: &str) -> object_store::Result<()> {
        self.s3.abort_multipart(path, &id.to_owned()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn only_uploads_at_a_folder_and_below_it_are_of_it() {
        for (key, is) in [
            ("a/b", true),
            ("a/b/c", true),
            ("a/bc", false),
            ("a", false),
        ] {
            assert_eq!(is_at(key, "a/b"), is, "{key}");
            assert!(is_at(key, ""), "{key}");
        }
    }

    #[test]
    fn the_answer_of_a_service_is_read_and_anything_else_is_an_error() {
        let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
            <ListMultipartUploadsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Bucket>b</Bucket><KeyMarker/><UploadIdMarker/><NextKeyMarker>a/b &amp; c</NextKeyMarker>\
            <NextUploadIdMarker>2</NextUploadIdMarker><MaxUploads>2</MaxUploads><IsTruncated>true</IsTruncated>\
            <Upload><Key>a/\u{30c7} b</Key><UploadId>1</UploadId><Initiator><ID>x</ID></Initiator>\
            <StorageClass>STANDARD</StorageClass><Initiated>1970-01-01T00:00:02.000Z</Initiated></Upload>\
            <CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>\
            <Upload><Key>a/b &amp; c</Key><UploadId>2</UploadId><Initiated>yesterday</Initiated></Upload>\
            </ListMultipartUploadsResult>";
        let answer = parse(text.as_bytes()).unwrap();
        assert!(answer.is_truncated);
        assert_eq!(answer.next_key_marker.as_deref(), Some("a/b & c"));
        let uploads: Vec<Unfinished> = answer.upload.into_iter().map(Into::into).collect();
        let upload = |key: &str, id: &str, began: Option<u64>| Unfinished {
            key: key.into(),
            id: id.into(),
            began: began.map(|secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs)),
        };
        let want = [
            upload("a/\u{30c7} b", "1", Some(2)),
            upload("a/b & c", "2", None),
        ];
        assert_eq!(uploads, want);

        let none = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>";
        assert_eq!(parse(none.as_bytes()).unwrap(), Answer::default());
        // Cut anywhere, it is no list that ends.
        for end in 0..text.len() {
            assert!(parse(&text.as_bytes()[..end]).is_err(), "{end}");
        }
        let deep = "<a>".repeat(1 << 20);
        let between = "<a/>".repeat(10_000);
        let between = format!("<L><Upload>{between}</Upload>{between}<Upload/></L>");
        for wrong in [
            "",
            "{}",
            "<Error><Code>AccessDenied</Code>",
            &deep,
            &between,
        ] {
            assert!(parse(wrong.as_bytes()).is_err());
        }
    }
}
