//! Keys are removed from folders of Zarr arrays: those of Megatron Core, of other programs, and of our own.

use futures::executor::block_on;
use reshard::{
    Checkpoint, Dialect, Error, OpenOptions, ShardedObject, ShardedTensor, StateDict, Tensor,
    Value, ValueTree, blocking,
    storage::Progress,
    strategy::{BackendVersion, SaveShardedStrategy},
};
use reshard_manager::Removed;
use reshard_model::testkit::fixture;
use serde_json::{Value as Json, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

/// A copy of the checkpoint of a fixture, or an empty folder.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// `None` if the fixtures are of another folder, which lacks it.
    fn of(name: &str) -> Option<Self> {
        let from = fixture(&format!("megatron/{name}"))?.join("ckpt");
        let out = Self::new();
        for (name, bytes) in files(&from) {
            out.write(&name, bytes);
        }
        Some(out)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.0.path().join("ckpt").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn url(&self) -> String {
        self.0.path().join("ckpt").display().to_string()
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        files(&self.0.path().join("ckpt"))
    }

    fn names(&self) -> BTreeSet<String> {
        self.files().into_keys().collect()
    }

    fn remove(&self, prefix: &str) -> Result<Removed, Error> {
        blocking::run(reshard_manager::remove_sharded_tensors(self.url(), prefix))
    }

    /// It is whole, and has these keys.
    fn sound(&self) -> BTreeSet<String> {
        sound(&block_on(Checkpoint::open(&self.url())).unwrap())
    }
}

fn sound(opened: &Checkpoint) -> BTreeSet<String> {
    let report = block_on(opened.verify(true, Progress::none())).unwrap();
    assert!(
        report.damage.is_empty() && report.not_understood.is_empty(),
        "{report:?}"
    );
    let tensors = opened.metadata().tensors().map(|t| t.key().to_owned());
    tensors.chain(opened.objects().map(str::to_owned)).collect()
}

/// All files below a folder, by path.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut out, mut left) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
                continue;
            }
            let name = path.strip_prefix(root).unwrap().display().to_string();
            out.insert(name, fs::read(path).unwrap());
        }
    }
    out
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

fn keys(removed: &Removed) -> BTreeSet<String> {
    removed.keys.iter().cloned().collect()
}

const MODEL: [&str; 5] = [
    "decoder.weight/.zarray",
    "decoder.weight/0.0.0",
    "decoder.weight/0.1.0",
    "decoder.weight/1.0.0",
    "decoder.weight/1.1.0",
];

#[test]
fn the_optimizer_goes_from_a_zarr_checkpoint_of_megatron_core_with_its_arrays_and_lock_files() {
    let Some(at) = Folder::of("zarr012_dist_opt_model_space_w4") else {
        return;
    };
    at.write(
        "optimizer.state.exp_avg.decoder.weight/README",
        "of somebody",
    );
    let (before, url) = (at.files(), at.url());
    let inode = |name: &str| fs::metadata(Path::new(&url).join(name)).unwrap().ino();
    let inodes = MODEL.map(inode);
    let would =
        blocking::run(reshard_manager::remove_sharded_tensors(&url, "optimizer.").dry_run(true));
    assert_eq!(at.files(), before);

    let removed = at.remove("optimizer.").unwrap();
    assert_eq!(would.unwrap(), removed);
    let state = ["exp_avg", "exp_avg_sq", "fp32_param"];
    let gone = state.map(|s| format!("optimizer.state.{s}.decoder.weight"));
    assert_eq!(keys(&removed), set(gone.iter().map(String::as_str)));
    // Five files of each array, and as many locks.
    assert_eq!((removed.files.len(), removed.kept.len()), (30, 4));

    // What is left has not been written again, and what is of others stays.
    let readme = "optimizer.state.exp_avg.decoder.weight/README";
    let left = MODEL
        .into_iter()
        .chain(["common.pt", "metadata.json", readme]);
    let after = at.files();
    assert_eq!(after.keys().cloned().collect::<BTreeSet<_>>(), set(left));
    assert!(after.iter().all(|(name, bytes)| before[name] == *bytes));
    assert_eq!(MODEL.map(inode), inodes);
    assert_eq!(at.sound(), set(["decoder.weight"]));
    assert_eq!(at.remove("optimizer.").unwrap(), Removed::default());
    assert_eq!(at.files(), after);

    // Nothing but common state is a checkpoint, too.
    at.remove("decoder.").unwrap();
    assert!(at.sound().is_empty());
    assert_eq!(at.names(), set(["common.pt", "metadata.json", readme]));
}

