//! Prefixes and folders: what a save puts there, what it leaves alone, and what it refuses.

use futures::{executor::block_on, future::join_all};
use reshard::{
    DType, Data, ErrorKind, LocalGroup, Region, ShardedTensor, StateDict, Tensor, Value,
    blocking::{self, Checkpoint},
    model::{BoxError, Dims, TensorSource},
    policy::MaxShardSize,
};
use reshard_tensor_bundle::{
    ObjectGraphSource, TensorBundleConfig,
    testkit::{self, EntryFields},
};
use std::{
    collections::BTreeMap,
    fs,
    future::IntoFuture,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Files below a folder, hidden ones too, with their bytes.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let file = |e: fs::DirEntry| {
        let bytes = if e.path().is_dir() {
            Vec::new()
        } else {
            fs::read(e.path()).unwrap()
        };
        (e.file_name().into_string().unwrap(), bytes)
    };
    entries.map(file).collect()
}

fn names(folder: &Path) -> Vec<String> {
    files(folder).into_keys().collect()
}

fn state(n: f32) -> StateDict {
    let mut state = StateDict::new();
    let weight = Tensor::from_vec(&[4, 2], vec![n; 8]).unwrap();
    state.insert("weight", ShardedTensor::full("weight", weight));
    state.insert("step", 7);
    state.insert("names", Value::List(vec!["a".into(), "b".into()]));
    state
}

fn url(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

fn weight(url: &str) -> Vec<f32> {
    let found = Checkpoint::open(url).unwrap();
    found
        .tensor("weight")
        .unwrap()
        .read(..)
        .unwrap()
        .to_vec()
        .unwrap()
}

#[test]
fn a_prefix_is_a_checkpoint_beside_others() {
    let home = tempfile::tempdir().unwrap();
    let config = TensorBundleConfig::default;
    blocking::run(reshard::save(&state(1.), url(home.path(), "ckpt-1")).strategy(config()))
        .unwrap();
    let of_first = files(home.path());
    let expected = [
        "ckpt-1.data-00000-of-00001",
        "ckpt-1.index",
        "ckpt-1.reshard.json",
        "ckpt-1.reshard_bundle.json",
    ];
    assert_eq!(names(home.path()), expected);

    let second = url(home.path(), "ckpt-12");
    let save = state(2.);
    let save = reshard::save(&save, &second)
        .strategy(config())
        .policy(MaxShardSize::new(40));
    assert_eq!(blocking::run(save).unwrap().files(), 2);
    let now = files(home.path());
    assert!(of_first.iter().all(|(name, bytes)| now[name] == *bytes));
    assert!(now.contains_key("ckpt-12.data-00001-of-00002"));

    // One begins like the other, and each is read as itself.
    assert_eq!(weight(&url(home.path(), "ckpt-1")), [1.; 8]);
    assert_eq!(weight(&second), [2.; 8]);
    let found = Checkpoint::open(&second).unwrap();
    assert_eq!(found.object("step").unwrap(), Value::Int(7));
    assert_eq!(
        found.object("names").unwrap(),
        Value::List(vec!["a".into(), "b".into()])
    );
    let policy = found.sidecar().0.unwrap().policy.unwrap();
    assert!(policy.contains("40"), "{policy}");
    assert!(
        found
            .verify(true, reshard::storage::Progress::none())
            .unwrap()
            .damage
            .is_empty()
    );
    let roles = found.roles().unwrap();
    assert!(
        roles
            .iter()
            .all(|(_, role)| *role != reshard::strategy::FileRole::Foreign),
        "{roles:?}"
    );

    // Equal states give equal bytes.
    let again = url(home.path(), "again");
    blocking::run(reshard::save(&state(1.), &again).strategy(config())).unwrap();
    let now = files(home.path());
    for (name, bytes) in of_first {
        assert!(now[&name.replace("ckpt-1.", "again.")] == bytes, "{name}");
    }
    // Without a state file nobody knows which one a folder means.
    let e = Checkpoint::open(home.path().display().to_string()).unwrap_err();
    assert!(
        format!("{e:?}").contains("3 TensorFlow checkpoints"),
        "{e:?}"
    );
}

#[test]
fn a_prefix_is_exactly_the_name_of_its_index() {
    let home = tempfile::tempdir().unwrap();
    let save = |name: &str, n| {
        let at = url(home.path(), name);
        let state = state(n);
        let save = reshard::save(&state, &at).strategy(TensorBundleConfig::default());
        blocking::run(save.overwrite(true)).map(drop)
    };
    for (name, n) in [("ckpt-10", 10.), ("ckpt-1.5", 1.5), ("ckpt-1.index", 3.)] {
        save(name, n).unwrap();
    }
    for other in ["ckpt-1.txt", "ckpt-1.json", "ckpt-1checkpoint"] {
        fs::write(home.path().join(other), "mine").unwrap();
    }
    let first = url(home.path(), "ckpt-1");
    let e = Checkpoint::open(&first).unwrap_err();
    assert!(e.is_no_checkpoint(), "{e:?}");
    // They are not in the way of a save either.
    save("ckpt-1", 1.).unwrap();
    for (name, n) in [
        ("ckpt-1", 1.),
        ("ckpt-10", 10.),
        ("ckpt-1.5", 1.5),
        ("ckpt-1.index", 3.),
    ] {
        assert_eq!(weight(&url(home.path(), name)), [n; 8], "{name}");
    }
}

#[test]
fn a_prefix_that_exists_is_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    let at = url(home.path(), "ckpt");
    let save = |n, overwrite| {
        let state = state(n);
        let save = reshard::save(&state, &at).strategy(TensorBundleConfig::default());
        blocking::run(save.overwrite(overwrite)).map(drop)
    };
    save(1., true).unwrap();
    let before = files(home.path());
    assert_eq!(save(2., false).unwrap_err().kind(), ErrorKind::Exists);
    let e = save(2., true).unwrap_err();
    assert!(
        e.kind() == ErrorKind::Unsupported && format!("{e:?}").contains("or save to a folder"),
        "{e:?}"
    );
    assert!(files(home.path()) == before);
}

