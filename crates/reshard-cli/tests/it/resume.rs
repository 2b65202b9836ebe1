//! Conversions into an object store that are killed, and go on.

use crate::{Ran, interrupt::interrupted, run, run_with, sample, states};
use reshard::{
    Stores,
    storage::{CountingStore, Counts, Depth, Store},
};
use reshard_model::testkit::one_in;
use reshard_object_store::ObjectStorePlace;
use reshard_storage::testkit::{Fault, FaultStore};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// Runs a command that knows the place `bucket://`, and says what it has written there.
fn with(place: &Arc<dyn Store>, dies: Option<u64>, args: &[&str]) -> (Ran, Counts, u64) {
    let faulty = FaultStore::new(Arc::clone(place));
    // Each file of a write is a call of its own then.
    faulty.die(dies.unwrap_or(u64::MAX), Fault::Before);
    let counting = CountingStore::new(Arc::new(faulty.clone()));
    let all = counting.clone();
    let open =
        move |_: &str| -> reshard::storage::Result<Arc<dyn Store>> { Ok(Arc::new(all.clone())) };
    let stores = Stores::linked().unwrap().with("bucket", open);
    let ran = run_with(stores, args);
    (ran, counting.take(), faulty.calls())
}

fn bucket() -> Arc<dyn Store> {
    Arc::new(ObjectStorePlace::in_memory())
}

fn names(place: &Arc<dyn Store>) -> Vec<String> {
    let all = futures::executor::block_on(place.list(None, Depth::All)).unwrap();
    all.files.into_iter().map(|e| e.name.into()).collect()
}

#[test]
fn a_conversion_into_an_object_store_goes_on_in_the_folder_of_its_attempt() {
    let saved = sample::many();
    let convert = [
        "convert",
        &saved.url,
        "bucket://dst",
        "--max-shard-size",
        "100kB",
        "--json",
    ];
    let resume = [&convert[..], &["--resume"]].concat();
    let whole = bucket();
    let (ran, all, calls) = with(&whole, None, &convert);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(all.files > 15, "{all:?}");
    let files = ran.json()["files"].clone();
    let digest = |place: &Arc<dyn Store>| {
        with(place, None, &["digest", "bucket://dst", "--json"])
            .0
            .ok()
    };
    let want = digest(&whole);
    assert!(
        !names(&whole).iter().any(|n| n.contains("journal")),
        "{:?}",
        names(&whole)
    );

    // Killed at any call: before the first journal nothing is taken over.
    let mut most = 0;
    for n in (1..calls).step_by(one_in(4)) {
        let place = bucket();
        let (first, ..) = with(&place, Some(n), &convert);
        if first.code == 0 {
            continue;
        }
        let (second, counts, _) = with(&place, None, &resume);
        // What is committed already can't be converted to again.
        if second.code != 0 {
            assert!(second.err.contains("--overwrite"), "{n}: {}", second.err);
            assert_eq!(digest(&place), want);
            continue;
        }
        let done = second.json();
        let took = done["resumed"]["files"].as_u64().unwrap();
        assert_eq!(done["files"], files, "{n}");
        let bytes = done["resumed"]["bytes"].as_u64().unwrap();
        // What was finished is not written again, and besides it only the journal is new.
        assert!(
            counts.written + bytes < all.written + 100_000,
            "{n}: {counts:?}"
        );
        assert_eq!(digest(&place), want, "{n}");
        assert!(!names(&place).iter().any(|n| n.contains("journal")));
        most = most.max(took);
    }
    assert!(most > 10, "{most}");
}

#[test]
fn without_anything_to_resume_all_is_written_and_other_options_are_refused() {
    let saved = sample::many();
    let convert = [
        "convert",
        &saved.url,
        "bucket://dst",
        "--max-shard-size",
        "100kB",
    ];
    let (first, _, calls) = with(&bucket(), None, &convert);
    assert_eq!(first.code, 0);
    // The last moment at which nothing is committed yet.
    let killed = (0..calls).rev().find_map(|n| {
        let place = bucket();
        let (killed, ..) = with(&place, Some(n), &convert);
        let is_new = with(&place, None, &["ls", "bucket://dst"]).0.code == 3;
        (killed.code == 2 && is_new).then_some(place)
    });
    let place = killed.unwrap();
    let other = [
        "convert",
        &saved.url,
        "bucket://dst",
        "--max-shard-size",
        "200kB",
        "--resume",
    ];
    let (refused, ..) = with(&place, None, &other);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("other options"), "{}", refused.err);
    let (done, ..) = with(&place, None, &[&convert[..], &["--resume"]].concat());
    assert!(done.ok().contains("not written again"));

    let to = saved.beside("fresh");
    let text = run(&["convert", &saved.url, &to, "--resume"]).ok();
    assert!(text.contains("resumed     nothing"), "{text}");
    // A single file has nothing that is finished before the rest.
    let to = saved.beside("one.safetensors");
    let text = run(&["convert", &saved.url, &to, "--resume"]).ok();
    assert!(text.contains("resumed     nothing"), "{text}");
}

