//! Limits on the size of files, as they are on disk: no file exceeds the limit of a policy unless it holds a single item that can't be
//! cut, and reports have the lengths of the files that were written.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{
    BackendVersion, DType, Dialect, ErrorKind, KeptPlan, OpenOptions, Registry, Save, SaveReport,
    ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking,
    policy::{AllInOne, ByOwner, MaxShardSize, PolicyMetrics, Then},
    strategy::{OpenCx, SaveShardedStrategy},
};
use reshard_convert::convert;
use reshard_laws::{
    law,
    ranks::{group, save},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
    time::Duration,
};

/// The formats that take policies.
const FORMATS: [&str; 4] = ["torch_dist", "torch_save", "safetensors", "tensor_bundle"];

/// Some types that TensorFlow does not read in slices.
const TYPES: [DType; 5] = [
    DType::UInt8,
    DType::Float16,
    DType::Float32,
    DType::Float64,
    DType::UInt32,
];

/// A tensor, in rows over all ranks or on one of them.
#[derive(Clone, Debug)]
struct Part {
    dtype: DType,
    shape: Vec<u64>,
    in_rows: bool,
}

#[derive(Clone, Debug)]
struct Model {
    ranks: u32,
    tensors: Vec<Part>,
    /// The lengths of objects.
    objects: Vec<usize>,
}

fn models() -> impl Strategy<Value = Model> {
    let shape = prop_oneof![
        4 => (1u64..60, 1u64..40).prop_map(|(rows, columns)| vec![rows, columns]),
        2 => (1u64..4, 1u64..8, 1u64..30).prop_map(|(a, b, c)| vec![a, b, c]),
        1 => Just(vec![]),
        1 => Just(vec![3, 0]),
        1 => (1u64..3000).prop_map(|n| vec![n]),
    ];
    let part = (prop::sample::select(&TYPES[..]), shape, any::<bool>());
    let part = part.prop_map(|(dtype, shape, in_rows)| Part {
        dtype,
        shape,
        in_rows,
    });
    let objects = prop::collection::vec(0usize..6000, 0..4);
    (1u32..4, prop::collection::vec(part, 1..9), objects).prop_map(|(ranks, tensors, objects)| {
        Model {
            ranks,
            tensors,
            objects,
        }
    })
}

impl Model {
    /// The states of all ranks.
    fn states(&self) -> Vec<StateDict> {
        let mut states: Vec<StateDict> = (0..self.ranks).map(|_| StateDict::new()).collect();
        let ranks = u64::from(self.ranks);
        // One tensor has elements.
        let first = Part {
            dtype: DType::Float32,
            shape: vec![9, 50],
            in_rows: true,
        };
        for (n, part) in self.tensors.iter().chain([&first]).enumerate() {
            let (key, rows) = (format!("layers.{n}.weight"), part.shape.first());
            let in_rows = part.in_rows && rows.is_some_and(|rows| *rows > 0);
            for (rank, state) in (0u64..).zip(&mut states) {
                let leaf = if in_rows {
                    let mut shape = part.shape.clone();
                    let tensor = filled(part.dtype, &shape);
                    if let Some(all) = shape.first_mut() {
                        *all *= ranks;
                    }
                    ShardedTensor::from_rank_offsets(&key, tensor, &[(0, rank, ranks)]).unwrap()
                } else if rank == n as u64 % ranks {
                    ShardedTensor::full(&key, filled(part.dtype, &part.shape))
                } else {
                    continue;
                };
                state.insert(&*key, leaf);
            }
        }
        for (n, length) in self.objects.iter().enumerate() {
            let (key, value) = (
                format!("rng.{n}"),
                Value::Bytes(vec![n as u8; *length].into()),
            );
            let object = ShardedObject::new(&key, value, &[1], &[0], 0).unwrap();
            states[n % self.ranks as usize].insert(&*key, object);
        }
        states
    }

    fn without_objects(&self) -> Self {
        Self {
            objects: Vec::new(),
            ..self.clone()
        }
    }
}

fn filled(dtype: DType, shape: &[u64]) -> Tensor {
    let count = shape.iter().product::<u64>() * dtype.size();
    Tensor::new(dtype, shape, vec![1u8; count as usize]).unwrap()
}

/// Which policy has the limit.
#[derive(Clone, Copy, Debug)]
enum By {
    Size,
    Owner,
    OneRank,
}

impl By {
    fn set<'a>(self, save: Save<'a>, limit: u64) -> Save<'a> {
        let size = MaxShardSize::new(limit);
        match self {
            Self::Size => save.policy(size),
            Self::Owner => save.policy(Then::new(ByOwner::each(), size)),
            Self::OneRank => save.policy(Then::new(AllInOne::new().gather(), size)),
        }
    }
}

fn config(format: &str, has_objects: bool) -> SaveShardedStrategy {
    let settings = match format {
        "tensor_bundle" => serde_json::json!({ "format": format, "in_folder": "ckpt" }),
        "safetensors" => serde_json::json!({ "format": format, "keep_objects": has_objects }),
        _ => serde_json::json!({ "format": format }),
    };
    serde_json::from_value(settings).unwrap()
}

