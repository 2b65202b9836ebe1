//! `SIGKILL` at random moments of saves to a bucket.
#![cfg(feature = "clouds")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail and speak as tests do"
)]

use anyhow::Context as _;
use futures::executor::block_on;
use reshard::{
    Dialect, ErrorKind, Stores,
    storage::{Store, StoreExt},
};
use reshard_crash::{look_at, remove_all, saved_to, scattered};
use reshard_manager::RemainsKind;
use reshard_object_store::ObjectStores;
use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// Settings of clients, which have the same names in the environment and as options.
const SETTINGS: [(&str, &str); 4] = [
    ("AWS_ALLOW_HTTP", "true"),
    ("AWS_REGION", "us-east-1"),
    ("AWS_ACCESS_KEY_ID", "reshard"),
    ("AWS_SECRET_ACCESS_KEY", "not-secret"),
];

fn endpoint() -> String {
    std::env::var("RESHARD_MOTO").unwrap()
}

fn open(url: &str) -> Arc<dyn Store> {
    let stores = ObjectStores::new().with_option("AWS_ENDPOINT", endpoint());
    let with = |stores: ObjectStores, (key, value): (&str, &str)| stores.with_option(key, value);
    let stores = SETTINGS.into_iter().fold(stores, with);
    Arc::new(stores.open_place(url).unwrap())
}

fn url(name: impl std::fmt::Display) -> String {
    format!("s3://reshard/kills {}/{name}", std::process::id())
}

fn unfinished(store: &Arc<dyn Store>) -> usize {
    block_on(store.unfinished_uploads()).unwrap().len()
}

/// Dialects by turns.
fn dialect(of: u64) -> Dialect {
    match of % 2 {
        0 => Dialect::Dcp,
        _ => Dialect::Megatron,
    }
}

fn saver(url: &str, step: u64, overwrite: bool, dialect: Dialect) -> Child {
    Command::new(env!("CARGO_BIN_EXE_reshard-saver"))
        .args([
            url,
            &step.to_string(),
            if overwrite { "overwrite" } else { "new" },
            dialect.name(),
        ])
        .env("AWS_ENDPOINT", endpoint())
        .envs(SETTINGS)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// How long a whole save takes here, so that moments are spread over all of it.
fn longest(dialect: Dialect) -> Duration {
    let url = url(format!("warm-{dialect}"));
    let time = |step| {
        let start = Instant::now();
        assert!(saver(&url, step, true, dialect).wait().unwrap().success());
        start.elapsed()
    };
    (0..3).map(time).max().unwrap_or_default()
}

/// What lies there when the server has done all that a killed client had asked for: a commit may be on its way.
fn settled(store: &Arc<dyn Store>, moment: u64) -> Option<u64> {
    const PAUSE: Duration = Duration::from_millis(200);
    let look = || {
        let found = look_at(store);
        found.with_context(|| format!("moment {moment}")).unwrap()
    };
    let mut found = look();
    while found != Some(2) {
        std::thread::sleep(PAUSE);
        let before = std::mem::replace(&mut found, look());
        if found == before {
            break;
        }
    }
    found
}

/// After a prune nothing is there but the version that counts.
fn pruning_clears_up(store: &Arc<dyn Store>, found: Option<u64>, dialect: Dialect, moment: u64) {
    let is_empty = block_on(store.files()).unwrap().is_empty();
    let stores = Stores::only(Arc::clone(store));
    let prune = reshard_manager::prune("s3://place")
        .stores(stores)
        .older_than(Duration::ZERO);
    match block_on(async { prune.await }) {
        // It was killed before it wrote anything.
        Err(e) if is_empty => assert_eq!(e.kind(), ErrorKind::NotFound, "moment {moment}: {e}"),
        pruned => assert!(pruned.unwrap().kept.is_empty(), "moment {moment}"),
    }
    assert_eq!(unfinished(store), 0, "moment {moment}");
    assert_eq!(look_at(store).unwrap(), found, "moment {moment}");
    let files = block_on(store.files()).unwrap();
    let mut folders: Vec<&str> = files
        .iter()
        .filter_map(|f| f.name.as_str().split_once('/'))
        .map(|(folder, _)| folder)
        .collect();
    folders.dedup();
    let versions = usize::from(found.is_some());
    assert_eq!(folders.len(), versions, "moment {moment}: {files:?}");
    let beside = files.iter().filter(|f| !f.name.as_str().contains('/'));
    // Megatron Core's has `metadata.json` too.
    let records = if dialect == Dialect::Megatron { 2 } else { 1 };
    assert_eq!(
        beside.count(),
        versions * records,
        "moment {moment}: {files:?}"
    );
}

#[test]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_a_save_to_a_bucket_killed_at_random_moments_leaves_the_old_the_new_or_nothing() {
    let moments = match reshard_model::testkit::is_thorough() {
        true => 300,
        false => 20,
    };
    let mut time = [Duration::ZERO; 2];
    let (mut before, mut after, mut left) = (0, 0, 0);
    for i in 0..moments {
        if i % 50 == 0 {
            // Another job may have come to the machine, or left it.
            time = [Dialect::Dcp, Dialect::Megatron].map(longest);
        }
        let (url, overwrite) = (url(i), i % 3 != 0);
        let (dialect, time) = (dialect(i), time[i as usize % 2]);
        let store = open(&url);
        if overwrite {
            saved_to(&store, 1, false, dialect).unwrap();
        }
        let mut child = saver(&url, 2, overwrite, dialect);
        std::thread::sleep(time.mul_f64(scattered(i) * 1.1));
        drop(child.kill());
        child.wait().unwrap();
        let found = settled(&store, i);
        let old = overwrite.then_some(1);
        assert!(found == old || found == Some(2), "moment {i}: {found:?}");
        match found {
            Some(2) => after += 1,
            _ => before += 1,
        }
        left += usize::from(block_on(store.files()).unwrap().len() > 4);
        pruning_clears_up(&store, found, dialect, i);
        saved_to(&store, 3, true, dialect).unwrap();
        assert_eq!(look_at(&store).unwrap(), Some(3), "moment {i}");
        remove_all(&store).unwrap();
    }
    println!("{before} killed before the commit, {after} after it; {left} left something");
    assert!(
        before > 0 && after > 0,
        "moments all on one side prove little: {before} before, {after} after"
    );
}

