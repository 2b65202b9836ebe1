//! What a service like S3 may answer, and seldom does.

use crate::services::server::{Answer, Server};
use futures::executor::block_on;
use reshard_model::ErrorKind;
use reshard_object_store::{ObjectStores, read_through};
use reshard_storage::{
    CachedStore, DiskCache, Name, PlaceKind, Recovery, ServiceFault, StorageError, Store, StoreExt,
    UnfinishedUpload,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

fn stores(server: &Server) -> ObjectStores {
    ObjectStores::new()
        .with_option("aws_endpoint", &server.url)
        .with_option("aws_allow_http", "true")
        .with_option("aws_region", "us-east-1")
        .with_option("aws_access_key_id", "reshard")
        .with_option("aws_secret_access_key", "not-secret")
        .with_retries(2, Duration::from_secs(60))
}

fn place(server: &Server) -> Arc<dyn Store> {
    Arc::new(stores(server).open_place("s3://bucket/a").unwrap())
}

/// What a listing says of files, and where the next answer begins.
fn listed(files: &[&str], next: Option<&str>) -> Answer {
    let all: String = files
        .iter()
        .map(|key| {
            format!("<Contents><Key>{key}</Key><LastModified>2026-11-03T10:00:00.000Z</LastModified><Size>3</Size></Contents>")
        })
        .collect();
    let next = next.map_or_else(String::new, |token| {
        format!("<NextContinuationToken>{token}</NextContinuationToken>")
    });
    let folders = "<CommonPrefixes><Prefix>runs/ckpt-1/</Prefix></CommonPrefixes>";
    let body = format!(
        "<ListBucketResult><Name>bucket</Name><IsTruncated>{}</IsTruncated>{next}{all}{folders}</ListBucketResult>",
        !next.is_empty()
    );
    Answer::new("200 OK", body)
}

#[test]
fn files_with_a_prefix_are_listed_without_what_lies_beside_them() {
    let server = Server::start(|asked| match asked.target.contains("continuation-token=") {
        false => listed(&["runs/ckpt-1.index"], Some("more")),
        true => listed(&["runs/ckpt-1.data-00000-of-00001"], None),
    });
    for (at, prefix) in [("runs/ckpt-1", "runs%2Fckpt-1"), ("ckpt-1", "ckpt-1")] {
        let place = stores(&server).open_place(&format!("s3://bucket/{at}"));
        let files = place.unwrap().of_kind(PlaceKind::Prefix).unwrap();
        let found = block_on(files.top()).unwrap();
        let names: Vec<&str> = found.names().collect();
        match at.contains('/') {
            true => assert_eq!(names, [".data-00000-of-00001", ".index"]),
            // The names of this answer are not of this place.
            false => assert!(names.is_empty(), "{names:?}"),
        }
        let asked = server.take();
        assert_eq!(asked.len(), 2);
        for asked in asked {
            let (target, wanted) = (&asked.target, format!("prefix={prefix}"));
            assert!(
                target.split(['?', '&']).any(|part| part == wanted),
                "{target}"
            );
            assert!(target.contains("delimiter=%2F"), "{target}");
        }
    }
}

const LEN: usize = 300_000;

/// A bucket with one object, all of whose bytes are this one. In all such buckets it has the same tag.
fn bucket(byte: u8) -> Server {
    Server::start(move |asked| match asked.range {
        None => Answer::new(
            "200 OK",
            format!(
                "<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated><Contents><Key>a/x</Key>\
                 <LastModified>2026-11-03T10:00:00.000Z</LastModified><ETag>\"1\"</ETag><Size>{LEN}</Size></Contents>\
                 </ListBucketResult>"
            ),
        ),
        Some((from, to)) => {
            let to = to.min(LEN - 1);
            Answer::new("206 Partial Content", vec![byte; to - from + 1])
                .with("Content-Range", format!("bytes {from}-{to}/{LEN}"))
                .with("Last-Modified", "Tue, 03 Nov 2026 10:00:00 GMT")
                .with("ETag", "\"1\"")
        }
    })
}

/// Reads as another process does, and tells how many ranges the server was asked for.
fn read(server: &Server, cache: DiskCache) -> (u8, usize) {
    let store = CachedStore::new(place(server), cache);
    let store = block_on(store.pinned()).unwrap().unwrap();
    let bytes = block_on(store.read(&Name::new("x").unwrap(), 5..LEN as u64)).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    let ranges = server.take().into_iter().filter(|a| a.range.is_some());
    (bytes[0], ranges.count())
}

#[test]
fn buckets_of_one_name_at_two_servers_share_nothing_in_a_cache() {
    let dir = tempfile::tempdir().unwrap();
    let cache = || read_through(dir.path(), 1 << 30);
    let [one, two] = [bucket(1), bucket(2)];
    let first = [read(&one, cache()), read(&two, cache())];
    assert!(first[0].1 > 0 && first[1].1 > 0, "{first:?}");
    assert_eq!([first[0].0, first[1].0], [1, 2]);
    assert_eq!([read(&one, cache()), read(&two, cache())], [(1, 0), (2, 0)]);
}

/// One page of a list of uploads.
fn page(uploads: &[(&str, &str)], next: Option<(&str, &str)>) -> String {
    let upload = |(key, id): &(&str, &str)| {
        format!(
            "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>2026-11-03T10:00:00.000Z</Initiated></Upload>"
        )
    };
    let uploads: String = uploads.iter().map(upload).collect();
    let next = next.map(|(key, id)| {
        format!("<NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker><IsTruncated>true</IsTruncated>")
    });
    let next = next.unwrap_or_else(|| "<IsTruncated>false</IsTruncated>".into());
    format!("<ListMultipartUploadsResult>{next}{uploads}</ListMultipartUploadsResult>")
}

fn list(server: &Server) -> Result<Vec<UnfinishedUpload>, StorageError> {
    block_on(place(server).unfinished_uploads())
}

#[test]
fn uploads_are_listed_page_by_page_below_the_place_alone() {
    let server = Server::start(|asked| {
        let body = match asked.target.contains("key-marker=a%2Fd%20d") {
            false => page(
                &[("a/d d", "1"), ("ab/x", "2"), ("ab", "3"), ("a//e", "4")],
                Some(("a/d d", "1")),
            ),
            true => page(&[("a/d d", "5"), ("a/deep/er", "6"), ("b", "7")], None),
        };
        Answer::new("200 OK", body)
    });
    let found = list(&server).unwrap();
    let names: Vec<_> = found.iter().map(|u| (u.name.as_str(), &*u.id)).collect();
    assert_eq!(names, [("d d", "1"), ("d d", "5"), ("deep/er", "6")]);
    assert_eq!(found[2].path, "s3://bucket/a/deep/er");
    assert!(found.iter().all(|upload| upload.began.is_some()));
    let asked = server.take();
    assert_eq!(asked.len(), 2, "{asked:#?}");
    assert!(asked[1].came >= asked[0].answered);
    for asked in asked {
        assert!(asked.target.starts_with("/bucket/?uploads="), "{asked:?}");
        assert!(asked.target.contains("&prefix=a&"), "{asked:?}");
        assert!(asked.target.contains("X-Amz-Signature="), "{asked:?}");
    }
}

#[test]
fn an_upload_of_the_object_that_the_place_may_be_is_listed_and_aborted() {
    let server = Server::start(|asked| match &*asked.method {
        // A copy to the object itself, a file of the same name in its folder, and others.
        "GET" => Answer::new(
            "200 OK",
            page(&[("b/a", "1"), ("b/a/a", "2"), ("b/a.old", "3")], None),
        ),
        _ => Answer::new("204 No Content", ""),
    });
    let place = stores(&server).open_place("s3://bucket/b/a").unwrap();
    let object = place.of_kind(PlaceKind::File).unwrap();
    for store in [&(Arc::new(place) as Arc<dyn Store>), &object] {
        let found = block_on(store.unfinished_uploads()).unwrap();
        let seen: Vec<_> = found
            .iter()
            .map(|u| (u.name.as_str(), &*u.path, &*u.id))
            .collect();
        let want = [
            ("a", "s3://bucket/b/a", "1"),
            ("a", "s3://bucket/b/a/a", "2"),
        ];
        assert_eq!(seen, want);
        server.take();
        for (upload, target) in found
            .iter()
            .zip(["/bucket/b/a?uploadId=1", "/bucket/b/a/a?uploadId=2"])
        {
            block_on(store.abort_upload(upload)).unwrap();
            let asked = server.take();
            assert_eq!(asked.len(), 1, "{asked:#?}");
            assert_eq!(asked[0].method, "DELETE");
            assert!(asked[0].target.starts_with(target), "{asked:#?}");
        }
    }
}

#[test]
fn a_service_that_lists_uploads_without_end_is_asked_a_bounded_number_of_times() {
    let page_of = |n: u64| page(&[("a/x", "1")], Some(("a/x", &n.to_string())));
    // Each page leads to another one.
    let count = AtomicU64::new(0);
    let server = Server::start(move |_| {
        Answer::new("200 OK", page_of(count.fetch_add(1, Ordering::Relaxed)))
    });
    assert_eq!(list(&server).unwrap().len(), 1_000);
    assert_eq!(server.take().len(), 1_000);

    // Names that fill memory.
    let name = format!("a/{}", "x".repeat(7 << 20));
    let count = AtomicU64::new(0);
    let server = Server::start(move |_| {
        let n = count.fetch_add(1, Ordering::Relaxed).to_string();
        Answer::new("200 OK", page(&[(&name, "1")], Some(("a/x", &n))))
    });
    assert!(list(&server).unwrap().len() <= 3);
    assert!(server.take().len() <= 3);

    // Each page leads back to itself; the answer is too long; it is no list.
    let mut long = page(&[], None).into_bytes();
    long.resize(9 << 20, b' ');
    for body in [page_of(1).into_bytes(), long, b"{}".to_vec()] {
        let server = Server::start(move |_| Answer::new("200 OK", body.clone()));
        let e = list(&server).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    }
}

#[test]
fn a_service_that_refuses_to_list_uploads_is_told_from_one_that_is_not_there_for_a_while() {
    let answers = |status: &'static str, code: &'static str| {
        Server::start(move |_| Answer::new(status, format!("<Error><Code>{code}</Code></Error>")))
    };
    let e = list(&answers("403 Forbidden", "AccessDenied")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    let e = list(&answers("501 Not Implemented", "NotImplemented")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    let e = list(&answers("404 Not Found", "NoSuchBucket")).unwrap_err();
    let StorageError::Service { fault, .. } = e else {
        panic!("{e}")
    };
    assert_eq!(fault, ServiceFault::NoBucket);
    // It is asked once, and then twice again.
    let server = answers("503 Service Unavailable", "SlowDown");
    let e = list(&server).unwrap_err();
    assert_eq!((e.kind(), server.take().len()), (ErrorKind::Unavailable, 3));
    let count = AtomicU64::new(0);
    let server = Server::start(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::new("500 Internal Server Error", ""),
        1 => Answer::new("503 Service Unavailable", "").with("Retry-After", 0),
        _ => Answer::new("200 OK", page(&[("a/x", "1")], None)),
    });
    assert_eq!(list(&server).unwrap().len(), 1);
    assert_eq!(server.take().len(), 3);
}

#[test]
fn an_upload_is_aborted_by_its_id_and_may_be_gone() {
    for (status, body) in [
        ("204 No Content", ""),
        ("404 Not Found", "<Error><Code>NoSuchUpload</Code></Error>"),
    ] {
        let server = Server::start(move |_| Answer::new(status, body));
        let name = Name::new("x y").unwrap();
        let upload = UnfinishedUpload::new(name, "7/+", "s3://bucket/a/x y");
        block_on(place(&server).abort_upload(&upload)).unwrap();
        let asked = server.take();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].method, "DELETE");
        let target = &asked[0].target;
        assert!(
            target.starts_with("/bucket/a/x%20y?uploadId=7%2F%2B"),
            "{target}"
        );
    }
    let server = Server::start(|_| Answer::new("403 Forbidden", ""));
    let upload = UnfinishedUpload::new(Name::new("x").unwrap(), "7", "s3://bucket/a/x");
    let e = block_on(place(&server).abort_upload(&upload)).unwrap_err();
    assert!(e.to_string().contains("s3://bucket/a/x"), "{e}");
}

#[test]
fn nobody_without_credentials_is_asked_for_uploads() {
    let server = Server::start(|_| Answer::new("200 OK", page(&[("a/x", "1")], None)));
    for (key, value) in [("aws_skip_signature", "true"), ("aws_skip_signature", "1")] {
        let stores = stores(&server).with_option(key, value);
        let place = stores.open_place("s3://bucket/a").unwrap();
        assert!(
            block_on(Recovery::unfinished_uploads(&place))
                .unwrap()
                .is_empty()
        );
        assert!(server.take().is_empty());
    }
}
