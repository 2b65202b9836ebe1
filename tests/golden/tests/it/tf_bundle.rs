//! Checkpoints that TensorFlow 2.21 wrote, or that it has read: read bit for bit, written again to the byte, and damaged.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use reshard::{
    Dialect, ErrorKind, Region, ShardedObject, ShardedTensor, StateDict, Value,
    blocking::{self, Checkpoint},
    model::{Construct, Step, Tree},
    policy::{Content, MaxShardSize, Piece, ShardingPolicy, Shards, SliceSpec},
    storage::Progress,
    strategy::Damage,
    tensor_bundle::{
        CheckpointState, OBJECT_GRAPH, ObjectGraph, ObjectGraphSource, TensorBundleConfig,
    },
};
use reshard_golden::{cases, root};
use reshard_tensor_bundle::testkit::{self, EntryFields};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

type Json = serde_json::Value;

/// A checkpoint and what is known of it.
struct Fixture {
    name: String,
    folder: PathBuf,
    expected: Json,
    /// The prefix of its files.
    stem: String,
}

impl Fixture {
    fn url(&self) -> String {
        self.folder.join(&self.stem).display().to_string()
    }

    fn open(&self) -> Checkpoint {
        Checkpoint::open(self.url()).unwrap_or_else(|e| panic!("{}: {e:?}", self.name))
    }

    fn tensors(&self) -> &[Json] {
        self.expected["tensors"].as_array().unwrap()
    }
}

