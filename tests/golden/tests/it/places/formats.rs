//! What opens as a checkpoint on a disk, in whatever format, is read in each place as it is read there: folders, single files, files with a prefix.

use crate::places::{files, put_files, verified};
use futures::executor::block_on;
use reshard::{
    Checkpoint, OpenOptions,
    storage::{FileBody, Name},
};
use reshard_golden::{fixtures, root, sha256};
use reshard_object_store::{ObjectStores, object_store::memory::InMemory};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

/// Names of formats' files that are checkpoints by themselves.
const FILES: [&str; 4] = ["pt", "pth", "bin", "safetensors"];

/// Folders with checkpoints, and their names in a place.
fn roots() -> [(PathBuf, &'static str); 3] {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    [
        (root(), "all/"),
        (crates.join("reshard-zarr/tests/fixtures"), "zarr/"),
        (
            crates.join("reshard-torch-save/tests/fixtures"),
            "torch_save/",
        ),
    ]
}

/// A place that opens as a checkpoint on a disk.
#[cfg_attr(
    not(feature = "clouds"),
    expect(dead_code, reason = "places that can't list ask for more")
)]
struct Local {
    disk: PathBuf,
    /// Its path in any place.
    path: String,
    backend: String,
    /// Whether it is no folder.
    is_part: bool,
    facts: Vec<String>,
}

/// What can be said of a checkpoint. Errors name places, so only their kinds are compared.
fn facts(checkpoint: &Checkpoint) -> Vec<String> {
    let mut out = vec![format!("{:?}", checkpoint.metadata())];
    for tensor in checkpoint.tensors() {
        out.push(match block_on(tensor.read(..)) {
            Ok(read) => format!("{}: {}", tensor.key(), sha256(read.blocks(1 << 20))),
            Err(e) => format!("{}: {:?}", tensor.key(), e.kind()),
        });
    }
    for key in checkpoint.objects() {
        out.push(match block_on(checkpoint.object(key)) {
            Ok(value) => format!("{key}: {value:?}"),
            Err(e) => format!("{key}: {:?}", e.kind()),
        });
    }
    // These facts are compared with places that list and with others.
    out.push(match verified(checkpoint, false) {
        Ok(report) => format!("{report:?}"),
        Err(e) => format!("{:?}", e.kind()),
    });
    out
}

/// Files of a checkpoint, which only a listing tells in some formats.
fn listed(checkpoint: &Checkpoint) -> BTreeMap<String, u64> {
    let all = block_on(checkpoint.files()).unwrap().into_iter();
    all.map(|file| (file.name.into(), file.bytes)).collect()
}

/// All that opens below a folder, but what is `known`.
fn find(folder: &Path, before: &str, known: &[PathBuf], out: &mut Vec<Local>) {
    let mut places: Vec<(PathBuf, String, bool)> = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{before}{}", path.file_name().unwrap().to_str().unwrap());
        let extension = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        if path.is_dir() {
            find(&path, &format!("{name}/"), known, out);
            places.push((path, name, false));
        } else if FILES.contains(&extension) {
            places.push((path, name, true));
        } else if let Some(prefix) = name.strip_suffix(".index") {
            places.push((path.with_extension(""), prefix.into(), true));
        }
    }
    places.retain(|(disk, ..)| !known.contains(disk));
    for (disk, path, is_part) in places {
        if let Ok(checkpoint) = block_on(Checkpoint::open(&disk.display().to_string())) {
            let mut facts = facts(&checkpoint);
            facts.push(format!("{:?}", listed(&checkpoint)));
            out.push(Local {
                disk,
                path,
                backend: checkpoint.backend().backend.to_string(),
                is_part,
                facts,
            });
        }
    }
}

static LOCALS: LazyLock<Vec<Local>> = LazyLock::new(|| {
    let mut out = Vec::new();
    // Those with an `expected.json` have tests of their own.
    let known: Vec<PathBuf> = fixtures().iter().map(|f| f.checkpoint()).collect();
    for (root, before) in roots() {
        find(&root, before, &known, &mut out);
    }
    let count = |backend: &str| out.iter().filter(|l| l.backend == backend).count();
    for backend in [
        "rank_files",
        "safetensors",
        "tensor_bundle",
        "torch_save",
        "zarr",
    ] {
        println!("{backend}: {}", count(backend));
        assert!(count(backend) > 0, "no checkpoint in {backend}");
    }
    out
});

/// All files of all checkpoints, and one more.
fn everything() -> (Vec<FileBody>, (Name, Vec<u8>)) {
    let mut bodies = Vec::new();
    for (root, before) in roots() {
        files(&root, before, &mut bodies);
    }
    (bodies, (Name::new("last").unwrap(), b"last".to_vec()))
}