/// Saves with a limit on all ranks, and returns the coordinator's report.
fn saved(
    model: &Model,
    format: &'static str,
    url: &Path,
    limit: Option<(By, u64)>,
    set: impl for<'a> Fn(Save<'a>) -> Save<'a> + Send + Sync + 'static,
) -> Result<SaveReport, reshard::Error> {
    let has_objects = !model.objects.is_empty();
    let outcomes = save(
        group(model.ranks),
        model.states(),
        &url.display().to_string(),
        move |_, save| {
            let save = set(save
                .strategy(config(format, has_objects))
                .dialect(Dialect::Dcp));
            match limit {
                Some((by, limit)) => by.set(save, limit),
                None => save,
            }
        },
    );
    let mut reports = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(reports.swap_remove(0))
}

/// The items of each file: their keys and where they begin, and whether a policy could have cut them.
fn items(format: &str, place: &Path) -> BTreeMap<String, BTreeMap<(String, Vec<u64>), bool>> {
    let url = place.display().to_string();
    let store = Arc::new(reshard::storage::LocalStore::open(&url).unwrap());
    let load = Registry::linked()
        .unwrap()
        .load_sharded(&BackendVersion::new(format, 1))
        .unwrap();
    let reader = block_on(load.open(&OpenCx::new(store))).unwrap();
    let mut out: BTreeMap<String, BTreeMap<(String, Vec<u64>), bool>> = BTreeMap::new();
    for tensor in reader.metadata().tensors() {
        for (id, region) in tensor.chunks().filter(|(_, region)| !region.is_empty()) {
            for part in reader.locate_chunk(id) {
                let of_file = out.entry(part.file.to_string()).or_default();
                let is_whole = region.lengths == tensor.shape();
                let could = format == "torch_dist"
                    || format == "tensor_bundle"
                        && !matches!(tensor.dtype(), DType::Float16 | DType::UInt32);
                assert!(is_whole || could, "{} is cut", tensor.key());
                let can_be_cut = could && region.volume() != Some(1);
                of_file.insert((tensor.key().into(), region.offsets.to_vec()), can_be_cut);
            }
        }
    }
    for (id, key) in reader.metadata().objects() {
        for part in reader.locate_object(id) {
            let of_file = out.entry(part.file.to_string()).or_default();
            of_file.insert((key.into(), Vec::new()), false);
        }
    }
    out
}

/// Compares the files of a checkpoint with the limit and with the report.
fn check(format: &str, place: &Path, limit: u64, metrics: &PolicyMetrics) {
    let mut lengths = Vec::new();
    for (file, items) in items(format, place) {
        let length = fs::metadata(place.join(&file)).unwrap().len();
        let is_single = items.len() == 1 && !items.values().any(|can_be_cut| *can_be_cut);
        assert!(
            length <= limit || is_single,
            "{format}: {file} has {length} bytes with {items:?}, the limit is {limit}"
        );
        lengths.push(length);
    }
    let found = (
        lengths.len() as u64,
        lengths.iter().sum::<u64>(),
        lengths.iter().max().copied().unwrap(),
        lengths.iter().min().copied().unwrap(),
    );
    let told = (
        metrics.shards,
        metrics.bytes,
        metrics.largest,
        metrics.smallest,
    );
    assert_eq!(told, found, "{format}: shards, bytes, largest, smallest");
}

/// Figures that don't depend on time.
fn timeless(report: &SaveReport) -> Option<PolicyMetrics> {
    let mut metrics = report.policy.clone()?;
    metrics.duration = Duration::ZERO;
    Some(metrics)
}