/// Begins an upload that nobody finishes. moto asks nobody who he is.
fn leave_upload(path: &str) {
    let server = endpoint();
    let host = server.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    let path = path.replace(' ', "%20");
    let request = format!(
        "POST /reshard/{path}?uploads HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("<UploadId>"), "{answer}");
}

#[test]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_uploads_that_nobody_finished_are_pruned_by_their_age_and_those_of_neighbours_stay()
{
    let folder = format!("uploads {}", std::process::id());
    let open = |name: &str| open(&format!("s3://reshard/{folder}{name}"));
    let [mine, neighbour, all] = ["/mine", "/mine-2", ""].map(open);
    for store in [&mine, &neighbour] {
        saved_to(store, 1, false, Dialect::Dcp).unwrap();
    }
    for path in [
        "mine/1-1a2b3c4d5e6f7081-0/a b",
        "mine/a b",
        "mine/a b",
        "mine-2/1-1a2b3c4d5e6f7081-0/a",
        // The copy of a single file to its place.
        "mine",
    ] {
        leave_upload(&format!("{folder}/{path}"));
    }
    assert_eq!([&mine, &neighbour, &all].map(unfinished), [4, 1, 5]);
    let prune = |older_than: Duration, dry_run: bool| {
        let prune = reshard_manager::prune("s3://place")
            .stores(Stores::only(Arc::clone(&mine)))
            .older_than(older_than)
            .dry_run(dry_run);
        let report = block_on(async { prune.await }).unwrap();
        let uploads = report.removed.iter();
        uploads.filter(|r| r.kind == RemainsKind::Upload).count()
    };
    // moto says of each upload that it was begun in 2010.
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    assert_eq!([prune(century, false), unfinished(&mine)], [0, 4]);
    assert_eq!([prune(Duration::ZERO, true), unfinished(&mine)], [4, 4]);
    assert_eq!([prune(Duration::ZERO, false), unfinished(&mine)], [4, 0]);
    assert_eq!([&neighbour, &all].map(unfinished), [1, 1]);
    for store in [&mine, &neighbour] {
        assert_eq!(look_at(store).unwrap(), Some(1));
    }
}