/// TensorFlow's reader of slices has no cases for them: "Dtype half not supported".
const READ_WHOLE: [DType; 8] = [
    DType::Float16,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Float8E4M3Fn,
    DType::Float8E4M3FnUz,
    DType::Float8E5M2,
    DType::Float8E5M2FnUz,
];

#[test]
fn types_that_tensorflow_reads_only_whole_are_stored_whole() {
    let others = [DType::Float32, DType::BFloat16, DType::Int8, DType::Bool];
    let home = tempfile::tempdir().unwrap();
    let mut count = 0;
    for dtype in READ_WHOLE.into_iter().chain(others) {
        let bytes: Vec<u8> = (0..24 * dtype.size()).map(|n| n as u8 % 2).collect();
        let whole = Tensor::new(dtype, &[4, 6], bytes).unwrap();
        // Ranks with rows or columns, and a policy that cuts what they have.
        for (axis, limit) in [(0, None), (1, None), (0, Some(9)), (1, Some(9))] {
            let at = url(home.path(), &format!("ckpt-{count}"));
            count += 1;
            let states: Vec<StateDict> = (0..2)
                .map(|rank| {
                    let mut region = Region::whole(&[4, 6]);
                    region.lengths[axis] /= 2;
                    region.offsets[axis] = rank * region.lengths[axis];
                    let part = whole.narrow(&region);
                    let leaf = ShardedTensor::from_rank_offsets("w", part, &[(axis, rank, 2)]);
                    let mut state = StateDict::new();
                    state.insert("w", leaf.unwrap());
                    let other = Tensor::from_vec(&[2], vec![3i64, 4]).unwrap();
                    state.insert("n", ShardedTensor::replicated("n", other, rank as u32));
                    state
                })
                .collect();
            let groups = LocalGroup::new(2);
            let saves = states.iter().zip(&groups).map(|(state, group)| {
                let save = reshard::save(state, &at)
                    .group(group)
                    .strategy(TensorBundleConfig::default());
                let save = match limit {
                    Some(limit) => save.policy(MaxShardSize::new(limit)),
                    None => save,
                };
                save.into_future()
            });
            let saved = block_on(join_all(saves));
            saved.into_iter().for_each(|saved| drop(saved.unwrap()));

            let found = Checkpoint::open(&at).unwrap();
            let tensor = found.metadata().tensor("w").unwrap();
            let is_whole = tensor.chunks().count() == 1;
            assert_eq!(
                is_whole,
                READ_WHOLE.contains(&dtype),
                "{dtype} {axis} {limit:?}"
            );
            let read = found.tensor("w").unwrap().read(..).unwrap();
            assert!(
                read.to_bytes() == whole.to_bytes(),
                "{dtype} {axis} {limit:?}"
            );
            let report = found.verify(true, reshard::storage::Progress::none());
            assert!(report.unwrap().damage.is_empty());
            assert_eq!(found.producer().loadable_by, ["TensorFlow"]);
        }
    }
}

