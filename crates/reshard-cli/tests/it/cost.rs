//! What reading costs, before and after.

use crate::{Ran, run, run_with, sample, states};
use reshard::{
    Dialect, OpenOptions, Region, ShardedObject, ShardedTensor, StateDict, Stores, Tensor, Value,
    blocking,
    model::Payload,
    storage::{CountingStore, Counts, wait},
};
use reshard_object_store::ObjectStorePlace;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Places `bucket://NAME` in memory, whose requests are counted together.
#[derive(Clone, Default)]
pub(crate) struct Buckets(Arc<Mutex<BTreeMap<String, CountingStore>>>);

impl Buckets {
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        run_with(self.stores(), args)
    }

    fn stores(&self) -> Stores {
        let places = self.clone();
        Stores::linked().unwrap().with("bucket", move |url: &str| {
            let mut places = places.0.lock().unwrap();
            let place = places.entry(url.to_owned());
            let new = || CountingStore::new(Arc::new(ObjectStorePlace::in_memory()));
            let place: Arc<dyn reshard::storage::Store> =
                Arc::new(place.or_insert_with(new).clone());
            Ok(place)
        })
    }

    /// What opening the checkpoint of a place asks for.
    fn opening(&self, url: &str) -> Counts {
        let how = OpenOptions::new().stores(self.stores());
        drop(blocking::Checkpoint::open_with(how, url).unwrap());
        self.take(url)
    }

    /// What was asked of a place since the last call.
    pub(crate) fn take(&self, url: &str) -> Counts {
        self.0.lock().unwrap()[url].take()
    }
}

/// Large and small tensors, whole and in pieces by rows and by columns, of two ranks.
fn saved() -> states::Saved {
    let of_rank = |rank: u64| {
        let mut state = StateDict::new();
        let numbers = |n: u64| (0..n).map(|i| (i * (rank + 1)) as f32).collect::<Vec<_>>();
        let rows = ShardedTensor::region_of(
            "rows",
            reshard::DType::Float32,
            &[5_000, 800],
            Region::new([2_500 * rank, 0], [2_500, 800]),
        );
        state.insert(
            "rows",
            rows.with_data(Tensor::from_vec(&[2_500, 800], numbers(2_000_000)).unwrap()),
        );
        let columns = ShardedTensor::region_of(
            "columns",
            reshard::DType::Float32,
            &[1_000, 800],
            Region::new([0, 400 * rank], [1_000, 400]),
        );
        state.insert(
            "columns",
            columns.with_data(Tensor::from_vec(&[1_000, 400], numbers(400_000)).unwrap()),
        );
        if rank == 0 {
            state.insert(
                "whole",
                Tensor::from_vec(&[3_000_000], numbers(3_000_000)).unwrap(),
            );
            for n in 0..50 {
                state.insert(
                    format!("small.{n}"),
                    Tensor::from_vec(&[500], numbers(500)).unwrap(),
                );
            }
        }
        state
    };
    states::save(&[of_rank(0), of_rank(1)], Dialect::Dcp)
}

