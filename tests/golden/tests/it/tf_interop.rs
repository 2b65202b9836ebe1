//! TensorFlow reads what reshard wrote, bit for bit, and reshard reads what TensorFlow wrote in the same run. `cargo xtask interop` runs it.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use futures::executor::block_on;
use reshard::{
    DType, Dialect, LocalGroup, Region, ShardedTensor, StateDict, Tensor, Value,
    blocking::Checkpoint,
    policy::{
        AllInOne, ByItem, MaxShardSize, Piece, ShardByTask, ShardingPolicy, Shards, SliceSpec,
    },
    storage::Progress,
    tensor_bundle::TensorBundleConfig,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};
use std::{fs, path::Path, process::Command};

/// Types that TensorFlow does not have.
const NONE: [DType; 4] = [
    DType::Complex32,
    DType::BComplex32,
    DType::Float8E8M0Fnu,
    DType::Float4E2M1FnX2,
];

const SHAPES: [&[u64]; 5] = [&[], &[0, 3], &[7], &[10, 6], &[6, 4, 5]];

/// How a checkpoint is saved.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    ranks: u32,
    /// As values of objects, and of types that variables of TensorFlow have.
    of_objects: bool,
}

impl Case {
    fn new(name: &'static str) -> Self {
        let of_objects = name.starts_with("objects");
        Self {
            name,
            ranks: if of_objects { 1 } else { 3 },
            of_objects,
        }
    }

    fn config(self) -> TensorBundleConfig {
        let config = TensorBundleConfig::default().with_object_names(self.of_objects);
        match self.name {
            "in_folder" => config.with_in_folder("ckpt").with_checkpoint_state(true),
            _ => config,
        }
    }

    /// How many data files its policy makes, where that is its very purpose.
    fn files(self) -> Option<usize> {
        match self.name {
            "tasks" => Some(self.ranks as usize),
            "custom" => Some(2 * self.ranks as usize),
            _ => None,
        }
    }