proptest! {
    #![proptest_config(law(90))]

    #[test]
    fn no_file_exceeds_the_limit_and_reports_have_the_lengths_of_files(
        model in models(), format in prop::sample::select(&FORMATS[..]), limit in 2_500u64..30_000,
        by in prop::sample::select(vec![By::Size, By::Size, By::Owner, By::OneRank]),
    ) {
        // Several files of torch.save hold no objects.
        let model = if format == "torch_save" { model.without_objects() } else { model };
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("ckpt");
        let planned = saved(&model, format, &place, Some((by, limit)), |save| save.dry_run(true));
        prop_assert!(!place.exists());
        let real = saved(&model, format, &place, Some((by, limit)), |save| save);
        match (planned, real) {
            (Ok(planned), Ok(real)) => {
                check(format, &place, limit, real.policy.as_ref().unwrap());
                prop_assert_eq!(timeless(&planned), timeless(&real), "{}", format);
                prop_assert_eq!((planned.files(), planned.bytes()), (real.files(), real.bytes()), "{}", format);
            }
            // All objects of safetensors are in one file, which can't be divided.
            (Err(planned), Err(real)) if format == "safetensors" => {
                let bytes: usize = model.objects.iter().sum();
                prop_assert!(model.objects.len() > 1 && bytes + 3000 * model.objects.len() > limit as usize);
                prop_assert!(real.to_string().contains("objects"), "{}", real);
                prop_assert_eq!((planned.to_string(), real.kind()), (real.to_string(), ErrorKind::Invalid));
                prop_assert!(!place.exists());
            }
            (planned, real) => panic!("{format}: {planned:?}, but {real:?}"),
        }
    }

    #[test]
    fn a_format_of_one_file_refuses_a_limit_that_the_file_would_exceed(
        model in models(), is_torch in any::<bool>(), percent in 50u64..150,
    ) {
        let home = tempfile::tempdir().unwrap();
        let (format, name) = match is_torch {
            true => ("torch_save", "model.pt"),
            false => ("safetensors", "model.safetensors"),
        };
        let model = if is_torch { model } else { model.without_objects() };
        let place = home.path().join(name);
        saved(&model, format, &place, None, |save| save).unwrap();
        let before = fs::read(&place).unwrap();
        let length = before.len() as u64;
        for limit in [length, length - 1, length * percent / 100] {
            let outcomes = [true, false].map(|dry_run| {
                // A dry run has no objects of other ranks.
                let dry_run = dry_run && (model.ranks == 1 || model.objects.is_empty());
                saved(&model, format, &place, Some((By::Size, limit)), move |save| save.overwrite(true).dry_run(dry_run))
            });
            for outcome in outcomes {
                match outcome {
                    Ok(report) => {
                        let told = report.policy.unwrap();
                        prop_assert!(length <= limit);
                        prop_assert_eq!((told.shards, told.largest, told.bytes), (1, length, length));
                    }
                    Err(e) => {
                        prop_assert!(length > limit, "{}", e);
                        prop_assert_eq!(e.kind(), ErrorKind::Invalid);
                        prop_assert!(e.to_string().contains(&format!("{name} would have {length} bytes")), "{}", e);
                    }
                }
            }
            prop_assert_eq!(&fs::read(&place).unwrap(), &before);
            prop_assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "nothing is left");
        }
    }
}

#[test]
fn what_every_file_states_of_the_checkpoint_counts() {
    let home = tempfile::tempdir().unwrap();
    let (from, to) = (
        home.path().join("model.safetensors"),
        home.path().join("to"),
    );
    // A file with a text of 3 KB, and tensors of 1,000 bytes.
    let mut header = BTreeMap::new();
    let text = serde_json::json!({ "note": "x".repeat(3000) });
    header.insert("__metadata__".to_owned(), text);
    for n in 0..20u64 {
        let entry = serde_json::json!({ "dtype": "U8", "shape": [1000], "data_offsets": [n * 1000, n * 1000 + 1000] });
        header.insert(format!("t{n}"), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&from, [&length[..], &header, &[7; 20_000]].concat()).unwrap();
    let source = block_on(OpenOptions::new().open(from.display().to_string())).unwrap();
    let run = |dst: &Path, dry_run| {
        let convert = convert(&source, dst.display().to_string()).max_shard_size(8_000);
        let convert = convert
            .to(BackendVersion::new("safetensors", 1))
            .dry_run(dry_run);
        blocking::run(convert)
    };
    let planned = run(&to, true).unwrap().saved;
    let real = run(&to, false).unwrap().saved;
    check("safetensors", &to, 8_000, real.policy.as_ref().unwrap());
    assert_eq!(timeless(&planned), timeless(&real));
    let told = real.policy.unwrap();
    assert!(told.shards < 9 && told.split_tensors == 0, "{told:?}");
    let names: BTreeSet<String> = items("safetensors", &to).into_keys().collect();
    for name in names {
        let bytes = fs::read(to.join(&name)).unwrap();
        assert!(bytes.windows(9).any(|w| w == b"xxxxxxxxx"), "{name}");
    }
    // One file has no room for all of them.
    let e = run(&home.path().join("small.safetensors"), false).unwrap_err();
    let why = std::iter::successors(Some(&e as &dyn std::error::Error), |e| e.source());
    let why: Vec<String> = why.map(|e| e.to_string()).collect();
    assert!(
        why.iter()
            .any(|e| e.contains("more than the limit of 8 kB")),
        "{why:?}"
    );
}

#[test]
fn objects_that_have_grown_are_planned_anew() {
    const LIMIT: u64 = 20_000;
    let home = tempfile::tempdir().unwrap();
    let kept = Arc::new(KeptPlan::new());
    for (n, (length, reused, files)) in [(1_000, 0, 1), (1_000, 1, 1), (9_000, 1, 2)]
        .into_iter()
        .enumerate()
    {
        let model = Model {
            ranks: 1,
            tensors: Vec::new(),
            objects: vec![length; 2],
        };
        let (place, kept) = (home.path().join(n.to_string()), Arc::clone(&kept));
        let plans = Arc::clone(&kept);
        let saved = saved(
            &model,
            "torch_dist",
            &place,
            Some((By::Size, LIMIT)),
            move |save| save.kept_plan(&plans),
        )
        .unwrap();
        assert_eq!((kept.reused(), saved.files()), (reused, files), "{length}");
        check("torch_dist", &place, LIMIT, saved.policy.as_ref().unwrap());
    }
}
