//! A conversion as a program calls it. What it keeps of a checkpoint is tested through `reshard convert`.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use bytes::Bytes;
use reshard::{
    BackendVersion, DType, ErrorKind, ShardedTensor, StateDict, Tensor,
    blocking::{self, Checkpoint},
    strategy::{
        Make, Registration, Registry, Result as StrategyResult, SaveCx, SaveFormat,
        SaveShardedStrategy, StorageWriter,
    },
    torch_dist::TorchDistConfig,
};
use reshard_convert::{Asked, ConvertError, Finding, MAX_RANKS, Over, check_files, convert};
use reshard_storage::{Store, StoreExt, testkit::MemoryStore};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Two tensors of 48 and 8 bytes at a place that no other test has.
fn saved(name: &str) -> (MemoryStore, Checkpoint) {
    let url = format!("memory://{name}");
    let mut state = StateDict::new();
    for (key, len) in [("model.w", 12), ("optim.m", 2)] {
        let data = Tensor::from_vec(&[len], (0..len).map(|i| i as f32).collect()).unwrap();
        state.insert(key, ShardedTensor::full(key, data));
    }
    blocking::save(&state, &url).unwrap();
    (MemoryStore::at(&url), Checkpoint::open(&url).unwrap())
}

fn is_empty(url: &str) -> bool {
    futures::executor::block_on(MemoryStore::at(url).files())
        .unwrap()
        .is_empty()
}

#[test]
fn what_is_chosen_is_written_as_so_many_ranks() {
    let (_, source) = saved("chosen");
    let (checked, written) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let adder = |to: &Arc<AtomicU64>| {
        let to = Arc::clone(to);
        move |n| {
            to.fetch_add(n, Ordering::Relaxed);
        }
    };
    let conversion = convert(&source, "memory://chosen-to")
        .ranks(3)
        .keys(|key| key.starts_with("model"))
        .checked(adder(&checked))
        .progress(adder(&written));
    let report = blocking::run(conversion).unwrap();
    assert_eq!(
        (report.tensors, report.objects, report.saved.totals.ranks),
        (1, 0, 3)
    );
    // Only what is chosen is checked, while it is read.
    assert!(checked.load(Ordering::Relaxed) >= 48 && written.load(Ordering::Relaxed) >= 48);
    let to = Checkpoint::open("memory://chosen-to").unwrap();
    let w = to.tensor("model.w").unwrap();
    assert_eq!(w.chunks().len(), 3);
    assert_eq!(
        w.read(..).unwrap(),
        source.tensor("model.w").unwrap().read(..).unwrap()
    );
    assert!(to.tensor("optim.m").is_err());
}

#[test]
fn what_is_prepared_says_what_it_would_write_and_writes_nothing() {
    let (_, source) = saved("prepared");
    let setup = convert(&source, "memory://prepared-to").ranks(2);
    let prepared = futures::executor::block_on(setup.prepare()).unwrap();
    assert_eq!(
        (prepared.tensors(), prepared.objects(), prepared.bytes()),
        (2, 0, 56)
    );
    drop(prepared);
    assert!(is_empty("memory://prepared-to"));
}

/// A format of a program, under the name of another one.
#[derive(Debug)]
struct Own(TorchDistConfig);

impl SaveFormat for Own {
    fn key(&self) -> BackendVersion {
        self.0.key()
    }

    fn settings(&self) -> serde_json::Value {
        self.0.settings()
    }

    fn writer(&self, cx: &SaveCx<'_>) -> StrategyResult<Arc<dyn StorageWriter>> {
        self.0.writer(cx)
    }
}

#[test]
fn a_changed_setting_does_not_replace_a_format_by_another_one_of_its_name() {
    let (_, source) = saved("own");
    let to = |config: SaveShardedStrategy| {
        let conversion = convert(&source, "memory://own-to").strategy(config);
        blocking::run(conversion.files_per_rank(2)).map_err(|e| e.to_string())
    };
    let e = to(Own(TorchDistConfig::new()).into()).unwrap_err();
    assert!(e.contains("set it in the strategy"), "{e}");
    assert!(is_empty("memory://own-to"));
    to(TorchDistConfig::new().into()).unwrap();
}

