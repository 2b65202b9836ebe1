//! Commands on checkpoints in an object store.

use crate::{
    Ran, run_with, sample,
    states::{self, Saved},
};
use futures::{TryStreamExt as _, executor::block_on};
use reshard::{
    ErrorKind, OpenOptions, Stores,
    blocking::Checkpoint,
    storage::{Progress, Store, StoreScheme},
};
use reshard_convert::Snapshot;
use reshard_object_store::{
    ObjectStorePlace, ObjectStores,
    object_store::{
        ObjectMeta, ObjectStore as _, ObjectStoreExt as _, memory::InMemory,
        path::Path as ObjectPath,
    },
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Runs a command that knows places `bucket://NAME` in an object store of this process.
fn remote(args: &[&str]) -> Ran {
    static PLACES: Mutex<BTreeMap<String, Arc<dyn Store>>> = Mutex::new(BTreeMap::new());
    let mut stores = Stores::linked().unwrap();
    let open = |url: &str| {
        let mut places = PLACES.lock().unwrap();
        let place = places.entry(url.to_owned());
        let place = place.or_insert_with(|| Arc::new(ObjectStorePlace::in_memory()));
        Ok(Arc::clone(place))
    };
    let scheme = StoreScheme::new("bucket", "a test", env!("CARGO_PKG_VERSION"), open);
    stores.register(scheme).unwrap();
    run_with(stores, args)
}

fn digest(url: &str) -> String {
    remote(&["digest", url, "--json"]).ok()
}

/// A local copy of what lies somewhere.
fn back(saved: &Saved, url: &str, name: &str) -> String {
    let to = saved.beside(name);
    remote(&["convert", url, &to]).ok();
    digest(&to)
}

#[test]
fn every_command_that_reads_takes_a_url_of_an_object_store() {
    let saved = states::dcp();
    let url = "bucket://reads";
    let text = remote(&["convert", &saved.url, url, "--ranks", "3"]).ok();
    assert!(text.starts_with("converted  "), "{text}");

    assert_eq!(digest(url), digest(&saved.url));
    let listed = |url: &str| remote(&["ls", url]).ok();
    assert_eq!(listed(url), listed(&saved.url));
    let inspected = remote(&["inspect", url, "--json"]).json();
    let there = remote(&["inspect", &saved.url, "--json"]).json();
    let count = |json: &serde_json::Value| json["tensors"].as_array().unwrap().len();
    assert_eq!(count(&inspected), count(&there));
    for level in [&["verify", url][..], &["verify", url, "--quick"]] {
        let ran = remote(level);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    }
    assert_eq!(remote(&["diff", url, &saved.url]).code, 0);
    assert_eq!(remote(&["stats", url]).code, 0);
    // Values, of each key.
    let keys = remote(&["ls", url, "--json"]).json();
    let keys = keys["keys"].as_array().unwrap();
    assert!(keys.len() > 3);
    for key in keys.iter().map(|key| key.as_str().unwrap()) {
        let shown = |url: &str| remote(&["show", url, key]).ok();
        assert_eq!(shown(url), shown(&saved.url), "{key}");
    }
}

#[test]
fn items_are_not_removed_from_an_object_store() {
    let saved = states::dcp();
    let url = "bucket://removal";
    remote(&["convert", &saved.url, url]).ok();
    let before = digest(url);
    let refused = remote(&["remove", url, "model."]);
    assert_eq!(refused.code, 2, "{}", refused.out);
    let reason = "a new version would need copies of all data files";
    assert!(refused.err.contains(reason), "{}", refused.err);
    assert_eq!(digest(url), before);
}

#[test]
fn conversions_lead_into_an_object_store_through_it_and_back() {
    let saved = states::dcp();
    let want = digest(&saved.url);
    let shards: &[&str] = &["--max-shard-size", "1kB"];
    let drop: &[&str] = &["--drop-objects"];
    for (name, format, how) in [
        ("torch_dist", "torch_dist", &[][..]),
        ("torch_save", "torch_save", shards),
        ("safetensors", "safetensors", &[]),
        ("zarr", "zarr", &[]),
        ("zarr3", "zarr3", &[]),
        ("tensor_bundle", IN_FOLDER, &[]),
    ] {
        let [first, second] = ["first", "second"].map(|at| format!("bucket://{at}-{name}"));
        let to = ["convert", &saved.url, &first, "--to", format];
        // It says on standard error what was left out.
        let ran = remote(&[&to[..], how, drop].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        let to = ["convert", &first, &second, "--to", format, "--ranks", "2"];
        remote(&[&to[..], how, drop].concat()).ok();
        assert_eq!(digest(&second), want, "{name}");
        assert_eq!(back(&saved, &second, name), want, "{name}");
    }
}

/// Files with a prefix have the same names in every version, and there may be any others beside them.
const IN_FOLDER: &str = r#"{ "format": "tensor_bundle", "in_folder": "ckpt"}"#;

#[test]
fn files_with_a_prefix_are_not_written_to_a_bucket_and_the_error_says_what_is() {
    let saved = states::dcp();
    let clouds = ObjectStores::new().with_client("s3://bucket", Arc::new(InMemory::new()));
    let stores = Stores::linked().unwrap().with("s3", clouds);
    let to = ["s3://bucket/models/ckpt-1", "--to", "tensor_bundle"];
    let ran = run_with(
        stores,
        &[&["convert", &saved.url], &to[..], &["--drop-objects"]].concat(),
    );
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("in_folder"), "{}", ran.err);
}

#[test]
fn a_checkpoint_in_an_object_store_is_replaced_and_the_old_version_stays_until_prune() {
    let (one, two) = (states::dcp(), states::megatron());
    let url = "bucket://replaced";
    remote(&["convert", &one.url, url]).ok();
    let refused = remote(&["convert", &one.url, url]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("--overwrite"), "{}", refused.err);
    remote(&["convert", &one.url, url, "--overwrite", "--ranks", "2"]).ok();
    assert_eq!(digest(url), digest(&one.url));

    let dry = remote(&["prune", url, "--older-than", "0s", "--dry-run"]).ok();
    assert!(dry.contains("a version that was replaced"), "{dry}");
    remote(&["prune", url, "--older-than", "0s"]).ok();
    let dry = remote(&["prune", url, "--older-than", "0s", "--dry-run"]).ok();
    assert!(!dry.contains("a version that was replaced"), "{dry}");
    assert_eq!(digest(url), digest(&one.url));

    // Three files of Megatron Core's dialect would have to change together.
    let url = "bucket://megatron";
    remote(&["convert", &two.url, url]).ok();
    let refused = remote(&["convert", &two.url, url, "--overwrite"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("--common object"), "{}", refused.err);
    assert_eq!(digest(url), digest(&two.url));
}

#[test]
fn a_limit_of_bandwidth_holds_for_reads_and_for_writes() {
    let saved = sample::many();
    let copy = saved.beside("copy");
    for args in [
        &["digest", &saved.url][..],
        &["convert", &saved.url, &copy],
        &["convert", &saved.url, "bucket://limited"],
    ] {
        let start = Instant::now();
        remote(&[args, &["--bandwidth", "10MB/s"]].concat()).ok();
        // 3.2 MB; what is read first need not wait.
        let took = start.elapsed();
        assert!(took > Duration::from_millis(150), "{args:?}: {took:?}");
    }
    assert_eq!(digest(&copy), digest(&saved.url));
    assert_eq!(digest("bucket://limited"), digest(&saved.url));
}

#[test]
fn a_checkpoint_that_is_one_file_is_written_to_a_bucket_replaced_and_pruned() {
    let saved = states::dcp();
    let client = Arc::new(InMemory::new());
    let stores = ObjectStores::new().with_client("s3://bucket", client.clone());
    let run = |args: &[&str]| {
        let stores = Stores::linked().unwrap().with("s3", stores.clone());
        run_with(stores, args)
    };
    let objects = || {
        let all: Vec<_> = block_on(client.list(None).try_collect()).unwrap();
        all.into_iter()
            .map(|m: ObjectMeta| m.location.to_string())
            .collect::<Vec<_>>()
    };
    let digest = |of: &str| run(&["digest", of, "--json"]).ok();
    for file in ["one.safetensors", "one.pt"] {
        let (url, local) = (&*format!("s3://bucket/models/{file}"), saved.beside(file));
        let drop = ["--drop-objects"];
        let convert = |src: &str, dst: &str, more: &[&str]| {
            run(&[&["convert", src, dst][..], &drop, more].concat())
        };
        assert_eq!(convert(&saved.url, &local, &[]).code, 0);
        let want = digest(&local);
        let ran = convert(&saved.url, url, &["--ranks", "2"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(digest(url), want, "{file}");
        assert_eq!(run(&["verify", url]).code, 0);
        let refused = convert(&saved.url, url, &[]);
        assert!(refused.err.contains("--overwrite"), "{}", refused.err);
        let ran = convert(&local, url, &["--overwrite"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(digest(url), want, "{file}");
        assert!(objects().iter().all(|o| o.starts_with("models/one.")));

        // What a killed conversion leaves.
        let left = format!("models/{file}/1-1a2b3c4d5e6f7081-0/object");
        let path = ObjectPath::parse(&left).unwrap();
        block_on(client.put(&path, "half".into())).unwrap();
        assert_eq!(digest(url), want, "{file}");
        run(&["prune", url, "--older-than", "0s"]).ok();
        assert!(!objects().contains(&left));
        assert_eq!(digest(url), want, "{file}");
    }
    assert_eq!(objects(), ["models/one.pt", "models/one.safetensors"]);
}

/// Checkpoints of all kinds of programs and states. A change tries the first and each third one after it.
#[cfg(feature = "aws")]
const KINDS: [&str; 10] = [
    "dcp/basic",
    "dcp/all_dtypes",
    "dcp/fsdp2_adam_w4",
    "dcp/objects",
    "dcp/replicated_lowest_w4",
    "dcp/views",
    "dcp/zstd",
    "megatron/mc012_dtypes_w1",
    "megatron/mc012_factories_w4",
    "megatron/mc012_fully_parallel_world_w6",
];

/// As a program does that copies files one by one.
#[test]
fn objects_that_are_replaced_while_they_are_read_are_not_called_damaged() {
    let saved = states::dcp();
    let url = "s3://bucket/checkpoint";
    for format in ["torch_dist", "safetensors", "zarr", "zarr3"] {
        let client = Arc::new(InMemory::new());
        let clouds = ObjectStores::new().with_client("s3://bucket", client.clone());
        let stores = Stores::linked().unwrap().with("s3", clouds);
        let to = ["convert", &saved.url, url, "--to", format, "--drop-objects"];
        let ran = run_with(stores.clone(), &[&to[..], &["--ranks", "2"]].concat());
        assert_eq!(ran.code, 0, "{format}: {}", ran.err);
        let open = || {
            let how = OpenOptions::new().stores(stores.clone());
            Checkpoint::open_with(how, url).unwrap()
        };
        let checkpoint = open();
        // No tensor is read yet.
        let snapshot = block_on(Snapshot::of(&checkpoint));
        let objects: Vec<ObjectMeta> = block_on(client.list(None).try_collect()).unwrap();
        for ObjectMeta { location, .. } in &objects {
            let same = block_on(async { client.get(location).await?.bytes().await });
            block_on(client.put(location, same.unwrap().into())).unwrap();
        }
        for t in checkpoint.tensors() {
            let e = t.read(..).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{format}: {e:?}");
            assert!(format!("{e:?}").contains("was replaced"), "{e:?}");
        }
        let is_damaged = |of: &Checkpoint| match of.verify(true, Progress::none()) {
            Ok(report) => (!report.damage.is_empty(), !report.unchecked.is_empty()),
            Err(e) => (e.kind() == ErrorKind::Corrupt, true),
        };
        assert_eq!(is_damaged(&checkpoint), (false, true), "{format}");
        block_on(snapshot.check()).unwrap();
        // Whoever opens it now reads it.
        let checkpoint = open();
        assert_eq!(is_damaged(&checkpoint), (false, false), "{format}");
        let gone = open();
        for ObjectMeta { location, .. } in objects {
            block_on(client.delete(&location)).unwrap();
        }
        assert_eq!(is_damaged(&gone), (false, true), "{format}");
    }
}

#[test]
#[cfg(feature = "aws")]
#[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
fn needs_clouds_conversions_between_directories_and_buckets_keep_the_digest() {
    let clouds = ObjectStores::new()
        .with_option("aws_endpoint", std::env::var("RESHARD_MOTO").unwrap())
        .with_option("aws_allow_http", "true")
        .with_option("aws_region", "us-east-1")
        .with_option("aws_access_key_id", "reshard")
        .with_option("aws_secret_access_key", "not-secret");
    let run = |args: &[&str]| {
        let stores = Stores::linked().unwrap().with("s3", clouds.clone());
        run_with(stores, args).ok()
    };
    let run_dropping = |args: &[&str]| {
        let stores = Stores::linked().unwrap().with("s3", clouds.clone());
        let ran = run_with(stores, &[args, &["--drop-objects"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
    };
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
    let home = tempfile::tempdir().unwrap();
    for kind in KINDS.iter().step_by(reshard_model::testkit::one_in(3)) {
        let local = format!("{fixtures}/{kind}/ckpt");
        let want = run(&["digest", &local, "--json"]);
        let bucket = format!("s3://reshard/conversions {}/{kind}", std::process::id());
        let (first, second) = (format!("{bucket}/first"), format!("{bucket}/second"));
        let back = format!("{}/{}", home.path().display(), kind.replace('/', "-"));
        run(&["convert", &local, &first, "--ranks", "3"]);
        run(&["convert", &first, &second, "--ranks", "2"]);
        run(&["convert", &second, &back]);
        for place in [&first, &second, &back] {
            assert_eq!(run(&["digest", place, "--json"]), want, "{place}");
        }
        if *kind == "dcp/basic" {
            for file in ["one.safetensors", "one.pt"] {
                let one = format!("{bucket}/{file}");
                run_dropping(&["convert", &local, &one]);
                run_dropping(&["convert", &first, &one, "--overwrite"]);
                assert_eq!(run(&["digest", &one, "--json"]), want, "{one}");
            }
        }
    }
}

#[test]
#[cfg(not(any(feature = "aws", feature = "gcp", feature = "http")))]
fn a_url_of_a_scheme_that_is_not_linked_names_the_feature_that_has_it() {
    use crate::run;
    for (url, feature) in [
        ("s3://bucket/a", "aws"),
        ("gs://bucket/a", "gcp"),
        ("https://host/a", "http"),
    ] {
        let ran = run(&["inspect", url]);
        assert_eq!(ran.code, 2, "{}", ran.out);
        assert!(ran.err.contains(feature), "{url}: {}", ran.err);
    }
}