/// Compares one in `step` of the checkpoints that open below a URL with those on the disk. Returns those that don't open.
fn compare(
    step: usize,
    lists: bool,
    open: impl Fn(&str) -> reshard::Result<Checkpoint>,
) -> Vec<(&'static Local, String)> {
    let (mut wrong, mut left_out) = (Vec::new(), Vec::new());
    for local in LOCALS.iter().step_by(step) {
        let checkpoint = match open(&local.path) {
            Ok(checkpoint) => checkpoint,
            Err(e) => {
                left_out.push((local, reshard_golden::chain(&e)));
                continue;
            }
        };
        let mut found = facts(&checkpoint);
        found.push(match lists {
            true => format!("{:?}", listed(&checkpoint)),
            false => local.facts.last().unwrap().clone(),
        });
        assert_eq!(found.len(), local.facts.len(), "{}", local.path);
        for (there, here) in found.iter().zip(&local.facts) {
            if there != here {
                wrong.push(format!("{}:\n  {there}\ninstead of\n  {here}", local.path));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    left_out
}

/// Compares one in `step` of the checkpoints in a bucket.
fn are_the_same(step: usize, stores: &ObjectStores, url: &str) {
    let (bodies, last) = everything();
    put_files(bodies, last, &stores.open_place(url).unwrap());
    let left_out = compare(step, true, |path| {
        let url = format!("{url}/{path}");
        let place = stores.open_place(&url).unwrap();
        block_on(OpenOptions::new().store(Arc::new(place)).open(&url))
    });
    let left_out: Vec<_> = left_out.iter().map(|(l, e)| (&l.path, e)).collect();
    assert!(left_out.is_empty(), "{left_out:#?}");
}

#[test]
fn every_format_is_the_same_in_an_object_store() {
    let stores = ObjectStores::new().with_client("s3://bucket", Arc::new(InMemory::new()));
    are_the_same(1, &stores, "s3://bucket/fixtures");
}

#[cfg(feature = "clouds")]
mod clouds {
    use super::*;
    use crate::places::bucket_of_moto;
    use reshard::storage::CountingStore;
    use reshard_golden::serve;
    use reshard_model::testkit::one_in;
    use reshard_tensor_bundle::testkit;

    #[test]
    #[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
    fn needs_clouds_every_format_is_the_same_in_a_bucket() {
        let url = format!("s3://reshard/formats {}", std::process::id());
        are_the_same(one_in(4), &bucket_of_moto(), &url);
    }

    #[test]
    fn formats_whose_files_are_named_are_the_same_behind_a_web_server() {
        let urls: Vec<(&str, String)> = roots()
            .iter()
            .map(|(root, before)| (*before, serve(root).unwrap()))
            .collect();
        let left_out = compare(one_in(3), false, |path| {
            let (before, url) = urls.iter().find(|(b, _)| path.starts_with(b)).unwrap();
            block_on(Checkpoint::open(&format!(
                "{url}/{}",
                &path[before.len()..]
            )))
        });
        // Only a listing tells which arrays a folder of Zarr has, which prefix one of TensorFlow, and which files one of safetensors, unless one of
        // their files does.
        let is_told = |l: &Local| {
            let has = |file: &str| l.disk.join(file).exists();
            let text = fs::read(l.disk.join("zarr.json")).unwrap_or_default();
            let v3: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            match &*l.backend {
                "safetensors" => has("model.safetensors.index.json"),
                "tensor_bundle" => has("variables/variables.index"),
                _ => {
                    has(".zmetadata")
                        || has(".zarray")
                        || v3["node_type"] == "array"
                        || v3["consolidated_metadata"]["metadata"].is_object()
                }
            }
        };
        let lists = |l: &Local| !l.is_part && l.backend != "torch_save" && !is_told(l);
        let (listed, wrong): (Vec<_>, Vec<_>) = left_out.iter().partition(|(l, _)| lists(l));
        let path = |of: &[&(&Local, String)]| -> Vec<String> {
            of.iter()
                .map(|(l, why)| format!("{}: {why}", l.path))
                .collect()
        };
        println!("without a listing these don't open: {:#?}", path(&listed));
        assert!(wrong.is_empty(), "{:#?}", path(&wrong));
    }

    /// An index may say anything of how many files there are.
    #[test]
    fn a_prefix_behind_a_web_server_costs_no_request_for_each_file_that_its_index_counts() {
        let is_prefix = |l: &&Local| l.is_part && l.backend == "tensor_bundle";
        let local = LOCALS.iter().find(is_prefix).unwrap();
        let index = fs::read(format!("{}.index", local.disk.display())).unwrap();
        let mut entries = testkit::entries_of(&index).unwrap();
        entries[0].1 = testkit::header(i32::MAX.into(), 0, (1, 0));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("p.index"), testkit::table(&entries)).unwrap();

        let url = format!("{}/p", serve(dir.path()).unwrap());
        let place = ObjectStores::new().open_place(&url).unwrap();
        let counting = CountingStore::new(Arc::new(place));
        let open = OpenOptions::new().store(Arc::new(counting.clone()));
        let checkpoint = block_on(open.open(&url)).unwrap();
        let requests = counting.take().requests;
        assert!(requests < 40, "{requests}");
        let tensor = checkpoint.tensors().next().unwrap();
        let error = block_on(tensor.read(..)).unwrap_err();
        assert!(
            error.to_string().contains("-of-2147483647"),
            "{}",
            reshard_golden::chain(&error)
        );
    }
}