    /// The name of a tensor in the checkpoint.
    fn stored(self, key: &str) -> String {
        match self.of_objects {
            true => format!("{}/.ATTRIBUTES/VARIABLE_VALUE", key.replace('.', "/")),
            false => key.into(),
        }
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// All of them: small numbers, so that they mean the same to all programs.
fn tensors(case: Case) -> Vec<(String, Tensor)> {
    let mut out = Vec::new();
    let is_left_out =
        |d: &DType| NONE.contains(d) || (case.of_objects && d.name().starts_with("float8"));
    for dtype in DType::ALL.iter().filter(|d| !is_left_out(d)) {
        for shape in SHAPES {
            let byte = |n: u64| match dtype {
                DType::Bool => u8::from(n.is_multiple_of(3)),
                _ => (n * 7 % 60) as u8,
            };
            let elements: u64 = shape.iter().product();
            let bytes: Vec<u8> = (0..elements * dtype.size()).map(byte).collect();
            let key = format!("net.{}.of_{}", dtype.name(), out.len());
            out.push((key, Tensor::new(*dtype, shape, bytes).unwrap()));
        }
    }
    if case.name == "objects" {
        // `Checkpoint.restore` asks for it, because `Checkpoint.save` writes it.
        out.push((
            "save_counter".into(),
            Tensor::from_vec(&[], vec![5i64]).unwrap(),
        ));
    }
    out
}

/// What one rank has: rows of each tensor.
fn state(case: Case, rank: u32) -> StateDict {
    let mut state = StateDict::new();
    for (key, tensor) in tensors(case) {
        let shape = tensor.shape().clone();
        let mut region = Region::whole(&shape);
        if let Some(&rows) = shape.first() {
            let cut = |r: u32| rows * u64::from(r) / u64::from(case.ranks);
            (region.offsets[0], region.lengths[0]) = (cut(rank), cut(rank + 1) - cut(rank));
        } else if rank > 0 {
            continue;
        }
        let leaf = ShardedTensor::region_of(&key, tensor.dtype(), &shape, region.clone());
        state.insert(key, leaf.with_data(tensor.narrow(&region)));
    }
    if rank == 0 {
        state.insert(
            "words",
            Value::List(vec!["a".into(), "".into(), "é".into()]),
        );
        state.insert("note", "all of it");
    }
    state
}

/// A policy of somebody else: the rows of each piece in two halves, and all first halves of a task in one file, all second halves in another.
#[derive(Debug, Serialize, Deserialize)]
struct Halves {}

#[typetag::serde(name = "halves")]
impl ShardingPolicy for Halves {
    fn description(&self) -> String {
        "halves of rows".into()
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> reshard::policy::Result<()> {
        let mut tasks: Vec<u32> = pieces.iter().map(|piece| piece.task).collect();
        tasks.dedup();
        for (task, second) in tasks.into_iter().flat_map(|t| [(t, false), (t, true)]) {
            out.start();
            for (n, piece) in pieces.iter().enumerate().filter(|(_, p)| p.task == task) {
                let mut region = piece.region.clone();
                let rows = region.lengths.first().copied();
                match rows.filter(|rows| *rows > 1 && !piece.is_whole()) {
                    Some(rows) if second => {
                        region.offsets[0] += rows / 2;
                        region.lengths[0] = rows - rows / 2;
                    }
                    Some(rows) => region.lengths[0] = rows / 2,
                    None if second => continue,
                    None => {}
                }
                out.push(n, region)?;
            }
        }
        Ok(())
    }
}

fn save(folder: &Path, case: Case) {
    let url = folder.join(case.name).display().to_string();
    let groups = LocalGroup::new(case.ranks).into_iter().enumerate();
    std::thread::scope(|scope| {
        for (rank, group) in groups {
            let url = &url;
            scope.spawn(move || {
                let state = state(case, rank as u32);
                let save = reshard::save(&state, url)
                    .group(&group)
                    .dialect(Dialect::Dcp)
                    .strategy(case.config());
                let save = match case.name {
                    "pieces" => save.policy(MaxShardSize::new(64)),
                    "objects_in_pieces" => {
                        save.policy(MaxShardSize::new(64).readable_by_tensorflow())
                    }
                    "as_tensorflow_cuts" => save.policy(MaxShardSize::tensorflow(512)),
                    "gathered" => save.policy(AllInOne::new().gather()),
                    "items" => save.policy(ByItem::new()),
                    "tasks" => save.policy(ShardByTask::new()),
                    "custom" => save.policy(Halves {}),
                    _ => save,
                };
                block_on(save.into_future()).unwrap();
            });
        }
    });
}

fn data_files(folder: &Path, prefix: &str) -> usize {
    let names = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name());
    let begins = format!("{prefix}.data-");
    names
        .filter(|name| name.to_str().is_some_and(|name| name.starts_with(&begins)))
        .count()
}

/// What TensorFlow has to find.
fn expected(case: Case, prefix: &str) -> Json {
    let found = Checkpoint::open(prefix).unwrap();
    let mut all = Map::new();
    for (key, tensor) in tensors(case) {
        let specs: Vec<String> = found
            .tensor(&key)
            .unwrap()
            .chunks()
            .into_iter()
            .map(|chunk| {
                SliceSpec::part(tensor.shape(), chunk.region)
                    .unwrap()
                    .to_string()
            })
            .collect();
        let of = json!({
            "dtype": tensor.dtype().name(),
            "shape": &**tensor.shape(),
            "sha256": sha256(&tensor.to_bytes()),
            "sliced": specs.len() > 1,
            "specs": specs,
        });
        all.insert(case.stored(&key), of);
    }
    json!({ "tensors": all, "of_objects": case.of_objects, "strings": { "words": ["61", "", "c3a9"], "note": ["616c6c206f66206974"] } })
}

#[test]
#[ignore = "needs a Python with TensorFlow, which RESHARD_TENSORFLOW_PYTHON names"]
fn needs_python_tensorflow_reads_what_reshard_wrote_and_the_other_way_round() {
    let python = std::env::var("RESHARD_TENSORFLOW_PYTHON").unwrap();
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let mut cases = Map::new();
    for name in [
        "ranks",
        "pieces",
        "as_tensorflow_cuts",
        "gathered",
        "items",
        "tasks",
        "custom",
        "in_folder",
        "objects",
        "objects_in_pieces",
    ] {
        let case = Case::new(name);
        save(folder, case);
        if let Some(files) = case.files() {
            assert_eq!(data_files(folder, name), files, "{name}");
        }
        let prefix = match name {
            "in_folder" => "in_folder/ckpt",
            name => name,
        };
        let expected = expected(case, &folder.join(name).display().to_string());
        cases.insert(prefix.into(), expected);
    }
    fs::write(
        folder.join("expected.json"),
        Json::Object(cases).to_string(),
    )
    .unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/tf_bundle.py");
    let out = Command::new(python)
        .arg(script)
        .arg(folder)
        .env("TF_CPP_MIN_LOG_LEVEL", "2")
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    println!("{}", String::from_utf8_lossy(&out.stdout));

    // The other way round.
    let theirs = folder.join("theirs");
    let text = fs::read_to_string(theirs.join("expected.json")).unwrap();
    let all: Map<String, Json> = serde_json::from_str(&text).unwrap();
    assert_eq!(all.len(), 4);
    for (name, tensors) in all {
        let found = Checkpoint::open(theirs.join(&name).display().to_string()).unwrap();
        let report = found.verify(true, Progress::none()).unwrap();
        assert!(report.damage.is_empty(), "{name}: {:?}", report.damage);
        for (key, of) in tensors.as_object().unwrap() {
            let tensor = found.tensor(key).unwrap().read(..).unwrap();
            assert_eq!(of["dtype"], tensor.dtype().name(), "{name}: {key}");
            assert_eq!(of["sha256"], sha256(&tensor.to_bytes()), "{name}: {key}");
        }
    }
}