#[test]
fn what_a_dry_run_says_is_what_the_command_then_costs() {
    let (buckets, saved) = (Buckets::default(), saved());
    let mut told = String::new();
    for format in ["torch_dist", "safetensors", "zarr3", "torch_save"] {
        let url = &*format!("bucket://{format}");
        let args = ["convert", &saved.url, url, "--to", format, "--ranks", "2"];
        let shards: &[&str] = match format {
            "torch_save" => &["--max-shard-size", "8MB"],
            _ => &[],
        };
        let ran = buckets.run(&[&args[..], shards].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        let out = saved.beside(format);
        for command in [
            &["verify"][..],
            &["verify", "--sample", "10%", "--seed", "1"],
            &["digest"],
            &["digest", "--key", "small.*"],
            &["stats"],
            &["convert", &out],
            &["convert", &out, "--resume"],
            &["convert", &out, "--no-verify"],
        ] {
            let mut args = vec![command[0], url];
            args.extend(&command[1..]);
            buckets.take(url);
            let opening = buckets.opening(url);
            let dry = buckets
                .run(&[&args[..], &["--dry-run", "--json"]].concat())
                .json();
            assert_eq!(buckets.take(url).records.bytes, 0);
            let ran = buckets.run(&args);
            assert_eq!(ran.code, 0, "{}", ran.err);
            let counts = buckets.take(url);
            std::fs::remove_dir_all(&out).unwrap_or(());

            let [bytes, requests] =
                ["bytes", "requests"].map(|n| dry["reads"][0][n].as_u64().unwrap());
            let [read, asked] = [
                counts.read() - opening.read(),
                counts.requests - opening.requests,
            ];
            let line =
                format!("{args:?}: {bytes} bytes, {requests} requests; really {read}, {asked}\n");
            told += &line;
            let near = |a: u64, b: u64, times: f64, more: u64| {
                a as f64 <= b as f64 * times + more as f64
                    && b as f64 <= a as f64 * times + more as f64
            };
            told += match near(bytes, read, 1.05, 64 << 10) && near(requests, asked, 1.5, 10) {
                true => "",
                false => "    WRONG\n",
            };
        }
    }
    assert!(!told.contains("WRONG"), "{told}");
    println!("{told}");
}

#[test]
fn a_dry_run_only_prints_what_reading_would_cost_also_on_a_local_disk() {
    let saved = states::dcp();
    for args in [
        &["digest", &saved.url][..],
        &["verify", &saved.url],
        &["stats", &saved.url],
        &["diff", &saved.url, &saved.url],
    ] {
        let text = run(&[args, &["--dry-run"]].concat()).ok();
        assert!(
            text.starts_with("would read  ") && text.contains("request"),
            "{text}"
        );
        let lines = if args[0] == "diff" { 2 } else { 1 };
        assert_eq!(text.lines().count(), lines, "{text}");
    }
    let quick = run(&["verify", &saved.url, "--quick", "--dry-run", "--json"]).json();
    assert_eq!(quick["reads"][0]["bytes"], 0);
}

#[test]
fn only_a_read_that_costs_much_of_a_place_where_requests_are_dear_is_announced() {
    let mut state = StateDict::new();
    for n in 0..1_050u32 {
        state.insert(format!("t.{n}"), Tensor::from_vec(&[1], vec![n]).unwrap());
    }
    let saved = states::save(&[state], Dialect::Dcp);
    let buckets = Buckets::default();
    buckets.run(&["convert", &saved.url, "bucket://many"]).ok();
    let ran = buckets.run(&["digest", "bucket://many"]);
    assert_eq!(ran.code, 0);
    assert!(
        ran.err.contains("note: reads ") && ran.err.contains("about 1,050 requests"),
        "{}",
        ran.err
    );
    buckets
        .run(&["digest", "bucket://many", "--key", "t.1?"])
        .ok();
    run(&["digest", &saved.url]).ok();
}

#[test]
fn what_is_read_through_a_cache_is_read_from_a_bucket_once() {
    let saved = saved();
    let buckets = Buckets::default();
    let url = "bucket://cached";
    let cache = format!("{}:1GB", saved.beside("cache"));
    buckets.run(&["convert", &saved.url, url]).ok();
    for args in [&["inspect"][..], &["digest", "--json"], &["show", "whole"]] {
        let args = [&args[..1], &[url], &args[1..], &["--cache", &cache]].concat();
        buckets.take(url);
        let first = buckets.run(&args);
        assert_eq!(first.code, 0, "{}", first.err);
        let read = buckets.take(url).read();
        // What an earlier command has read is there, too.
        assert!(read > 0 || args[0] == "show", "{args:?}");
        let second = buckets.run(&args);
        assert_eq!(second.out, first.out);
        assert_eq!(buckets.take(url).read(), 0, "{args:?}");
    }
}

#[test]
fn a_destination_in_a_bucket_that_exists_is_noticed_before_the_source_is_read() {
    let saved = states::dcp();
    let buckets = Buckets::default();
    for to in ["bucket://source", "bucket://taken"] {
        buckets.run(&["convert", &saved.url, to]).ok();
    }
    buckets.take("bucket://source");
    let (opened, read) = (
        buckets.run(&["ls", "bucket://source"]),
        buckets.take("bucket://source"),
    );
    assert_eq!(opened.code, 0);
    buckets.take("bucket://taken");
    let convert = ["convert", "bucket://source", "bucket://taken"];
    let refused = buckets.run(&convert);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("--overwrite"), "{}", refused.err);
    assert!(
        buckets.take("bucket://source").read() <= read.read(),
        "no more than to list it"
    );
    assert_eq!(buckets.take("bucket://taken").requests, 1);
    buckets.run(&[&convert[..], &["--overwrite"]].concat()).ok();
}