#[test]
fn objects_go_by_their_keys_and_arrays_and_other_objects_stay() {
    let Some(at) = Folder::of("zarr012_objects_w4") else {
        return;
    };
    let (all, before) = (at.sound(), at.names());
    let (gone, stay): (BTreeSet<String>, BTreeSet<String>) =
        all.into_iter().partition(|key| key.starts_with("obj.grid"));
    let removed = at.remove("obj.grid").unwrap();
    assert_eq!((keys(&removed), gone.len()), (gone.clone(), 4));
    assert_eq!(at.sound(), stay);
    let file = |name: &&String| !gone.contains(name.trim_end_matches(".pt"));
    assert_eq!(at.names(), before.iter().filter(file).cloned().collect());
    let opened = block_on(Checkpoint::open(&at.url())).unwrap();
    for key in opened.objects() {
        block_on(opened.object(key)).unwrap();
    }
    at.remove("tensor.").unwrap();
    assert!(!at.names().iter().any(|name| name.starts_with("tensor.")));
    assert!(at.sound().contains("obj.vec/shard_3_4"));
}

/// Very old versions of Megatron Core took the last number of the shape for a suffix, which `.pt` replaced.
#[test]
fn objects_with_very_old_names_are_listed_read_and_removed() {
    let Some(at) = Folder::of("zarr012_objects_w4") else {
        return;
    };
    let values = || -> BTreeMap<String, Value> {
        let opened = block_on(Checkpoint::open(&at.url())).unwrap();
        let value = |key: &str| (key.to_owned(), block_on(opened.object(key)).unwrap());
        opened.objects().map(value).collect()
    };
    let (keys_of_today, values_of_today) = (at.sound(), values());
    let root = at.url();
    let old = |name: &str| -> Option<String> {
        let (folder, cell) = name.strip_suffix(".pt")?.rsplit_once('/')?;
        Some(format!("{folder}/{}.pt", cell.rsplit_once('.')?.0))
    };
    let mut renamed = 0;
    for name in at.names() {
        if let Some(old) = old(&name) {
            fs::rename(Path::new(&root).join(&name), Path::new(&root).join(old)).unwrap();
            renamed += 1;
        }
    }
    assert_eq!(renamed, 5);
    assert!(at.names().contains("obj.grid/shard_1.1_2.pt"));
    assert_eq!(at.sound(), keys_of_today);
    assert_eq!(values(), values_of_today);
    let template = block_on(reshard::load_sharded_metadata(&root)).unwrap();
    let loaded = blocking::load(template, &root).unwrap();
    for (key, value) in values_of_today {
        let got = loaded.get(&key).cloned().map(Value::from);
        assert_eq!(got, Some(value), "{key}");
    }

    let removed = at.remove("obj.grid").unwrap();
    assert_eq!(keys(&removed).len(), 4);
    assert!(!at.names().iter().any(|name| name.starts_with("obj.grid")));
    let stay = keys_of_today
        .into_iter()
        .filter(|key| !key.starts_with("obj.grid"));
    assert_eq!(at.sound(), stay.collect());
}

#[test]
fn keys_go_from_a_checkpoint_older_than_metadata_json_if_the_format_is_chosen() {
    let Some(at) = Folder::of("zarr012_dist_opt_model_space_w4") else {
        return;
    };
    let url = at.url();
    fs::remove_file(Path::new(&url).join("metadata.json")).unwrap();
    let before = at.names();
    assert!(at.remove("optimizer.").is_err());
    assert_eq!(at.names(), before);
    let zarr = || BackendVersion::new("zarr", 1);
    let removal = reshard_manager::remove_sharded_tensors(&url, "optimizer.").format(zarr());
    assert_eq!(blocking::run(removal).unwrap().keys.len(), 3);
    assert_eq!(at.names(), set(MODEL.into_iter().chain(["common.pt"])));
    let opened = block_on(OpenOptions::new().format(zarr()).open(&url)).unwrap();
    assert_eq!(sound(&opened), set(["decoder.weight"]));
    assert!(matches!(block_on(opened.common()).unwrap(), ValueTree::Dict(d) if !d.is_empty()));
}

