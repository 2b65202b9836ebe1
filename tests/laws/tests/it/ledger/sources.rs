//! Checkpoints with items of every kind, as their own programs write them.

use reshard::{
    BackendVersion, DType, Dialect, Region, Registry, ShardedObject, ShardedTensor, StateDict,
    Tensor, Value, blocking,
    model::{Construct, Opaque},
};
use reshard_torch_format::encode;
use serde_json::{Value as Json, json};
use std::{fs, path::Path};

/// A checkpoint on disk.
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) format: BackendVersion,
    pub(super) url: String,
}

impl Source {
    fn new(name: &'static str, format: &str, url: &Path) -> Self {
        Self {
            name,
            format: BackendVersion::new(format, 1),
            url: url.display().to_string(),
        }
    }

    /// A place of the same kind.
    pub(super) fn place(&self, dir: &Path, name: &str) -> String {
        let mut path = dir.join(format!("{}-{name}", self.name));
        if let Some(ending) = Path::new(&self.url).extension() {
            path.set_extension(ending);
        }
        path.display().to_string()
    }
}

/// Each of them makes one.
pub(super) const ALL: [fn(&Path) -> Source; 11] = [
    pickled,
    texts,
    texts_of_files,
    zarr3,
    zarr2,
    |dir| saved(dir, "dcp", "torch_dist", Dialect::Dcp, true),
    |dir| saved(dir, "megatron", "torch_dist", Dialect::Megatron, true),
    |dir| saved(dir, "old", "zarr", Dialect::Megatron, true),
    |dir| saved(dir, "bundle", "tensor_bundle", Dialect::Dcp, true),
    |dir| saved(dir, "third", "example", Dialect::Dcp, true),
    |dir| saved(dir, "tensors", "zarr3", Dialect::Dcp, false),
];

fn tensor(numbers: &[f32]) -> Tensor {
    Tensor::from_vec(&[numbers.len() as u64], numbers.to_vec()).unwrap()
}

/// An object of a class without arguments.
fn object(module: &str, name: &str, pairs: Vec<(Value, Value)>, state: Option<Value>) -> Value {
    Value::Opaque(Box::new(Opaque {
        module: module.into(),
        name: name.into(),
        construct: Construct::Reduce(Vec::new()),
        state,
        items: Vec::new(),
        pairs,
    }))
}

fn ordered(pairs: Vec<(Value, Value)>, state: Option<Value>) -> Value {
    object("collections", "OrderedDict", pairs, state)
}

/// A model with tied weights and the state of its optimizer, as training scripts pickle them.
fn pickled(dir: &Path) -> Source {
    let tied = tensor(&[1., 2., 3., 4.]);
    let view = tied.narrow(&Region::new([1], [2]));
    let version = Value::Dict(vec![("version".into(), 2.into())]);
    let metadata = ordered(
        vec![("".into(), version.clone()), ("norm".into(), version)],
        None,
    );
    let model = ordered(
        vec![
            ("embed.w".into(), tied.clone().into()),
            ("head.w".into(), tied.into()),
            ("view.a".into(), view.into()),
        ],
        Some(Value::Dict(vec![("_metadata".into(), metadata)])),
    );
    let of = |n: f32| {
        Value::Dict(vec![
            ("step".into(), f64::from(n).into()),
            ("exp_avg".into(), tensor(&[n, -n]).into()),
        ])
    };
    let keys = [0.into(), 1.into(), (-7).into(), true.into(), Value::None];
    let state = keys.into_iter().zip([0., 1., 7., 2., 3.]);
    let state = Value::Dict(state.map(|(key, n)| (key, of(n))).collect());
    let params = Value::List(vec![0.into(), 1.into()]);
    let group = Value::Dict(vec![("lr".into(), 0.1.into()), ("params".into(), params)]);
    let optimizer = Value::Dict(vec![
        ("state".into(), state),
        ("param_groups".into(), Value::List(vec![group])),
    ]);
    let odd = Value::Dict(vec![(0.5.into(), 1.into())]);
    let root = Value::Dict(vec![
        ("model".into(), model),
        ("optimizer".into(), optimizer),
        ("odd".into(), odd),
        ("none".into(), Value::Dict(Vec::new())),
    ]);
    let path = dir.join("pickled.pt");
    let file = encode(&root).unwrap().archive(&Default::default()).unwrap();
    fs::write(&path, file).unwrap();
    Source::new("pickled", "torch_save", &path)
}

/// A checkpoint without tensors.
pub(super) fn objects_only(dir: &Path) -> Source {
    let root = Value::Dict(vec![("a".into(), 1.into()), ("b".into(), "two".into())]);
    let path = dir.join("objects.pt");
    let file = encode(&root).unwrap().archive(&Default::default()).unwrap();
    fs::write(&path, file).unwrap();
    Source::new("objects", "torch_save", &path)
}