/// Of 402 tensors in 12 to 50 files, or in as many arrays. The numbers are pinned: a change that needs more has to say so here.
#[test]
fn opening_takes_few_requests_in_each_format() {
    let (buckets, saved) = (Buckets::default(), sample::many());
    let mut told = String::new();
    // To open it, and to list it, which checks what `verify --quick` checks: descriptions and indexes that opening takes from a record.
    for (format, to, most, to_list) in [
        ("torch_dist", "torch_dist", 4, 6),
        ("safetensors", "safetensors", 10, 35),
        // One for each of its 22 small files.
        ("torch_save", "torch_save", 31, 78),
        ("zarr", "zarr", 6, 411),
        ("zarr3", "zarr3", 6, 1619),
        (
            "tensor_bundle",
            r#"{ "format": "tensor_bundle", "in_folder": "ckpt"}"#,
            8,
            13,
        ),
    ] {
        let url = &*format!("bucket://open-{format}");
        let args = ["convert", &saved.url, url, "--to", to, "--ranks", "3"];
        let shards: &[&str] = match format {
            "zarr" | "zarr3" => &[],
            _ => &["--max-shard-size", "100kB"],
        };
        let ran = buckets.run(&[&args[..], shards].concat());
        assert_eq!(ran.code, 0, "{format}: {}", ran.err);
        let files = buckets.take(url).files;
        let opening = buckets.opening(url);
        let (requests, lists) = (opening.requests, opening.lists);
        assert_eq!(buckets.run(&["ls", url]).code, 0);
        let listing = buckets.take(url).requests;
        told += &format!(
            "{format}, {files} files: {requests} requests, {lists} lists; {listing} for ls\n"
        );
        let may_list = format != "torch_dist";
        if requests > most || (lists > 0 && !may_list) || listing > to_list {
            told += "    WRONG\n";
        }
    }
    assert!(!told.contains("WRONG"), "{told}");
}

/// Its objects are in the pickle of a file, which opening has read.
#[test]
fn objects_of_a_pt_cost_nothing_more() {
    let fixture = |name: &str| {
        let dir = env!("CARGO_MANIFEST_DIR");
        format!("{dir}/tests/fixtures/{name}")
    };
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (
        fixture("optimizer.pt"),
        dir.path().join("copy").display().to_string(),
    );
    let bytes = std::fs::metadata(&src).unwrap().len();
    let dry = run(&["convert", &src, &dst, "--dry-run", "--json"]).json();
    let told = dry["reads"][0]["bytes"].as_u64().unwrap();
    assert!(told < 2 * bytes + (72 << 10), "{told} of {bytes}");
}

/// They are small and lie beside each other, so that many take one request.
#[test]
fn a_scan_of_many_objects_takes_few_requests() {
    let buckets = Buckets::default();
    let requests_for = |objects: usize| {
        let mut state = StateDict::new();
        for i in 0..objects {
            let key = format!("state{i}");
            state.insert(
                &*key,
                ShardedObject::item(&key, Payload::Value(Value::Int(7))),
            );
        }
        let url = format!("bucket://objects-{objects}");
        let save = reshard::save(&state, &*url).dialect(Dialect::Dcp);
        wait(save.stores(buckets.stores()).into_future()).unwrap();
        buckets.take(&url);
        buckets.run(&["verify", "--quick", &url]).ok();
        buckets.take(&url).requests
    };
    let (few, many) = (requests_for(3), requests_for(300));
    assert!(many <= few + 3, "{few} for 3 objects, and {many} for 300");
}