fn saved(format: &str, dialect: Dialect) -> Folder {
    let at = Folder::new();
    let mut state = StateDict::new();
    for (n, key) in (0..).zip(["model/w", "model/b", "opt/m/w", "opt/v", "optics"]) {
        let data = Tensor::from_vec(&[6, 2], (n..n + 12).collect::<Vec<i32>>()).unwrap();
        state.insert(key, ShardedTensor::full(key, data));
    }
    if dialect == Dialect::Megatron {
        for key in ["rng", "opt_rng"] {
            let cell = ShardedObject::new(key, Value::Int(1), &[1], &[0], 0);
            state.insert(key, cell.unwrap());
        }
    }
    let config: SaveShardedStrategy = serde_json::from_value(json!({ "format": format })).unwrap();
    let url = at.url();
    let save = reshard::save(&state, &url).dialect(dialect);
    blocking::run(save.strategy(config)).unwrap();
    at
}

#[test]
fn arrays_go_from_our_own_checkpoints_with_their_groups_and_checksums() {
    for format in ["zarr", "zarr3"] {
        for dialect in [Dialect::Megatron, Dialect::Dcp] {
            let at = saved(format, dialect);
            let before = at.files();
            let removed = at.remove("opt/").unwrap();
            assert_eq!(keys(&removed), set(["opt/m/w", "opt/v"]), "{format}");
            let left = at.sound();
            assert!(left.contains("optics") && left.contains("model/b"));
            assert!(!at.names().iter().any(|name| name.starts_with("opt/")));
            let opened = block_on(Checkpoint::open(&at.url())).unwrap();
            assert!(matches!(block_on(opened.sidecar()), (Some(_), None)));
            let report = block_on(opened.verify(true, Progress::none())).unwrap();
            assert_eq!(report.without_checksum, 0);

            // Only what names all arrays is another one.
            let records = [
                "zarr.json",
                "reshard-zarr.json",
                "reshard-zarr3.json",
                "reshard.json",
            ];
            for (name, bytes) in at.files() {
                let is_record = records.contains(&name.as_str());
                assert_eq!(before[&name] != bytes, is_record, "{format}: {name}");
                assert!(!is_record || !String::from_utf8_lossy(&bytes).contains("opt/"));
            }
            // The name of an array alone takes what lies in it, and another one that begins with it.
            at.remove("opt").unwrap();
            assert!(at.sound().iter().all(|key| !key.starts_with("opt")));
            at.remove("model/").unwrap();
            at.remove("rng").unwrap();
            assert!(at.sound().is_empty());
        }
    }
}

/// A v2 array of one-byte elements.
fn v2(shape: u64) -> Json {
    json!({"zarr_format": 2, "shape": [shape], "chunks": [2], "dtype": "|u1", "compressor": null, "fill_value": 0,
        "filters": null, "order": "C"})
}

/// A v3 array of one-byte elements, whose chunks are named with dots.
fn v3(shape: u64) -> Json {
    json!({"zarr_format": 3, "node_type": "array", "shape": [shape], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "codecs": [{"name": "bytes"}]})
}

