//! The clients of the clouds, made by URLs and settings alone, against a server in this process that answers as their services do.

use crate::services::server::{Answer, Server};
use futures::executor::block_on;
use reshard_object_store::ObjectStores;
use reshard_storage::{
    Durability, FileBody, Hints, IfExists, Name, Progress, ServiceFault, StorageError, Store,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

fn answer(status: &'static str, body: impl Into<Vec<u8>>) -> Answer {
    Answer::new(status, body).with("Last-Modified", "Tue, 03 Nov 2026 10:00:00 GMT")
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn stores(options: &[(&str, &str)]) -> ObjectStores {
    let stores = ObjectStores::new().with_retries(0, Duration::from_secs(60));
    options.iter().fold(stores, |stores, (key, value)| {
        stores.with_option(*key, *value)
    })
}

fn s3(server: &Server, more: &[(&str, &str)]) -> ObjectStores {
    let mut options = vec![
        ("aws_endpoint", &*server.url),
        ("aws_allow_http", "true"),
        ("aws_region", "eu-central-1"),
        ("aws_access_key_id", "somebody"),
        ("aws_secret_access_key", "not-secret"),
    ];
    options.extend(more);
    stores(&options)
}

/// A path without its escapes.
fn decoded(path: &str) -> String {
    let mut parts = path.split('%');
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let (code, rest) = part.split_at(2);
        out.push(char::from(u8::from_str_radix(code, 16).unwrap()));
        out.push_str(rest);
    }
    out
}

/// One record in a bucket of Google Cloud. Its listings have no generations, and a condition is a generation.
fn google() -> Server {
    let objects: Mutex<BTreeMap<String, (u64, Vec<u8>)>> = Mutex::default();
    Server::start(move |request| {
        let mut objects = objects.lock().unwrap();
        let path = decoded(request.target.split('?').next().unwrap());
        let found = objects.get(&path);
        match &*request.method {
            "GET" if path == "/bucket" => {
                let listed = objects.iter().map(|(path, (number, bytes))| {
                    let key = path.trim_start_matches("/bucket/");
                    format!(
                        "<Contents><Key>{key}</Key><LastModified>2026-11-03T10:00:00.000Z</LastModified>\
                         <ETag>&quot;{number}&quot;</ETag><Size>{}</Size></Contents>",
                        bytes.len()
                    )
                });
                let listed: String = listed.collect();
                answer(
                    "200 OK",
                    format!("<ListBucketResult>{listed}</ListBucketResult>"),
                )
            }
            "GET" | "HEAD" => match found {
                None => answer("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>"),
                Some((number, bytes)) => answer("200 OK", bytes.clone())
                    .with("ETag", format!("\"{number}\""))
                    .with("x-goog-generation", number),
            },
            "PUT" => {
                let wanted = request.headers.get("x-goog-if-generation-match");
                let wanted = wanted.map(|number| number.parse::<u64>().unwrap());
                let there = found.map_or(0, |(number, _)| *number);
                if wanted.is_some_and(|number| number != there) {
                    return answer("412 Precondition Failed", "");
                }
                let number = there + 7;
                objects.insert(path, (number, request.body.clone()));
                answer("200 OK", "")
                    .with("ETag", format!("\"{number}\""))
                    .with("x-goog-generation", number)
            }
            _ => answer("501 Not Implemented", ""),
        }
    })
}

#[test]
fn a_bucket_of_google_cloud_is_opened_by_its_url_and_settings_and_its_record_is_replaced() {
    let server = google();
    let stores = stores(&[
        ("google_base_url", server.url.as_str()),
        ("google_bearer_token", "a-token"),
        ("allow_http", "true"),
    ]);
    let place = stores.open_place("gs://bucket/run 1/step").unwrap();
    block_on(async {
        for (n, bytes) in ["one", "two", "three"].into_iter().enumerate() {
            let if_exists = match n {
                0 => IfExists::Refuse,
                _ => IfExists::Replace(Arc::new([name("record")])),
            };
            let attempt = format!("1-1a2b3c4d5e6f7081-{n}");
            let version = place.begin(&attempt, if_exists).await.unwrap();
            let record = Some((name("record"), bytes.into()));
            let committed = version.commit(record, &[], Durability::Machine);
            committed.await.unwrap();
        }
        let record = place.read_all(&name("record"), 10).await.unwrap();
        assert_eq!(record.unwrap(), "three");
    });
    let asked = server.take();
    let puts = asked.iter().filter(|request| request.method == "PUT");
    let conditions: Vec<_> = puts
        .map(|put| {
            assert_eq!(put.target, "/bucket/run%201%2Fstep%2Frecord");
            put.headers["x-goog-if-generation-match"].as_str()
        })
        .collect();
    assert_eq!(conditions, ["0", "7", "14"]);
    for request in &asked {
        assert_eq!(request.headers["authorization"], "Bearer a-token");
    }

    // A key that is none is told when the place is opened.
    let stores = ObjectStores::new().with_option("google_service_account_key", "no key");
    let e = stores.open_place("gs://bucket/a").unwrap_err();
    let StorageError::Service { fault, .. } = &e else {
        panic!("{e}")
    };
    assert_eq!(*fault, ServiceFault::Unauthenticated);
    assert!(e.to_string().contains("GOOGLE_"), "{e}");
}

#[test]
fn urls_of_s3_and_azure_lead_to_their_buckets_with_the_settings() {
    let server =
        Server::start(|_| answer("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>"));
    let azure = [
        ("azure_storage_account_name", "account"),
        ("azure_storage_account_key", "a2V5"),
        ("azure_storage_endpoint", server.url.as_str()),
        ("azure_allow_http", "true"),
    ];
    let azure = stores(&azure);
    let s3 = s3(&server, &[]);
    for (stores, url, target, key) in [
        (
            &s3,
            "s3://bucket/a b/c",
            "/bucket/a%20b/c/file",
            "AWS4-HMAC-SHA256 Credential=somebody/",
        ),
        (
            &s3,
            "s3a://bucket",
            "/bucket/file",
            "AWS4-HMAC-SHA256 Credential=somebody/",
        ),
        (
            &azure,
            "az://container/a b/c",
            "/container/a%20b/c/file",
            "SharedKey account:",
        ),
        (
            &azure,
            "abfs://container",
            "/container/file",
            "SharedKey account:",
        ),
        (
            &azure,
            "abfss://container@account.dfs.core.windows.net/a",
            "/container/a/file",
            "SharedKey account:",
        ),
    ] {
        let place = stores.open_place(url).unwrap();
        let found = block_on(place.read_all(&name("file"), 10)).unwrap();
        assert_eq!(found, None);
        let asked = server.take();
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert_eq!(asked[0].target, target, "{url}");
        let signed = &asked[0].headers["authorization"];
        assert!(signed.starts_with(key), "{url}: {signed}");
    }
}

#[test]
fn what_is_put_to_s3_has_a_digest_that_the_service_checks_and_a_checksum_on_request() {
    let put = |more: &[(&str, &str)]| {
        let server = Server::start(|request| match &*request.method {
            "PUT" => answer("200 OK", "").with("ETag", "\"1\""),
            _ => answer("200 OK", "<ListBucketResult></ListBucketResult>"),
        });
        let place = s3(&server, more).open_place("s3://bucket/a").unwrap();
        block_on(async {
            let attempt = "1-1a2b3c4d5e6f7081-0";
            let version = place.begin(attempt, IfExists::Refuse).await.unwrap();
            let file = name(&format!("{attempt}/file"));
            let body = FileBody::from_bytes(file, "123456789".into());
            let written = version.write(vec![body], Durability::Machine, Progress::none());
            written.await.unwrap();
        });
        let mut asked = server.take();
        asked.retain(|request| request.method == "PUT");
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.remove(0).headers
    };
    let plain = put(&[]);
    let sha256 = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225";
    assert_eq!(plain["x-amz-content-sha256"], sha256);
    assert!(!plain.keys().any(|name| name.starts_with("x-amz-checksum")));

    let with = put(&[("aws_checksum_algorithm", "crc64nvme")]);
    // The check value of this CRC, in base 64.
    assert_eq!(with["x-amz-checksum-crc64nvme"], "rosUhgp5mIg=");
    let with = put(&[("aws_checksum_algorithm", "sha256")]);
    assert_eq!(
        with["x-amz-checksum-sha256"],
        "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="
    );
}

#[test]
fn each_part_of_an_upload_has_a_digest_and_a_checksum_on_request() {
    let put = |more: &[(&str, &str)]| {
        let server = Server::start(|request| match &*request.method {
            "POST" if !request.target.contains("uploadId") => answer(
                "200 OK",
                "<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>",
            ),
            "POST" => answer(
                "200 OK",
                "<CompleteMultipartUploadResult><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>",
            ),
            "PUT" => answer("200 OK", "").with("ETag", "\"part\""),
            _ => answer("200 OK", "<ListBucketResult></ListBucketResult>"),
        });
        let stores = s3(&server, more).with_hints(Hints::default().with_part_size(5));
        let place = stores.open_place("s3://bucket/a").unwrap();
        block_on(async {
            let attempt = "1-1a2b3c4d5e6f7081-0";
            let version = place.begin(attempt, IfExists::Refuse).await.unwrap();
            let file = name(&format!("{attempt}/file"));
            let body = FileBody::from_bytes(file, "123456789".into());
            let written = version.write(vec![body], Durability::Machine, Progress::none());
            written.await.unwrap();
        });
        let mut parts = server.take();
        parts.retain(|request| request.method == "PUT");
        parts.sort_by(|a, b| a.target.cmp(&b.target));
        let bodies: Vec<&[u8]> = parts.iter().map(|part| &*part.body).collect();
        assert_eq!(bodies, [&b"12345"[..], b"6789"]);
        [parts.remove(0).headers, parts.remove(0).headers]
    };
    let digests = [
        "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5",
        "499bc7df9d8873c1c38e6898177c343b2a34d2eb43178a9eb4efcb993366c8cd",
    ];
    for (part, digest) in put(&[]).iter().zip(digests) {
        assert_eq!(part["x-amz-content-sha256"], digest);
        assert!(!part.keys().any(|name| name.starts_with("x-amz-checksum")));
    }
    let checksums = [
        "WZRHGrsBESr8wYFZ9sx0tPURuZgG2lmzyvWpwXPKz8U=",
        "SZvH352Ic8HDjmiYF3w0Oyo00utDF4qetO/LmTNmyM0=",
    ];
    let with = put(&[("aws_checksum_algorithm", "sha256")]);
    for (part, checksum) in with.iter().zip(checksums) {
        assert_eq!(part["x-amz-checksum-sha256"], checksum);
    }
    let with = put(&[("aws_checksum_algorithm", "crc64nvme")]);
    assert!(
        with.iter()
            .all(|part| part.contains_key("x-amz-checksum-crc64nvme"))
    );
}

/// Looks at a file. The answer to that has no body, so the client asks once more for the reason.
fn looked_at(status: &'static str, code: &str) -> (Result<bool, StorageError>, Vec<String>) {
    let body = format!("<Error><Code>{code}</Code></Error>");
    let server = Server::start(move |_| answer(status, &*body));
    let place = s3(&server, &[]).open_place("s3://bucket/a").unwrap();
    let look = || block_on(place.head(&name("file"))).map(|found| found.is_some());
    let first = look();
    // Whether a bucket exists is asked once.
    if first.is_ok() {
        assert!(!look().unwrap());
    }
    let methods = server.take().into_iter().map(|request| request.method);
    (first, methods.collect())
}

#[test]
fn why_a_file_can_not_be_looked_at_is_told_as_when_it_is_read() {
    use ServiceFault as F;
    for (status, code, want) in [
        ("403 Forbidden", "ExpiredToken", F::Expired),
        ("400 Bad Request", "ExpiredToken", F::Expired),
        ("403 Forbidden", "InvalidAccessKeyId", F::Unauthenticated),
        ("403 Forbidden", "AccessDenied", F::Denied),
        ("404 Not Found", "NoSuchBucket", F::NoBucket),
    ] {
        let (looked, methods) = looked_at(status, code);
        let e = looked.unwrap_err();
        let StorageError::Service { fault, .. } = &e else {
            panic!("{e}")
        };
        assert_eq!(*fault, want, "{e}");
        assert_eq!(methods, ["GET"], "{code}");
    }
    let (looked, methods) = looked_at("404 Not Found", "NoSuchKey");
    assert!(!looked.unwrap());
    assert_eq!(methods, ["GET", "HEAD"]);
}