/// Elements that are made while they are read.
struct Made {
    /// The longest read, in bytes.
    longest: AtomicU64,
    bytes: AtomicU64,
    rows: u64,
    fails: bool,
}

impl Made {
    fn new(rows: u64, fails: bool) -> Arc<Self> {
        Arc::new(Self {
            longest: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            rows,
            fails,
        })
    }

    fn state(self: &Arc<Self>) -> StateDict {
        let rows = self.rows;
        let mut leaf = ShardedTensor::region_of(
            "weight",
            DType::UInt8,
            &[rows, 1024],
            Region::whole(&[rows, 1024]),
        );
        leaf.data = Data::Lazy(Arc::clone(self) as Arc<dyn TensorSource>);
        let mut state = StateDict::new();
        state.insert("weight", leaf);
        state
    }
}

impl TensorSource for Made {
    fn dtype(&self) -> DType {
        DType::UInt8
    }

    fn shape(&self) -> Dims {
        [self.rows, 1024].into()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        if self.fails {
            return Err("the source has dried up".into());
        }
        self.longest.fetch_max(out.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        for (row, line) in
            (region.offsets[0]..).zip(out.chunks_exact_mut(region.lengths[1] as usize))
        {
            line.fill(row as u8);
        }
        Ok(())
    }
}

#[test]
fn what_is_made_while_it_is_written_is_never_in_memory_as_a_whole() {
    let home = tempfile::tempdir().unwrap();
    const ROWS: u64 = 40 << 10;
    for (name, policy) in [("whole", None), ("cut", Some(MaxShardSize::new(7 << 20)))] {
        let (made, at) = (Made::new(ROWS, false), url(home.path(), name));
        let state = made.state();
        let save = reshard::save(&state, &at).strategy(TensorBundleConfig::default());
        let save = match policy {
            Some(policy) => save.policy(policy),
            None => save,
        };
        blocking::run(save).unwrap();
        assert_eq!(made.bytes.load(Ordering::Relaxed), ROWS << 10);
        assert!(made.longest.load(Ordering::Relaxed) <= 16 << 20);
        let found = Checkpoint::open(&at).unwrap();
        let rows = found
            .tensor("weight")
            .unwrap()
            .read(Region::rows(7_000..7_002))
            .unwrap();
        let wanted: Vec<u8> = [7_000u64, 7_001]
            .iter()
            .flat_map(|row| [*row as u8; 1024])
            .collect();
        assert_eq!(rows.to_vec::<u8>().unwrap(), wanted);
    }
}

#[test]
fn a_save_that_fails_leaves_only_what_was_there() {
    let home = tempfile::tempdir().unwrap();
    blocking::run(
        reshard::save(&state(1.), url(home.path(), "ckpt-1"))
            .strategy(TensorBundleConfig::default()),
    )
    .unwrap();
    let before = files(home.path());
    let (state, at) = (Made::new(4, true).state(), url(home.path(), "ckpt-2"));
    let e = blocking::run(reshard::save(&state, &at).strategy(TensorBundleConfig::default()))
        .unwrap_err();
    assert!(format!("{e:?}").contains("dried up"), "{e:?}");
    assert!(files(home.path()) == before);
}

#[test]
fn a_folder_of_one_checkpoint_appears_and_is_replaced_as_a_whole() {
    let home = tempfile::tempdir().unwrap();
    let at = url(home.path(), "model");
    let folder = home.path().join("model");
    let config = || {
        TensorBundleConfig::default()
            .with_in_folder("ckpt")
            .with_checkpoint_state(true)
    };
    let save = |n, config| {
        let state = state(n);
        let save = reshard::save(&state, &at)
            .dialect(reshard::Dialect::Dcp)
            .strategy(config)
            .overwrite(true);
        blocking::run(save).unwrap();
    };
    save(1., config());
    let expected = [
        "checkpoint",
        "ckpt.data-00000-of-00001",
        "ckpt.index",
        "ckpt.reshard_bundle.json",
        "reshard.json",
    ];
    assert_eq!(names(&folder), expected);
    assert_eq!(weight(&at), [1.; 8]);
    assert_eq!(weight(&url(&folder, "ckpt")), [1.; 8]);

    fs::write(folder.join("notes.txt"), "mine").unwrap();
    save(2., config().with_object_names(true));
    assert_eq!(weight(&at), [2.; 8]);
    let now = names(&folder);
    assert!(
        now.contains(&"notes.txt".into()) && !now.contains(&"ckpt.data-00000-of-00001".into()),
        "{now:?}"
    );

    // Megatron Core's dialect has room in a folder.
    let at = url(home.path(), "megatron");
    let config = TensorBundleConfig::default().with_in_folder("m");
    blocking::run(reshard::save(&state(3.), &at).strategy(config)).unwrap();
    let common = blocking::load_common(&at).unwrap();
    assert_eq!(common.get("step").and_then(|v| v.leaf()?.as_int()), Some(7));
    assert_eq!(weight(&at), [3.; 8]);
}

#[test]
fn what_a_bundle_can_not_hold_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let save = |key: &str, dtype| {
        let mut state = StateDict::new();
        state.insert(
            "x",
            ShardedTensor::full(key, Tensor::zeros(key, dtype, &[2]).unwrap()),
        );
        let at = url(home.path(), "ckpt");
        let save = reshard::save(&state, &at).strategy(TensorBundleConfig::default());
        format!("{:?}", blocking::run(save).unwrap_err())
    };
    for dtype in [
        DType::Complex32,
        DType::Float8E8M0Fnu,
        DType::Float4E2M1FnX2,
    ] {
        let e = save("a.b", dtype);
        assert!(e.contains("a.b") && e.contains(dtype.name()), "{e}");
    }
    assert!(save("\0a", DType::Int8).contains("mean something else"));
    let both = |a: &str, b: &str| {
        let mut state = StateDict::new();
        for key in [a, b] {
            state.insert(
                key,
                ShardedTensor::full(key, Tensor::zeros(key, DType::Int8, &[2]).unwrap()),
            );
        }
        let at = url(home.path(), "ckpt");
        let config = TensorBundleConfig::default().with_object_names(true);
        format!(
            "{:?}",
            blocking::run(reshard::save(&state, &at).strategy(config)).unwrap_err()
        )
    };
    let e = both("a.b", "a/b");
    assert!(e.contains("a.b and a/b would get one name"), "{e}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn a_graph_that_is_given_is_stored() {
    let home = tempfile::tempdir().unwrap();
    let at = url(home.path(), "ckpt");
    let graph = ObjectGraphSource::Given(b"\x0a\x02\x0a\0".to_vec().into());
    let config = TensorBundleConfig::default().with_object_graph(graph);
    blocking::run(reshard::save(&state(1.), &at).strategy(config)).unwrap();
    let found = Checkpoint::open(&at).unwrap();
    assert_eq!(
        found.object(reshard_tensor_bundle::OBJECT_GRAPH).unwrap(),
        Value::from("\n\u{2}\n\0")
    );
}

#[test]
fn settings_that_can_not_work_are_refused() {
    for (config, told) in [
        (
            TensorBundleConfig::default().with_checkpoint_state(true),
            "needs in_folder",
        ),
        (
            TensorBundleConfig::default().with_in_folder("a/b"),
            "no name",
        ),
        (TensorBundleConfig::default().with_in_folder(""), "no name"),
    ] {
        let e = reshard::strategy::SaveFormat::check(&config)
            .unwrap_err()
            .to_string();
        assert!(e.contains(told), "{e}");
    }
}

#[test]
fn a_damaged_entry_is_left_out_by_no_load() {
    let home = tempfile::tempdir().unwrap();
    let at = url(home.path(), "ckpt");
    let mut state = state(1.);
    let other = Tensor::from_vec(&[2], vec![3i64, 4]).unwrap();
    state.insert("other", ShardedTensor::full("other", other));
    let save = reshard::save(&state, &at).strategy(TensorBundleConfig::default());
    drop(blocking::run(save).unwrap());
    // As TensorFlow leaves it.
    for name in names(home.path()) {
        if name.contains("reshard") {
            fs::remove_file(home.path().join(name)).unwrap();
        }
    }
    let index = home.path().join("ckpt.index");
    let mut entries = testkit::entries_of(&fs::read(&index).unwrap()).unwrap();
    let mut found = entries.iter_mut();
    let (_, entry) = found.find(|(key, _)| key.starts_with(b"weight")).unwrap();
    let mut fields = EntryFields::parse(entry).unwrap();
    fields.size -= 4;
    *entry = fields.to_bytes();
    fs::write(&index, testkit::table(&entries)).unwrap();
    let opened = Checkpoint::open(&at).unwrap();
    let damaged: Vec<String> = opened.producer().damaged.into_keys().collect();
    assert_eq!(damaged, ["weight"]);
    let loads = [
        opened.load_plain_tensors().map(drop),
        opened.state().map(drop),
        opened.load_tensors_metadata().map(drop),
    ];
    for load in loads {
        assert_eq!(load.unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