/// A format whose JSON is silent about one setting.
#[derive(Debug, Default)]
struct Silent {
    #[expect(dead_code, reason = "only Debug shows it")]
    unsaid: bool,
}

impl SaveFormat for Silent {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("silent", 1)
    }

    fn settings(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn writer(&self, cx: &SaveCx<'_>) -> StrategyResult<Arc<dyn StorageWriter>> {
        TorchDistConfig::new().writer(cx)
    }
}

#[test]
fn a_changed_setting_does_not_lose_another_one() {
    let (_, source) = saved("silent");
    let mut registry = Registry::linked().unwrap();
    registry
        .register(Registration {
            backend: "silent",
            version: 1,
            origin: "this test",
            origin_version: "1",
            make: Make::SaveSharded(|_| Ok(Arc::new(Silent::default()))),
        })
        .unwrap();
    let to = |unsaid| {
        let conversion = convert(&source, "memory://silent-to")
            .registry(registry.clone())
            .strategy(Silent { unsaid });
        blocking::run(conversion.files_per_rank(2)).map_err(|e| e.to_string())
    };
    let e = to(true).unwrap_err();
    assert!(e.contains("set it in the strategy"), "{e}");
    assert!(is_empty("memory://silent-to"));
    to(false).unwrap();
}

#[test]
fn the_ledger_says_what_becomes_of_each_item() {
    let (_, source) = saved("ledger");
    let to = "memory://ledger-to";
    let setup = || {
        convert(&source, to)
            .keys(|key| key != "optim.m")
            .dtype(DType::BFloat16)
    };
    let prepared = futures::executor::block_on(setup().prepare()).unwrap();
    let lines: Vec<String> = prepared
        .ledger()
        .entries()
        .iter()
        .map(|e| e.to_string())
        .collect();
    let want = [
        "tensor model.w: cast from float32 to bfloat16",
        "tensor optim.m: left out: its key is not chosen",
    ];
    assert_eq!(lines, want);
    let error = blocking::run(setup().lossless(true)).unwrap_err();
    let ConvertError::Lossy { losses, .. } = &error else {
        unreachable!("{error}")
    };
    assert_eq!((losses.len(), error.kind()), (2, ErrorKind::Unsupported));
    assert!(
        want.iter().all(|line| error.to_string().contains(line)),
        "{error}"
    );
    assert!(is_empty(to));
    // A wider type holds the same numbers.
    let wider = convert(&source, to).dtype(DType::Float64).lossless(true);
    let report = blocking::run(wider).unwrap();
    let line = "tensors: 2 cast from float32 to float64";
    assert_eq!(report.ledger.to_string(), line);
}

