//! What TensorFlow 2.21 answers about sharding policies, partitioners and slice specs, case by case.
//!
//! Where TensorFlow never returns, raises or loses a tensor, the compatible mode must say so, and the default mode must have
//! the right answer. Where something else is done on purpose, the test says what, and holds that it is done nowhere else.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use reshard::{
    DType, Region,
    model::Dims,
    policy::{
        Content, Limits, MaxShardSize, Overhead, Piece, ShardByTask, ShardingPolicy, Shards,
        SliceSpec, decide,
        partition::{ElementType, Grid, PartitionSpec, Partitioner},
    },
};
use reshard_golden::cases;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

fn list(v: &Value) -> &[Value] {
    v.as_array().unwrap()
}

fn text(v: &Value) -> &str {
    v.as_str().unwrap()
}

fn dims(v: &Value) -> Option<Dims> {
    v.as_array()?.iter().map(Value::as_u64).collect()
}

/// An element type of TensorFlow's, or another one of that size: sizes are all that matters here.
fn dtype(name: &str, item: Option<u64>) -> DType {
    let known = name.parse().ok();
    let same_size = || DType::ALL.iter().copied().find(|d| Some(d.size()) == item);
    known
        .or_else(same_size)
        .unwrap_or_else(|| panic!("{name} of {item:?} bytes"))
}

/// What a piece borrows.
#[derive(Debug)]
struct Tensor {
    key: String,
    content: Kind,
    shape: Dims,
    region: Region,
    task: u32,
}

#[derive(Debug)]
enum Kind {
    Fixed(DType),
    Strings(Vec<u64>),
}

impl Tensor {
    fn of(v: &Value) -> Self {
        let lengths = dims(&v["shape"]).unwrap();
        let spec = ["slice_spec", "spec"]
            .into_iter()
            .find_map(|name| v[name].as_str())
            .unwrap_or_default();
        let (shape, region) = match spec.parse().unwrap() {
            SliceSpec::Whole => (lengths.clone(), Region::whole(&lengths)),
            SliceSpec::Part { full_shape, region } => (full_shape, region),
        };
        let content = match v["dtype"].as_str().unwrap() {
            "string" => Kind::Strings(dims(&v["string_lengths"]).unwrap_or_default().to_vec()),
            name => Kind::Fixed(dtype(name, v["itemsize"].as_u64())),
        };
        Self {
            key: text(&v["key"]).into(),
            content,
            shape,
            region,
            task: task(v).unwrap_or(0),
        }
    }

    fn piece(&self) -> Piece<'_> {
        let (content, bytes) = match &self.content {
            Kind::Fixed(dtype) => (
                Content::Tensor(*dtype),
                self.region.volume().unwrap() * dtype.size(),
            ),
            Kind::Strings(lengths) => (Content::Strings(lengths), lengths.iter().sum()),
        };
        Piece {
            key: &self.key,
            name: &self.key,
            content,
            global_shape: &self.shape,
            region: &self.region,
            task: self.task,
            device: "cpu",
            owner: "",
            tag: None,
            bytes,
            whole: false,
            overhead: Overhead::default(),
        }
    }
}

fn tensors(v: &Value) -> Vec<Tensor> {
    list(v).iter().map(Tensor::of).collect()
}

fn pieces(tensors: &[Tensor]) -> Vec<Piece<'_>> {
    tensors.iter().map(Tensor::piece).collect()
}

/// A policy's own answer, as the goldens have it: a shard is a list of keys, each with the specs of its slices.
fn answer(policy: &dyn ShardingPolicy, tensors: &[Tensor]) -> Result<Value, String> {
    let mut out = Shards::with_limit(1 << 20);
    policy
        .shard(&pieces(tensors), &mut out)
        .map_err(|e| e.to_string())?;
    let shards = out.finish().unwrap().into_iter().map(|cuts| {
        let mut shard: Vec<(&str, Vec<String>)> = Vec::new();
        for cut in cuts {
            let tensor = &tensors[cut.piece as usize];
            let spec = SliceSpec::part(&tensor.shape, cut.region)
                .unwrap()
                .to_string();
            match shard.iter_mut().find(|(key, _)| *key == tensor.key) {
                Some((_, specs)) => specs.push(spec),
                None => shard.push((&tensor.key, vec![spec])),
            }
        }
        json!(shard)
    });
    Ok(shards.collect())
}