/// A file of safetensors with a tensor of two numbers.
fn safetensors(path: &Path, key: &str, metadata: &Json) {
    let header = json!({"__metadata__": metadata, key: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}});
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend([1f32, 2.].map(f32::to_le_bytes).concat());
    fs::write(path, file).unwrap();
}

fn texts(dir: &Path) -> Source {
    let path = dir.join("texts.safetensors");
    let metadata =
        json!({"format": "pt", "ss_network_dim": "4", "modelspec": "{\"a\": 1}", "": "é\n"});
    safetensors(&path, "lora.w", &metadata);
    Source::new("texts", "safetensors", &path)
}

/// Two files that agree on one text, and contradict each other in another one.
fn texts_of_files(dir: &Path) -> Source {
    let path = dir.join("texts-of-files");
    fs::create_dir(&path).unwrap();
    for (n, key) in [(1, "a"), (2, "b")] {
        let file = path.join(format!("model-{n:05}-of-00002.safetensors"));
        let metadata = json!({"format": "np", "number": n.to_string()});
        safetensors(&file, key, &metadata);
    }
    Source::new("texts-of-files", "safetensors", &path)
}

fn zarr3(dir: &Path) -> Source {
    let path = dir.join("zarr3");
    fs::create_dir_all(path.join("g/a/c")).unwrap();
    let group = |attributes: Json| {
        json!({"zarr_format": 3, "node_type": "group", "attributes": attributes}).to_string()
    };
    fs::write(
        path.join("zarr.json"),
        group(json!({"title": "t", "n": [1, 2.5, null]})),
    )
    .unwrap();
    fs::write(path.join("g/zarr.json"), group(json!({"of": "g"}))).unwrap();
    let array = json!({
        "zarr_format": 3, "node_type": "array", "shape": [2, 1], "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"units": "K", "scale": 1e-3}, "dimension_names": ["x", null],
    });
    fs::write(path.join("g/a/zarr.json"), array.to_string()).unwrap();
    fs::create_dir(path.join("g/a/c/0")).unwrap();
    fs::write(
        path.join("g/a/c/0/0"),
        [3f32, 4.].map(f32::to_le_bytes).concat(),
    )
    .unwrap();
    Source::new("zarr3", "zarr3", &path)
}

fn zarr2(dir: &Path) -> Source {
    let path = dir.join("zarr2");
    fs::create_dir_all(path.join("w")).unwrap();
    fs::write(path.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    fs::write(path.join(".zattrs"), r#"{"title": "two"}"#).unwrap();
    let array = json!({
        "zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<f4", "compressor": null,
        "fill_value": 0.0, "filters": null, "order": "C",
    });
    fs::write(path.join("w/.zarray"), array.to_string()).unwrap();
    fs::write(path.join("w/.zattrs"), r#"{"_ARRAY_DIMENSIONS": ["x"]}"#).unwrap();
    fs::write(path.join("w/0"), [5f32, 6.].map(f32::to_le_bytes).concat()).unwrap();
    Source::new("zarr2", "zarr", &path)
}

/// A save of this program.
fn saved(dir: &Path, name: &'static str, format: &str, dialect: Dialect, objects: bool) -> Source {
    let path = dir.join(name);
    let mut state = StateDict::new();
    let weight = Tensor::from_vec(&[4, 2], (0..8).map(|n| n as f32).collect()).unwrap();
    state.insert("model.w", ShardedTensor::full("model.w", weight));
    let count = Tensor::from_vec(&[], vec![7i64]).unwrap();
    state.insert("count", ShardedTensor::full("count", count));
    let fine = Tensor::new(DType::Complex64, &[1], vec![0u8; 8]).unwrap();
    state.insert("fine", ShardedTensor::full("fine", fine));
    if objects {
        state.insert("iteration", 1000);
        state.insert(
            "args",
            Value::Dict(vec![("betas".into(), vec![0.9.into(), 0.95.into()].into())]),
        );
    }
    if dialect == Dialect::Megatron {
        let rng = ShardedObject::new("rng_state", Value::List(vec![7.into()]), &[1], &[0], 0);
        state.insert("rng", rng.unwrap());
    }
    let registry = Registry::linked().unwrap();
    let version = if format == "tensor_bundle" { 2 } else { 1 };
    let format = BackendVersion::new(format, version);
    let config = registry.save_sharded(&format).unwrap();
    let save = reshard::save(&state, &path)
        .dialect(dialect)
        .strategy(config);
    blocking::run(save).unwrap();
    Source {
        name,
        format,
        url: path.display().to_string(),
    }
}