#[test]
fn arrays_go_from_groups_of_other_programs_and_from_what_describes_them_all() {
    let group = json!({"zarr_format": 2});
    let attrs = json!({"by": "them"});
    let at = Folder::new();
    at.write(".zgroup", group.to_string());
    for (name, shape) in [("g/a", 4), ("g/b", 4), ("h/a", 3)] {
        at.write(&format!("{name}/.zarray"), v2(shape).to_string());
        at.write(&format!("{name}/.zattrs"), attrs.to_string());
        // The other chunk is the fill value.
        at.write(&format!("{name}/0"), [7, 8]);
    }
    for name in ["g", "h"] {
        at.write(&format!("{name}/.zgroup"), group.to_string());
    }
    let node = |name: &str| (name.to_owned(), group.clone());
    let metadata: serde_json::Map<_, _> = [
        ".zgroup",
        "g/.zgroup",
        "g/a/.zarray",
        "g/a/.zattrs",
        "g/b/.zarray",
        "h/.zgroup",
        "h/a/.zarray",
    ]
    .map(node)
    .into_iter()
    .collect();
    let consolidated = json!({"zarr_consolidated_format": 1, "metadata": metadata});
    at.write(".zmetadata", consolidated.to_string());
    at.write("h/notes", "of somebody");

    assert_eq!(keys(&at.remove("g/a").unwrap()), set(["g/a"]));
    assert_eq!(at.sound(), set(["g/b", "h/a"]));
    assert!(!at.names().iter().any(|name| name.starts_with("g/a/")));
    assert!(at.names().contains("g/b/.zattrs"));
    at.remove("h/").unwrap();
    let kept = [
        ".zgroup",
        ".zmetadata",
        "g/.zgroup",
        "g/b/.zarray",
        "g/b/.zattrs",
        "g/b/0",
        "h/notes",
    ];
    assert_eq!(at.names(), set(kept));
    let found: Json = serde_json::from_slice(&at.files()[".zmetadata"]).unwrap();
    let left: Vec<&String> = found["metadata"].as_object().unwrap().keys().collect();
    assert_eq!(left, [".zgroup", "g/.zgroup", "g/b/.zarray"]);
    assert_eq!(found["zarr_consolidated_format"], 1);
    let e = at.remove("g").unwrap_err().to_string();
    assert!(e.contains("no checkpoint would be left"), "{e}");

    // What nobody can parse would go on naming what is gone.
    let at = Folder::new();
    for name in ["a", "b"] {
        at.write(&format!("{name}/.zarray"), v2(2).to_string());
    }
    at.write(".zmetadata", "{\"metadata\": {\"a/.zarray\": NaN}}");
    at.remove("a").unwrap();
    assert_eq!(at.names(), set(["b/.zarray"]));
}

#[test]
fn arrays_go_from_groups_of_zarr_v3_whose_groups_have_metadata_of_their_own() {
    let at = Folder::new();
    let group = |nodes: Json| {
        json!({"zarr_format": 3, "node_type": "group", "attributes": {"by": "them"},
            "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": nodes}})
    };
    for name in ["g/a", "g/b", "b"] {
        at.write(&format!("{name}/zarr.json"), v3(3).to_string());
        at.write(&format!("{name}/c.0"), [1, 2]);
        at.write(&format!("{name}/c.1"), [3, 0]);
    }
    let nodes = json!({"g": group(json!({})), "g/a": v3(3), "g/b": v3(3), "b": v3(3)});
    at.write("zarr.json", group(nodes).to_string());
    let nodes = json!({"a": v3(3), "b": v3(3)});
    at.write("g/zarr.json", group(nodes).to_string());

    at.remove("g/a").unwrap();
    assert_eq!(at.sound(), set(["b", "g/b"]));
    assert!(!at.names().iter().any(|name| name.starts_with("g/a")));
    let found = |name: &str| -> Json { serde_json::from_slice(&at.files()[name]).unwrap() };
    assert_eq!(found("g/zarr.json"), group(json!({"b": v3(3)})));
    let nodes = json!({"g": group(json!({})), "g/b": v3(3), "b": v3(3)});
    assert_eq!(found("zarr.json"), group(nodes));
}

#[test]
fn nothing_is_removed_of_which_nobody_knows_whose_it_is() {
    let at = Folder::new();
    at.write("good/.zarray", v2(2).to_string());
    at.write("bad/.zarray", "of another program");
    at.write("bad/0", [1, 2]);
    let before = at.files();
    let e = at.remove("bad").unwrap_err().to_string();
    assert!(
        e.contains("nobody can tell whether the array belongs"),
        "{e}"
    );
    assert_eq!(at.files(), before);

    let at = Folder::new();
    at.write(".zarray", v2(2).to_string());
    let e = at.remove("tensor").unwrap_err().to_string();
    assert!(e.contains("remove the place"), "{e}");
    assert_eq!(at.names(), set([".zarray"]));

    // Our own record says whose it is. So a damaged array can go, too.
    let at = saved("zarr", Dialect::Megatron);
    at.write("opt/v/.zarray", "damaged");
    at.write("opt/m/w/0.0", "short");
    at.remove("opt/").unwrap();
    assert!(at.sound().contains("model/w"));
}