#[test]
fn what_a_killed_conversion_left_in_an_object_store_is_pruned_and_the_next_one_begins_anew() {
    for (saved, format) in [
        (states::dcp(), "torch_dist"),
        (states::megatron(), "torch_dist"),
        (sample::many(), "zarr3"),
    ] {
        let convert = ["convert", &saved.url, "bucket://dst", "--to", format];
        let (whole, _, calls) = with(&bucket(), None, &convert);
        assert_eq!(whole.code, 0, "{}", whole.err);
        let want = run(&["digest", &saved.url, "--json"]).ok();
        let mut pruned = 0;
        let moments = 30 / one_in(4);
        for n in (1..calls).step_by(calls as usize / moments + 1) {
            let place = bucket();
            let (killed, ..) = with(&place, Some(n), &convert);
            let left = names(&place);
            let is_there = with(&place, None, &["ls", "bucket://dst"]).0.code == 0;
            if killed.code == 0 || is_there || left.is_empty() {
                continue;
            }
            let prune = ["prune", "bucket://dst", "--older-than", "0s"];
            let (ran, ..) = with(&place, None, &prune);
            assert_eq!(ran.code, 0, "{format} at {n}: {} {left:?}", ran.err);
            assert!(names(&place).is_empty(), "{format} at {n}: {left:?}");
            assert_eq!(with(&place, None, &convert).0.code, 0);
            let digest = with(&place, None, &["digest", "bucket://dst", "--json"]);
            // It may note how many requests that takes.
            assert_eq!(
                (digest.0.code, digest.0.out),
                (0, want.clone()),
                "{format} at {n}"
            );
            pruned += 1;
        }
        assert!(pruned > 1, "{format}: {pruned} of {calls}");
    }
}

/// Files in what an attempt at this place has begun.
fn begun(to: &str) -> usize {
    let (to, mut count) = (Path::new(to), 0);
    let hidden = format!(".{}.", to.file_name().unwrap().to_str().unwrap());
    for entry in fs::read_dir(to.parent().unwrap()).unwrap().flatten() {
        if entry.file_name().to_str().unwrap().starts_with(&hidden) {
            count += fs::read_dir(entry.path()).into_iter().flatten().count();
        }
    }
    count
}

/// A conversion that is slow, when it has begun some files.
fn in_the_middle(convert: &[&str], to: &str) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_reshard"))
        .args(convert)
        .args(["--bandwidth", "1MB/s"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while begun(to) < 4 {
        assert!(child.try_wait().unwrap().is_none(), "it has ended too soon");
        assert!(start.elapsed() < Duration::from_secs(600));
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn a_conversion_whose_files_are_pruned_says_so_and_leaves_nothing() {
    let saved = sample::many();
    let to = saved.beside("pruned");
    let convert = ["convert", &saved.url, &to, "--max-shard-size", "100kB"];
    let child = in_the_middle(&convert, &to);
    run(&["prune", &to, "--older-than", "0s"]).ok();
    let ended = child.wait_with_output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(2), "{err}");
    assert!(err.contains("`reshard prune --older-than 0s`"), "{err}");
    assert!(!Path::new(&to).exists());
    assert_eq!(begun(&to), 0);
    run(&convert).ok();
}

/// What it takes over is tested with kills; Ctrl-C is one of them.
#[test]
fn a_conversion_that_ctrl_c_has_ended_goes_on() {
    let saved = sample::many();
    let to = saved.beside("interrupted");
    let convert = ["convert", &saved.url, &to, "--max-shard-size", "100kB"];
    let (code, err) = interrupted(in_the_middle(&convert, &to));
    assert_eq!(code, Some(130), "{err}");
    for said in [
        &*format!("interrupted: no checkpoint is at {to} yet"),
        "the same command with --resume",
        &format!("reshard prune --older-than 0s {to}"),
    ] {
        assert!(err.contains(said), "{said}: {err}");
    }
    assert!(!Path::new(&to).exists());

    let ran = run(&[&convert[..], &["--resume", "--json"]].concat()).json();
    assert!(ran["resumed"]["files"].is_u64(), "{ran}");
    let digest = |of: &str| run(&["digest", of, "--json"]).ok();
    assert_eq!(digest(&to), digest(&saved.url));
    // Without a journal nothing was taken over. What is left is removed by `prune`.
    run(&["prune", &to, "--older-than", "0s"]).ok();
    assert_eq!(begun(&to), 0);
}