#[test]
fn the_compatible_mode_cuts_as_tensorflow_does_and_says_where_tensorflow_does_not_return() {
    for case in cases("max_shard_size_policy") {
        let (tensors, limit) = (
            tensors(&case["tensors"]),
            case["max_shard_size"].as_u64().unwrap(),
        );
        let answer = answer(&MaxShardSize::tensorflow(limit), &tensors);
        match (&case["shards"], &case["never_returns_at"]) {
            (Value::Null, Value::Null) => {
                assert!(!case["error"].is_null());
                let message = answer.expect_err(&case.to_string());
                assert!(message.contains("TensorFlow's policy"), "{message}");
            }
            (Value::Null, key) => {
                let message = answer.expect_err(&case.to_string());
                assert!(
                    message.starts_with(&format!("{} ", text(key)))
                        && message.contains("never returns"),
                    "{message}"
                );
            }
            (shards, _) => assert_eq!(answer.as_ref(), Ok(shards), "{case}"),
        }
    }
}

#[test]
fn the_default_mode_has_the_right_answer_for_all_of_that() {
    for case in cases("max_shard_size_policy") {
        let (tensors, limit) = (
            tensors(&case["tensors"]),
            case["max_shard_size"].as_u64().unwrap(),
        );
        let pieces = pieces(&tensors);
        let Ok(sharding) = decide(&MaxShardSize::new(limit), &pieces, Limits::default()) else {
            assert_eq!(limit, 0, "{case}");
            continue;
        };
        for shard in &sharding.shards {
            let bytes: u64 = shard
                .cuts
                .iter()
                .map(|c| pieces[c.piece as usize].bytes_of(&c.region).unwrap())
                .sum();
            let one = shard.cuts.len() == 1 && shard.cuts[0].region.volume() == Some(1);
            assert!(bytes <= limit || one, "{bytes} bytes in a shard: {case}");
        }
        if let Some(theirs) = case["shards"].as_array() {
            let ours = sharding.metrics.shards;
            let without_empty = tensors.iter().filter(|t| !t.region.is_empty()).count();
            // Without the object graph's bytes, which TensorFlow does not count, it never takes more.
            let graph = tensors
                .iter()
                .any(|t| t.key == "_CHECKPOINTABLE_OBJECT_GRAPH");
            assert!(
                ours <= theirs.len() as u64 || graph || without_empty == 0,
                "{ours} shards: {case}"
            );
        }
    }
}

#[test]
fn a_shard_by_task_holds_everything_of_it() {
    for case in cases("shard_by_task_policy") {
        let tensors = tensors(&case["tensors"]);
        // TensorFlow's spec of a whole tensor is empty, and of no tensors it makes a shard, which it then can't save.
        let keys: Vec<&str> = tensors.iter().map(|t| t.key.as_str()).collect();
        let wanted: Vec<_> = list(&case["shards"][0])
            .iter()
            .map(|entry| text(&entry[0]))
            .collect();
        assert_eq!(keys, wanted);
        let sharding = decide(&ShardByTask::new(), &pieces(&tensors), Limits::default()).unwrap();
        assert_eq!(sharding.shards.len(), usize::from(!tensors.is_empty()));
        let cuts = sharding.shards.iter().flat_map(|s| &s.cuts);
        assert!(
            cuts.zip(0..)
                .all(|(c, i)| c.piece == i && c.region == tensors[i as usize].region)
        );
    }
}