/// All checkpoints. One is none: TensorFlow refused to save it, and left its parts.
fn fixtures() -> Vec<Fixture> {
    let folder = root().join("tf/checkpoints");
    let mut out = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let expected = fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected: Json = serde_json::from_str(&expected).unwrap();
        let mut stems: Vec<String> = fs::read_dir(&folder)
            .unwrap()
            .filter_map(|e| {
                Some(
                    e.unwrap()
                        .file_name()
                        .to_str()?
                        .strip_suffix(".index")?
                        .to_owned(),
                )
            })
            .collect();
        // Of two it is the later one that `expected.json` is about.
        stems.sort();
        match stems.pop() {
            Some(stem) => out.push(Fixture {
                name,
                folder,
                expected,
                stem,
            }),
            None => assert_eq!(name, "custom_empty_shard"),
        }
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(
        out.len() >= 30,
        "only {} checkpoints in {}",
        out.len(),
        folder.display()
    );
    out
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// The key of a tensor.
fn key(tensor: &Json) -> String {
    let Some(name) = tensor["name_hex"].as_str() else {
        return tensor["name"].as_str().unwrap().into();
    };
    let mut out = String::new();
    for chunk in hex(name).utf8_chunks() {
        out.push_str(chunk.valid());
        chunk
            .invalid()
            .iter()
            .for_each(|b| out.push_str(&format!("\\x{b:02x}")));
    }
    out
}

/// The elements of an object, as `expected.json` hashes them.
fn elements(value: &Value, out: &mut Vec<u8>) {
    let mut string = |bytes: &[u8]| {
        out.extend((bytes.len() as u64).to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::Str(text) => string(text.as_bytes()),
        Value::Bytes(bytes) => string(bytes),
        Value::List(inner) => inner.iter().for_each(|value| elements(value, out)),
        Value::Opaque(opaque) => match &opaque.construct {
            Construct::Reduce(args) => match &args[..] {
                // Without elements its bytes are a checksum.
                [Value::Tuple(shape), Value::Bytes(_)] if &*opaque.name == "string" => {
                    assert!(shape.contains(&Value::Int(0)));
                }
                [_, Value::Bytes(bytes)] => out.extend(bytes),
                args => panic!("{args:?}"),
            },
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_checkpoint_is_read_bit_for_bit() {
    let mut tensors = 0;
    for f in fixtures() {
        let found = f.open();
        let incomplete = f.expected["tensors"]
            .as_array()
            .is_some_and(|all| all.iter().any(|t| t.get("incomplete").is_some()));
        let report = found.verify(true, Progress::none()).unwrap();
        assert_eq!(
            report.damage.is_empty(),
            !incomplete,
            "{}: {:?}",
            f.name,
            report.damage
        );
        assert!(
            report.not_understood.is_empty() && report.not_read.is_empty(),
            "{}",
            f.name
        );
        let Some(all) = f.expected["tensors"].as_array() else {
            continue;
        };
        let stored = found.metadata().tensors().count() + found.metadata().objects().count();
        assert_eq!(stored, all.len(), "{}", f.name);
        for tensor in all {
            let (key, what) = (key(tensor), format!("{}: {}", f.name, tensor["name"]));
            let shape: Vec<u64> = tensor["shape"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_u64().unwrap())
                .collect();
            tensors += 1;
            let Some(sum) = tensor["sha256"].as_str() else {
                assert!(found.tensor(&key).unwrap().read(..).is_err(), "{what}");
                continue;
            };
            let Ok(handle) = found.tensor(&key) else {
                let mut bytes = Vec::new();
                elements(&found.object(&key).unwrap(), &mut bytes);
                assert_eq!(sha256(&bytes), sum, "{what}");
                continue;
            };
            assert_eq!(
                handle.dtype().name(),
                tensor["dtype"].as_str().unwrap(),
                "{what}"
            );
            assert_eq!(**handle.shape(), shape, "{what}");
            let whole = handle.read(..).unwrap();
            assert_eq!(sha256(&whole.to_bytes()), sum, "{what}");
            // A part of it, across slices.
            if let Some(&rows @ 2..) = shape.first() {
                let mut part = Region::whole(&shape);
                (part.offsets[0], part.lengths[0]) = (1, rows - 1);
                let read = handle.read(part.clone()).unwrap();
                assert_eq!(read.to_bytes(), whole.narrow(&part).to_bytes(), "{what}");
            }
        }
    }
    assert!(tensors > 250, "only {tensors}");
}

#[test]
fn a_folder_is_opened_by_its_state_file_and_saved_models_by_their_variables() {
    let all = fixtures();
    let folder = |name: &str| all.iter().find(|f| f.name == name).unwrap().folder.clone();
    let manager = folder("manager_state");
    let text = fs::read_to_string(manager.join("checkpoint")).unwrap();
    let state = CheckpointState::parse(&text).unwrap();
    assert_eq!(
        (state.model_checkpoint_path.as_str(), state.to_string()),
        ("m-3", text)
    );
    let latest = Checkpoint::open(manager.display().to_string()).unwrap();
    assert_eq!(latest.backend().to_string(), "tensor_bundle/2");
    assert!(
        latest
            .item_files()
            .iter()
            .all(|file| file.starts_with("m-3.data-"))
    );
    let earlier = Checkpoint::open(manager.join("m-2").display().to_string()).unwrap();
    assert_eq!(
        earlier.metadata().tensors().count(),
        latest.metadata().tensors().count()
    );

    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("model");
    fs::create_dir_all(model.join("variables")).unwrap();
    fs::write(model.join("saved_model.pb"), "a graph").unwrap();
    for file in fs::read_dir(folder("saved_model_variables")).unwrap() {
        let file = file.unwrap();
        if file.file_name() != "expected.json" {
            fs::copy(file.path(), model.join("variables").join(file.file_name())).unwrap();
        }
    }
    let opened = Checkpoint::open(model.display().to_string()).unwrap();
    assert!(
        opened
            .verify(true, Progress::none())
            .unwrap()
            .damage
            .is_empty()
    );
    assert!(opened.metadata().tensors().count() > 0);
}

/// Puts parts of pieces into the files in which TensorFlow put them.
#[derive(Debug, Serialize, Deserialize)]
struct Exactly(Vec<Vec<(String, Option<Region>)>>);

#[typetag::serde(name = "exactly")]
impl ShardingPolicy for Exactly {
    fn description(&self) -> String {
        "where TensorFlow put it".into()
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> reshard::policy::Result<()> {
        for shard in &self.0 {
            out.start();
            for (key, region) in shard {
                let at = pieces.iter().position(|piece| piece.key == key).unwrap();
                let region = region.clone().unwrap_or_else(|| pieces[at].region.clone());
                out.push(at, region)?;
            }
        }
        Ok(())
    }
}

/// The files of a checkpoint, as `expected.json` describes them.
fn layout(f: &Fixture) -> Exactly {
    let shards = f.expected["shards"].as_array().unwrap().iter();
    Exactly(
        shards
            .map(|shard| {
                let entries = shard["entries"].as_array().unwrap().iter();
                entries
                    .map(|e| {
                        let spec: SliceSpec = e["spec"].as_str().unwrap().parse().unwrap();
                        let region = match spec {
                            SliceSpec::Whole => None,
                            SliceSpec::Part { region, .. } => Some(region),
                        };
                        (e["tensor"].as_str().unwrap().to_owned(), region)
                    })
                    .collect()
            })
            .collect(),
    )
}

/// All of a checkpoint, to be saved again.
fn state_of(found: &Checkpoint) -> StateDict {
    let mut state = StateDict::new();
    for handle in found.tensors() {
        let tensor = handle.read(..).unwrap();
        state.insert(handle.key(), ShardedTensor::full(handle.key(), tensor));
    }
    for key in found.objects().map(str::to_owned).collect::<Vec<_>>() {
        let payload = found.object_payload(&key).unwrap();
        state.insert(key.clone(), ShardedObject::item(&key, payload));
    }
    state
}

#[test]
fn what_is_written_again_is_what_tensorflow_wrote_to_the_byte() {
    let home = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    for f in fixtures() {
        let is_sliced = |t: &Json| t.get("slices").is_some();
        // Strings are objects here, which nobody cuts. Names that are no UTF-8 are written otherwise. Gaps are not written.
        let strings_in_slices = || {
            f.tensors()
                .iter()
                .any(|t| is_sliced(t) && t["dtype"] == "string")
        };
        // TensorFlow 1 wrote slices of types that no TensorFlow reads in slices. They are written whole.
        let halves_in_slices = || {
            f.tensors()
                .iter()
                .any(|t| is_sliced(t) && t["dtype"] == "float16")
        };
        let odd_names = || f.tensors().iter().any(|t| key(t).contains("\\x"));
        // Nor are the places of tensors without elements.
        let gaps_or_nothing = || ["hand_aligned_64", "hand_plain"].contains(&&*f.name);
        if f.expected["index_reproducible"] != true
            || strings_in_slices()
            || halves_in_slices()
            || odd_names()
            || gaps_or_nothing()
        {
            continue;
        }
        let found = f.open();
        let url = home
            .path()
            .join(&f.name)
            .join(&f.stem)
            .display()
            .to_string();
        let config = TensorBundleConfig::default().with_object_graph(ObjectGraphSource::None);
        let state = state_of(&found);
        let save = reshard::save(&state, &url)
            .strategy(config)
            .policy(layout(&f));
        blocking::run(save).unwrap_or_else(|e| panic!("{}: {e:?}", f.name));
        let mut files = 0;
        for file in fs::read_dir(&f.folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
        {
            if file.starts_with(&format!("{}.", f.stem)) {
                let (ours, theirs) = (home.path().join(&f.name).join(&file), f.folder.join(&file));
                assert!(
                    fs::read(ours).unwrap() == fs::read(theirs).unwrap(),
                    "{}: {file}",
                    f.name
                );
                files += 1;
            }
        }
        assert!(files >= 2, "{}", f.name);
        let again = Checkpoint::open(&url).unwrap();
        assert_eq!(
            again.sidecar().0.unwrap().policy.as_deref(),
            Some("where TensorFlow put it")
        );
        written.push(f.name);
    }
    assert!(written.len() >= 25, "only {written:?}");
}

/// `MaxShardSize` as TensorFlow's policy. It sees the pieces in TensorFlow's order, and strings with their lengths, which are objects here.
#[derive(Debug, Serialize, Deserialize)]
struct AsTensorFlow {
    limit: u64,
    order: Vec<String>,
    /// The length of each string, by key.
    strings: BTreeMap<String, Vec<u64>>,
}

#[typetag::serde(name = "as_tensorflow")]
impl ShardingPolicy for AsTensorFlow {
    fn description(&self) -> String {
        MaxShardSize::tensorflow(self.limit).description()
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> reshard::policy::Result<()> {
        let place = |key: &String| pieces.iter().position(|piece| piece.key == key).unwrap();
        let places: Vec<usize> = self.order.iter().map(place).collect();
        assert_eq!(places.len(), pieces.len(), "each piece comes once");
        let vector = |key: &str| {
            let count = self.strings.get(key).map_or(0, Vec::len) as u64;
            Region::whole(&[count])
        };
        let vectors: Vec<Region> = self.order.iter().map(|key| vector(key)).collect();
        let theirs: Vec<Piece<'_>> = places
            .iter()
            .zip(&vectors)
            .map(|(at, vector)| {
                let piece = pieces[*at];
                let Some(strings) = self.strings.get(piece.key) else {
                    return piece;
                };
                let bytes = strings.iter().sum();
                match strings.len() {
                    1 => Piece { bytes, ..piece },
                    _ => Piece {
                        bytes,
                        content: Content::Strings(strings),
                        global_shape: &vector.lengths,
                        region: vector,
                        ..piece
                    },
                }
            })
            .collect();
        let mut answer = Shards::with_limit(1 << 16);
        MaxShardSize::tensorflow(self.limit).shard(&theirs, &mut answer)?;
        for shard in answer.finish()? {
            out.start();
            for cut in shard {
                let at = cut.piece as usize;
                let own = pieces[places[at]];
                let region = match own.content {
                    Content::Object => {
                        assert_eq!(cut.region, *theirs[at].region, "an object is not cut");
                        own.region.clone()
                    }
                    _ => cut.region,
                };
                out.push(places[at], region)?;
            }
        }
        Ok(())
    }
}

/// The lengths of the strings of a checkpoint, and all keys in the order in which TensorFlow's policy got them.
fn as_tensorflow(f: &Fixture) -> AsTensorFlow {
    let shards = f.expected["shards"].as_array().unwrap();
    let entries = shards.iter().flat_map(|s| s["entries"].as_array().unwrap());
    let mut order: Vec<String> = Vec::new();
    for entry in entries {
        let key = entry["tensor"].as_str().unwrap();
        if !order.iter().any(|known| known == key) {
            order.push(key.into());
        }
    }
    let strings = f.tensors().iter().filter(|t| t["dtype"] == "string");
    let lengths = |t: &Json| match t["values_hex"].as_array() {
        Some(values) => {
            let length = |v: &Json| v.as_str().unwrap().len() as u64 / 2;
            values.iter().map(length).collect()
        }
        // The object graph, of which TensorFlow does not count the bytes.
        None => vec![0],
    };
    AsTensorFlow {
        limit: f.expected["max_shard_size"].as_u64().unwrap(),
        order,
        strings: strings.map(|t| (key(t), lengths(t))).collect(),
    }
}

#[test]
fn max_shard_size_writes_the_files_that_tensorflows_policy_wrote() {
    let home = tempfile::tempdir().unwrap();
    let mut done = Vec::new();
    for f in fixtures() {
        let limits_files = f.name.strip_prefix("max_shard_");
        if limits_files.is_none_or(|limit| limit.parse::<u64>().is_err()) {
            continue;
        }
        let found = f.open();
        let folder = home.path().join(&f.name);
        let url = folder.join(&f.stem).display().to_string();
        let state = state_of(&found);
        let save = reshard::save(&state, &url)
            .strategy(TensorBundleConfig::default())
            .policy(as_tensorflow(&f));
        let report = blocking::run(save).unwrap_or_else(|e| panic!("{}: {e:?}", f.name));
        let shards = f.expected["shards"].as_array().unwrap();
        assert_eq!(report.policy.unwrap().shards, shards.len() as u64);
        let mut names: Vec<&str> = shards.iter().map(|s| s["file"].as_str().unwrap()).collect();
        let index = format!("{}.index", f.stem);
        names.push(&index);
        for name in names {
            let (ours, theirs) = (fs::read(folder.join(name)), fs::read(f.folder.join(name)));
            assert!(ours.unwrap() == theirs.unwrap(), "{}: {name}", f.name);
        }
        done.push(f.name);
    }
    assert_eq!(done.len(), 6, "{done:?}");
}

#[test]
fn an_index_of_several_blocks_is_written_to_the_byte() {
    let all = fixtures();
    let f = all.iter().find(|f| f.name == "many_keys").unwrap();
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("ckpt").display().to_string();
    let found = f.open();
    let mut order = Vec::new();
    for (n, handle) in (0i32..).zip(found.tensors()) {
        assert_eq!(handle.read(..).unwrap().to_vec::<i32>().unwrap(), [n]);
        order.push((handle.key().to_owned(), None));
    }
    let mut sum = Sha256::new();
    let table = fs::read(f.folder.join("ckpt.index")).unwrap();
    for (key, value) in testkit::entries_of(&table).unwrap() {
        [&key[..], &b"\0"[..], &value[..], &b"\n"[..]]
            .iter()
            .for_each(|part| sum.update(part));
    }
    let sum: String = sum.finalize().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(f.expected["items_sha256"], sum.as_str());
    let config = TensorBundleConfig::default().with_object_graph(ObjectGraphSource::None);
    blocking::run(
        reshard::save(&state_of(&found), &url)
            .strategy(config)
            .policy(Exactly(vec![order])),
    )
    .unwrap();
    let index = |folder: &Path| fs::read(folder.join("ckpt.index")).unwrap();
    assert!(index(home.path()) == index(&f.folder));
}

#[test]
fn keys_of_slices_are_those_of_tensorflow() {
    for case in cases("slice_keys") {
        let (name, spec) = (
            hex(case["name_hex"].as_str().unwrap()),
            case["spec"].as_str().unwrap(),
        );
        let slice = spec.rsplit(' ').next().unwrap();
        let extents: Vec<(i64, i64)> = slice
            .split(':')
            .map(|extent| match extent.split_once(',') {
                Some((start, length)) => (start.parse().unwrap(), length.parse().unwrap()),
                None => (0, -1),
            })
            .collect();
        let key = testkit::slice_key(&name, &extents);
        assert_eq!(key, hex(case["key_hex"].as_str().unwrap()), "{case}");
    }
}

#[test]
fn the_object_graph_leads_to_the_keys() {
    let mut graphs = 0;
    for f in fixtures() {
        let found = f.open();
        if !found.objects().any(|key| key == OBJECT_GRAPH) {
            continue;
        }
        graphs += 1;
        let graph = ObjectGraph::of(&found.object(OBJECT_GRAPH).unwrap()).unwrap();
        let paths = graph.owner_paths();
        for (key, path) in &paths {
            // TensorFlow makes keys of paths.
            assert_eq!(
                key.rsplit_once("/.ATTRIBUTES/").unwrap().0,
                path,
                "{}",
                f.name
            );
        }
        let keys = found
            .tensors()
            .map(|t| t.key().to_owned())
            .filter(|key| key.contains("/.ATTRIBUTES/"));
        for key in keys {
            assert!(paths.contains_key(&key), "{}: {key}", f.name);
        }
        if let Some(nodes) = f.expected["object_graph"]["nodes"].as_array() {
            assert_eq!(graph.nodes.len(), nodes.len());
        }
    }
    assert!(graphs > 5, "only {graphs}");
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// The index with what a case of `corruption` changes in its entries.
fn rewritten(index: &[u8], tag: &str) -> Vec<u8> {
    let mut entries: Entries = testkit::entries_of(index).unwrap();
    let mut edit = |key: &str, edit: &dyn Fn(&mut EntryFields)| {
        let (_, entry) = entries
            .iter_mut()
            .find(|(k, _)| k == key.as_bytes())
            .unwrap();
        let mut fields = EntryFields::parse(entry).unwrap();
        edit(&mut fields);
        *entry = fields.to_bytes();
    };
    match tag {
        "producer 5, min_consumer 0" => entries[0].1 = testkit::header(1, 0, (5, 0)),
        "producer 0" => entries[0].1 = testkit::header(1, 0, (0, 0)),
        "num_shards 2" => entries[0].1 = testkit::header(2, 0, (1, 0)),
        "no header entry" => drop(entries.remove(0)),
        "size of a too small" => edit("a", &|e| e.size = 8),
        "shape of a wrong" => edit("a", &|e| e.shape = vec![2]),
        "shard_id of a 1" => edit("a", &|e| e.shard_id = 1),
        "offset of a past the end" => edit("a", &|e| e.offset = 1000),
        "slice out of bounds" => edit("b", &|e| e.slices[0][0] = (3, Some(2))),
        other => return unknown(&mut entries, other),
    }
    testkit::table(&entries)
}

/// Cases that another folder of fixtures may have.
fn unknown(entries: &mut Entries, tag: &str) -> Vec<u8> {
    match tag {
        "min_consumer 2" => entries[0].1 = testkit::header(1, 0, (2, 2)),
        "min_consumer 99" => entries[0].1 = testkit::header(1, 0, (99, 99)),
        "producer -1" => entries[0].1 = testkit::header(1, 0, (-1, 0)),
        "endianness big" => entries[0].1 = testkit::header(1, 1, (1, 0)),
        "slice entry missing" => entries.retain(|(key, _)| key.first() != Some(&0)),
        other => panic!("what does {other:?} change?"),
    }
    testkit::table(entries)
}

#[test]
fn damage_that_tensorflow_notices_is_noticed_and_nothing_else() {
    let base = root().join("tf/checkpoints/corruption_base");
    let files: BTreeMap<&str, Vec<u8>> = [
        ("index", "ckpt.index"),
        ("data", "ckpt.data-00000-of-00001"),
    ]
    .map(|(what, name)| (what, fs::read(base.join(name)).unwrap()))
    .into();
    let home = tempfile::tempdir().unwrap();
    // The first case has no damage.
    let mut sound = None;
    for (n, case) in cases("corruption").iter().enumerate() {
        let tag = case["tag"].as_str().unwrap();
        let mut files = files.clone();
        if let Some(which) = case["file"].as_str() {
            let bytes = files.get_mut(which).unwrap();
            match (case["offset"].as_u64(), case["truncate"].as_u64()) {
                (Some(at), _) => bytes[at as usize] ^= case["xor"].as_u64().unwrap() as u8,
                (_, Some(length)) => bytes.truncate(length as usize),
                _ => *bytes = rewritten(bytes, tag),
            }
        }
        match tag {
            "no data file" => drop(files.remove("data")),
            "no index file" => drop(files.remove("index")),
            _ => {}
        }
        let folder = home.path().join(n.to_string());
        fs::create_dir(&folder).unwrap();
        for (which, bytes) in &files {
            let name = if *which == "index" {
                "ckpt.index"
            } else {
                "ckpt.data-00000-of-00001"
            };
            fs::write(folder.join(name), bytes).unwrap();
        }
        let opened = Checkpoint::open(folder.join("ckpt").display().to_string());
        let theirs = |key: &str| case["read"][key] == "ok";
        let found = match opened {
            Ok(found) => found,
            Err(e) => {
                let lost = tag == "no index file";
                assert_eq!(
                    e.kind(),
                    if lost {
                        ErrorKind::NotFound
                    } else {
                        ErrorKind::Corrupt
                    },
                    "{case}: {e:?}"
                );
                assert!(
                    case.get("open_error").is_some() || !["a", "b", "s"].into_iter().all(theirs),
                    "{case}: {e:?}"
                );
                continue;
            }
        };
        assert!(case.get("open_error").is_none(), "{case}: opened");
        let all: [(&str, bool); 3] = [
            ("a", found.tensor("a").and_then(|t| t.read(..)).is_ok()),
            (
                "b",
                found
                    .tensor("b")
                    .and_then(|t| t.read(Region::rows(0..2)))
                    .is_ok(),
            ),
            ("s", found.object("s").is_ok()),
        ];
        for (key, ours) in all {
            assert_eq!(ours, theirs(key), "{case}: {key}");
        }
        // Rows of `b` are missing in the original too.
        let report = found.verify(true, Progress::none()).unwrap();
        let sound = sound.get_or_insert_with(|| report.damage.clone());
        let all_read = ["a", "b", "s"].into_iter().all(theirs);
        // TensorFlow reads neither the block of meta data nor the end of the footer.
        let unread = ["a block is damaged", "the footer is not"];
        let of_no_key =
            |d: &&Damage| d.key.is_none() && unread.iter().any(|what| d.what.starts_with(what));
        let others = report.damage.iter().filter(|d| !(all_read && of_no_key(d)));
        assert_eq!(others.eq(&*sound), all_read, "{case}: {:?}", report.damage);
    }
}

#[test]
fn a_dialect_without_a_place_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("ckpt").display().to_string();
    let state = StateDict::new();
    let save = reshard::save(&state, &url).strategy(TensorBundleConfig::default());
    let e = blocking::run(save.dialect(Dialect::Megatron)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e:?}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

/// Type, shape, size and checksum of each entry of an index, by its key.
fn entries(index: &Path) -> BTreeMap<Vec<u8>, (i64, Vec<i64>, i64, u32)> {
    let all = testkit::entries_of(&fs::read(index).unwrap()).unwrap();
    let of_tensors = all.into_iter().filter(|(key, _)| !key.is_empty());
    of_tensors
        .map(|(key, entry)| {
            let e = EntryFields::parse(&entry).unwrap();
            (key, (e.dtype, e.shape, e.size, e.crc32c))
        })
        .collect()
}

#[test]
fn types_without_a_counterpart_are_written_again_as_they_were() {
    let all = fixtures();
    let f = all.iter().find(|f| f.name == "raw_every_dtype").unwrap();
    let found = f.open();
    // Of one tensor the name is no UTF-8. It would be written under another one.
    let names = f.tensors().iter().map(key);
    let odd: Vec<String> = names.filter(|name| name.contains("\\x")).collect();
    let [odd] = &odd[..] else { panic!("{odd:?}") };
    let mut state = state_of(&found);
    let Tree::Dict(leaves) = &mut state else {
        panic!("{state:?}")
    };
    assert!(leaves.shift_remove(&Step::from(&**odd)).is_some());

    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("again").display().to_string();
    let config = TensorBundleConfig::default().with_object_graph(ObjectGraphSource::None);
    blocking::run(reshard::save(&state, &url).strategy(config)).unwrap();
    let ours = entries(&home.path().join("again.index"));
    let mut theirs = entries(&f.folder.join(format!("{}.index", f.stem)));
    theirs.retain(|name, _| std::str::from_utf8(name).is_ok());
    assert_eq!(ours, theirs);
    let types = |range: std::ops::RangeInclusive<i64>| {
        let entries = ours.values().map(|entry| entry.0);
        entries.filter(|dtype| range.contains(dtype)).count()
    };
    // Numbers for quantised elements, and those of few bits.
    assert!(types(11..=13) == 3 && types(15..=16) == 2 && types(29..=33) == 5);

    let again = Checkpoint::open(&url).unwrap();
    let mut objects = 0;
    for name in found.objects() {
        let stored = |c: &Checkpoint| format!("{:?}", c.object_payload(name).unwrap());
        assert_eq!(stored(&again), stored(&found), "{name}");
        let value = again.object(name).unwrap();
        assert_eq!(value, found.object(name).unwrap(), "{name}");
        objects += usize::from(value.type_name().starts_with("tensorflow."));
    }
    assert!(objects >= 11, "only {objects}");
    for tensor in found.tensors().filter(|t| t.key() != odd) {
        let read = again.tensor(tensor.key()).unwrap().read(..).unwrap();
        assert_eq!(read, tensor.read(..).unwrap(), "{}", tensor.key());
    }
}