#[test]
fn a_place_is_not_written_over_itself_in_any_store() {
    let (_, source) = saved("itself");
    let error = blocking::run(convert(&source, "memory://itself").overwrite(true)).unwrap_err();
    assert!(
        matches!(
            error,
            ConvertError::Over {
                over: Over::Source,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Invalid);
    // By whatever name.
    let place: Arc<dyn Store> = Arc::new(MemoryStore::at("memory://itself"));
    let error =
        blocking::run(convert(&source, "elsewhere").store(place).overwrite(true)).unwrap_err();
    assert!(matches!(error, ConvertError::Over { .. }), "{error}");
    // One in the other, by their URLs.
    for (url, want) in [
        ("memory://itself/copy", Some(Over::Inside)),
        ("memory://itself/a/b/", Some(Over::Inside)),
        ("memory://itself-2", None),
    ] {
        let place: Arc<dyn Store> = Arc::new(MemoryStore::at(url));
        let done = blocking::run(convert(&source, "elsewhere").store(place));
        let over = match done {
            Err(ConvertError::Over { over, .. }) => Some(over),
            Err(e) => unreachable!("{e}"),
            Ok(_) => None,
        };
        assert_eq!(over, want, "{url}");
    }
}

#[test]
fn damage_of_what_is_chosen_is_found_before_anything_is_written() {
    let (store, source) = saved("damaged");
    let chunk = source
        .tensor("model.w")
        .unwrap()
        .chunks()
        .remove(0)
        .parts
        .remove(0);
    let file = futures::executor::block_on(store.read(&chunk.file, 0..chunk.range.end)).unwrap();
    let data: Vec<u8> = (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let at = file.windows(data.len()).position(|w| w == data).unwrap();
    let mut whole = futures::executor::block_on(async {
        let len = store.len(&chunk.file).await.unwrap().unwrap();
        store.read(&chunk.file, 0..len).await.unwrap().to_vec()
    });
    whole[at + 1] ^= 1;
    store.put(chunk.file, Bytes::from(whole));
    let source = Checkpoint::open("memory://damaged").unwrap();
    let error = blocking::run(convert(&source, "memory://damaged-to")).unwrap_err();
    let ConvertError::Unsound {
        finding: Finding::Damaged,
        what,
        ..
    } = &error
    else {
        unreachable!("{error}")
    };
    assert_eq!(
        (what.key.as_deref(), error.kind()),
        (Some("model.w"), ErrorKind::Corrupt)
    );
    assert!(is_empty("memory://damaged-to"));
    let rest = convert(&source, "memory://damaged-to").keys(|key| key == "optim.m");
    assert_eq!(blocking::run(rest).unwrap().tensors, 1);
}

#[test]
fn what_no_conversion_should_be_is_refused_by_name() {
    let (_, source) = saved("refused");
    let to = "memory://refused-to";
    for ranks in [0, MAX_RANKS + 1] {
        let error = blocking::run(convert(&source, to).ranks(ranks)).unwrap_err();
        assert!(
            matches!(error, ConvertError::Ranks(n) if n == ranks),
            "{error}"
        );
    }
    let error = blocking::run(convert(&source, to).ranks(2).files_per_rank(40_000)).unwrap_err();
    assert!(
        matches!(
            error,
            ConvertError::TooManyFiles {
                files: 80_000,
                max: 16_384,
                asked: Asked::ByRanks
            }
        ),
        "{error}"
    );
    assert!(check_files(1, 16_384).is_ok() && check_files(2, 8_193).is_err());
    let error = blocking::run(convert(&source, to).keys(|_| false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(is_empty(to));
}

/// A tensor of a megabyte from three ranks, and its first chunk's file.
fn large(name: &str) -> (MemoryStore, String) {
    let url = format!("memory://{name}");
    let numbers: Vec<f32> = (0..1 << 18).map(|i| i as f32).collect();
    let whole = Tensor::from_vec(&[1 << 10, 1 << 8], numbers).unwrap();
    let mut state = StateDict::new();
    state.insert("w", ShardedTensor::full("w", whole));
    blocking::save(&state, format!("{url}-one")).unwrap();
    let one = Checkpoint::open(format!("{url}-one")).unwrap();
    blocking::run(convert(&one, &url).ranks(3)).unwrap();
    (MemoryStore::at(&url), url)
}

#[test]
fn damage_that_is_found_while_tensors_are_read_leaves_nothing() {
    let (store, url) = large("streamed");
    let source = Checkpoint::open(&url).unwrap();
    let chunk = source
        .tensor("w")
        .unwrap()
        .chunks()
        .remove(1)
        .parts
        .remove(0);
    let mut whole = futures::executor::block_on(async {
        let len = store.len(&chunk.file).await.unwrap().unwrap();
        store.read(&chunk.file, 0..len).await.unwrap().to_vec()
    });
    let middle = (chunk.range.start + chunk.range.end) / 2;
    whole[middle as usize] ^= 1;
    store.put(chunk.file, Bytes::from(whole));
    let source = Checkpoint::open(&url).unwrap();
    for ranks in [1, 2, 5] {
        for size in [None, Some(100_000)] {
            let to = "memory://streamed-to";
            let mut conversion = convert(&source, to).ranks(ranks);
            if let Some(size) = size {
                conversion = conversion.max_shard_size(size);
            }
            let error = blocking::run(conversion).unwrap_err();
            assert!(matches!(error, ConvertError::Write(_)), "{error}");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(is_empty(to));
        }
    }
}

#[test]
fn elements_are_read_once_and_all_of_them_are_checked() {
    let (_, url) = large("once");
    let source = Checkpoint::open(&url).unwrap();
    for ranks in [1, 2, 5] {
        let seen = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&seen);
        let to = format!("memory://once-to-{ranks}");
        let conversion = convert(&source, &to).ranks(ranks).checked(move |n| {
            told.fetch_add(n, Ordering::Relaxed);
        });
        let report = blocking::run(conversion).unwrap();
        assert_eq!((report.tensors, seen.load(Ordering::Relaxed)), (1, 1 << 20));
    }
}

#[test]
fn the_time_of_a_conversion_has_that_of_its_checks() {
    let home = tempfile::tempdir().unwrap();
    let (from, to) = (home.path().join("from"), home.path().join("to"));
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[1], vec![1f32]).unwrap();
    state.insert("w", ShardedTensor::full("w", data));
    blocking::save(&state, &from).unwrap();
    let source = Checkpoint::open(&from).unwrap();
    let slow = std::time::Duration::from_millis(20);
    let conversion = convert(&source, to.display().to_string())
        .checked(move |_| std::thread::sleep(slow))
        // Then all is read and checked before anything is written.
        .journal("timed")
        .resume(true);
    let report = blocking::run(conversion).unwrap();
    assert!(
        report.checking >= slow && report.took > report.checking,
        "{report:?}"
    );
}

/// A folder of files of safetensors, as a model hub has it; all elements are `value`.
fn hub(dir: &std::path::Path, value: f32) {
    std::fs::create_dir_all(dir).unwrap();
    let mut map = serde_json::Map::new();
    for i in 1..=3 {
        let (key, file) = (
            format!("w{i}"),
            format!("model-0000{i}-of-00003.safetensors"),
        );
        let header =
            serde_json::json!({ &key: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} });
        let header = header.to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.extend([value; 4].iter().flat_map(|x| x.to_le_bytes()));
        std::fs::write(dir.join(&file), bytes).unwrap();
        map.insert(key, file.into());
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
}

#[test]
fn a_source_that_is_replaced_file_by_file_is_not_mixed() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let to = dir.path().join("to").display().to_string();
    hub(&old, 1.0);
    hub(&new, 2.0);
    let source = Checkpoint::open(old.display().to_string()).unwrap();
    let last = "model-00003-of-00003.safetensors";
    let replaced = move || {
        // Once is enough: the others fail.
        drop(std::fs::rename(new.join(last), old.join(last)));
    };
    let e = blocking::run(convert(&source, &to).checked(move |_| replaced())).unwrap_err();
    let text = e.to_string();
    assert!(
        text.contains(last) && text.contains("was replaced"),
        "{text}"
    );
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{text}");
    assert!(!std::path::Path::new(&to).exists());
}

#[test]
fn links_and_modes_of_files_do_not_change_a_source() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("ckpt");
    hub(&at, 1.0);
    let source = Checkpoint::open(at.display().to_string()).unwrap();
    let snapshot = futures::executor::block_on(reshard_convert::Snapshot::of(&source));
    let check = || futures::executor::block_on(snapshot.check());
    let file = at.join("model-00001-of-00003.safetensors");
    std::fs::hard_link(&file, dir.path().join("link")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).unwrap();
    check().unwrap();
    // Written in place.
    let other = at.join("model-00002-of-00003.safetensors");
    let bytes = std::fs::read(&other).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    let written = std::fs::File::options().write(true).open(&other).unwrap();
    std::io::Write::write_all(&mut &written, &bytes).unwrap();
    written.set_modified(later).unwrap();
    assert!(check().unwrap_err().to_string().contains("model-00002"));
}