/// The task in a device's name.
fn task(v: &Value) -> Option<u32> {
    let device = v["device"].as_str()?;
    device
        .split('/')
        .find_map(|part| part.strip_prefix("task:"))
        .map(|n| n.parse().unwrap())
}

/// Answers with what a case says.
#[derive(Debug, Serialize, Deserialize)]
struct Said(Vec<Vec<(usize, Region)>>);

#[typetag::serde]
impl ShardingPolicy for Said {
    fn description(&self) -> String {
        "the description".into()
    }

    fn shard(&self, _: &[Piece<'_>], out: &mut Shards) -> reshard::policy::Result<()> {
        for shard in &self.0 {
            out.start();
            for (piece, region) in shard {
                out.push(*piece, region.clone())?;
            }
        }
        Ok(())
    }
}

#[test]
fn what_tensorflow_would_refuse_is_refused_or_can_not_be_said_and_slices_are_allowed() {
    for case in cases("validate_shards") {
        let tag = text(&case["tag"]);
        let mut inputs = tensors(&case["inputs"]);
        // Every piece has a task here. TensorFlow lets a tensor without one lie with any other.
        let given = list(&case["inputs"]);
        if let Some(known) = given.iter().find_map(task) {
            inputs
                .iter_mut()
                .zip(given)
                .filter(|(_, v)| task(v).is_none())
                .for_each(|(t, _)| t.task = known);
        }
        let mut unsaid = false;
        let mut cut = |v: &Value| {
            let slice = Tensor::of(v);
            let same_spec =
                |(_, v2): &(usize, &Value)| v2["key"] == v["key"] && v2["spec"] == v["spec"];
            let same_key = |(_, v2): &(usize, &Value)| v2["key"] == v["key"];
            let find = given
                .iter()
                .enumerate()
                .find(same_spec)
                .or_else(|| given.iter().enumerate().find(same_key));
            let (number, input) = find.unwrap_or((usize::MAX >> 33, v));
            // A cut has no type and no task of its own; they are the piece's.
            unsaid |= v["dtype"] != input["dtype"] || task(v) != task(input);
            (number, slice.region)
        };
        let said = list(&case["shards"])
            .iter()
            .map(|shard| list(shard).iter().map(&mut cut).collect())
            .collect();
        let result = decide(&Said(said), &pieces(&inputs), Limits::default());
        match text(&case["result"]) {
            "ok" => assert!(result.is_ok(), "{tag}: {result:?}"),
            // TensorFlow's check knows no slices of what was whole.
            "KeyError" => assert!(result.is_ok(), "{tag}: {result:?}"),
            _ => {
                let told = result
                    .as_ref()
                    .err()
                    .map(|e| format!("{e}: {:?}", std::error::Error::source(e)));
                let Some(error) = told else {
                    assert!(unsaid, "{tag} is not refused");
                    continue;
                };
                // Where several things are wrong, TensorFlow may name another one.
                let words = [
                    "not leave anything out",
                    "overlaps",
                    "NoPiece",
                    "the piece",
                    "a shard is a file of one task",
                ];
                assert!(error.contains("the description"), "{tag}: {error}");
                assert!(words.iter().any(|w| error.contains(w)), "{tag}: {error}");
            }
        }
    }
}

/// A partitioner as configuration would have it.
fn partitioner(case: &Value) -> Result<Box<dyn Partitioner>, serde_json::Error> {
    let mut config = case["args"].clone();
    config["type"] = match text(&case["partitioner"]) {
        "fixed_size_partitioner" | "FixedShardsPartitioner" => "fixed_shards_partitioner",
        "min_max_variable_partitioner" | "MinSizePartitioner" => "min_size_partitioner",
        "variable_axis_size_partitioner" | "MaxSizePartitioner" => "max_size_partitioner",
        other => panic!("{other}"),
    }
    .into();
    // The classes are told the axis when they are called.
    if !case["axis"].is_null() {
        config["axis"] = case["axis"].clone();
    }
    serde_json::from_value(config)
}

#[test]
fn partitioners_say_what_tensorflows_say_where_those_can_be_done() {
    for case in cases("partitioners") {
        // Shapes that are not fully known can't be said.
        let Some(shape) = dims(&case["shape"]) else {
            continue;
        };
        let element = match text(&case["dtype"]) {
            "string" => ElementType::String,
            name => dtype(name, None).into(),
        };
        let parts = partitioner(&case).map_err(|e| e.to_string());
        let parts = parts.and_then(|p| p.partitions(3, &shape, element).map_err(|e| e.to_string()));
        match dims(&case["partitions"]) {
            Some(theirs) if case["args"]["num_shards"] == 0 => {
                assert!(theirs.contains(&0) && parts.is_err(), "{case}")
            }
            // TensorFlow gives no parts to an axis without indexes; here it is one part.
            Some(theirs) => assert_eq!(
                parts,
                Ok(theirs.iter().map(|&n| n.max(1)).collect()),
                "{case}"
            ),
            // TensorFlow divides by zero, or looks for an axis of a scalar.
            None if shape.is_empty() || shape.contains(&0) => {
                assert_eq!(parts, Ok(Dims::splat(1, shape.len())), "{case}")
            }
            None => assert!(parts.is_err(), "{case}"),
        }
    }
}

#[test]
fn uneven_splits_are_tensorflows() {
    for case in cases("uneven_splits") {
        let shape = dims(&case["full_shape"]).unwrap();
        let mut parts = Dims::splat(1, shape.len());
        parts[case["axis"].as_u64().unwrap() as usize] = case["num_slices"].as_u64().unwrap();
        let grid = Grid::even(&shape, &parts).unwrap();
        let specs: Vec<String> = grid
            .regions()
            .map(|r| SliceSpec::part(&shape, r).unwrap().to_string())
            .collect();
        assert_eq!(json!(specs), case["specs"]);
        // With more parts than indexes the last ones are empty, and TensorFlow then can't make the variable.
        let strict = PartitionSpec::Partitions(parts.clone()).grid(&shape);
        assert_eq!(
            strict.is_err(),
            grid.splits().iter().any(|s| s.len() > 1 && s.contains(&0)),
            "{case}"
        );
    }
}

#[test]
fn slice_specs_are_printed_as_tensorflow_prints_them() {
    for case in cases("slice_spec_format") {
        let [shape, offset, lengths] =
            ["full_shape", "var_offset", "var_shape"].map(|name| dims(&case[name]).unwrap());
        let spec = SliceSpec::part(&shape, Region::new(offset, lengths)).unwrap();
        // Of a scalar TensorFlow prints a space, and takes it away before it is used.
        assert_eq!(spec.to_string(), text(&case["spec"]).trim_end(), "{case}");
    }
}

#[test]
fn slice_specs_are_read_as_tensorflows_saver_reads_them() {
    for case in cases("slice_spec_parse") {
        let spec = text(&case["spec"]).parse::<SliceSpec>();
        let tensor = dims(&case["tensor_shape"]).unwrap();
        let theirs = &case["cpp"];
        let Some(full) = dims(&theirs["full_shape"]) else {
            // It may also not go with the tensor that was to be saved, which a spec does not know.
            let other =
                matches!(&spec, Ok(SliceSpec::Part { region, .. }) if region.lengths != tensor);
            assert!(spec.is_err() || other, "{case} is read as {spec:?}");
            continue;
        };
        let spec = spec.unwrap_or_else(|e| panic!("{case}: {e}"));
        match &spec {
            SliceSpec::Whole => assert_eq!(full, tensor, "{case}"),
            SliceSpec::Part { full_shape, region } => {
                assert_eq!((full_shape, &region.lengths), (&full, &tensor), "{case}");
                // A part that is everything is stored as a tensor that was never cut.
                let stored = if *region == Region::whole(&full) {
                    vec![]
                } else {
                    vec![spec.to_string()]
                };
                assert_eq!(json!(stored), theirs["slices"], "{case}");
            }
        }
    }
}
