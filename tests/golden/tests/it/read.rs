//! No fixture lies there for nothing: each file is read by a test, or stands on a list of those that are not.

use futures::executor::block_on;
use reshard::{
    Checkpoint, OpenOptions,
    storage::{CountingStore, LocalStore, Progress, Store, StoreScheme, Stores},
};
use reshard_golden::{fixtures, of_safetensors, ours, root};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// Files below `tests/fixtures` that no test reads, and why not. A folder stands for all in it.
const UNREAD: &[(&str, &str)] = &[
    ("megatron/vectors_012.json", "tests of the crates read it"),
    ("README.md", "for people"),
    (".gitattributes", "for git"),
    ("make", "the programs that made the fixtures"),
    ("tf/checkpoints", "`tf_bundle.rs` reads all of them"),
    ("other_programs", "`other_programs.rs` reads all of them"),
    ("rank_files", "`rank_files.rs` reads all of them"),
    ("dcp/torch_save_to_dcp/src.pt", FILES),
    ("dcp/torch_save_to_dcp/roundtrip.pt", FILES),
    ("dcp/bad_empty_metadata/ckpt/__0_0.distcp", BEHIND),
    ("dcp/bad_empty_metadata/ckpt/__1_0.distcp", BEHIND),
    ("dcp/bad_no_metadata/ckpt/__0_0.distcp", BEHIND),
    ("dcp/bad_no_metadata/ckpt/__1_0.distcp", BEHIND),
    ("dcp/bad_tmp_only/ckpt", BEHIND),
    ("dcp/bad_truncated_metadata/ckpt/__0_0.distcp", BEHIND),
    ("dcp/bad_truncated_metadata/ckpt/__1_0.distcp", BEHIND),
    ("dcp/evil_deep_metadata/ckpt/__0_0.distcp", BEHIND),
    ("dcp/evil_deep_metadata/ckpt/__1_0.distcp", BEHIND),
    ("dcp/evil_metadata/ckpt/__0_0.distcp", BEHIND),
    ("dcp/evil_metadata/ckpt/__1_0.distcp", BEHIND),
    (
        "dcp/bad_abs_path/ckpt/__1_0.distcp",
        "the metadata name another file instead, which must not be read",
    ),
    (
        "dcp/bad_path_traversal/ckpt/__1_0.distcp",
        "the metadata name another file instead",
    ),
    (
        "dcp/bad_path_traversal/outside.distcp",
        "that is the other file, which must not be read",
    ),
    (
        "dcp/bad_hole/ckpt/__1_0.distcp",
        "the metadata lost what lies in it",
    ),
    (
        "dcp/bad_zero_data/ckpt/__1_0.distcp",
        "it is empty, and that is seen by its length",
    ),
    (
        "dcp/empty/ckpt/__0_0.distcp",
        "a checkpoint without items, and its file without bytes",
    ),
    (
        "dcp/replicated_lowest_w4/ckpt/__1_0.distcp",
        "empty: rank 0 saved everything",
    ),
    (
        "dcp/replicated_lowest_w4/ckpt/__2_0.distcp",
        "empty: rank 0 saved everything",
    ),
    (
        "dcp/replicated_lowest_w4/ckpt/__3_0.distcp",
        "empty: rank 0 saved everything",
    ),
    (
        "dcp/stale_files/ckpt/__0_1.distcp",
        "of an earlier save; no item lies in it",
    ),
    (
        "dcp/stale_files/ckpt/__0_2.distcp",
        "of an earlier save; no item lies in it",
    ),
    (
        "megatron/zarr012_dist_opt_model_space_w4/ckpt/optimizer.state.exp_avg.decoder.weight.sync",
        LOCKS,
    ),
    (
        "megatron/zarr012_dist_opt_model_space_w4/ckpt/optimizer.state.exp_avg_sq.decoder.weight.sync",
        LOCKS,
    ),
    (
        "megatron/zarr012_dist_opt_model_space_w4/ckpt/optimizer.state.fp32_param.decoder.weight.sync",
        LOCKS,
    ),
    ("megatron/zarr012_flat_guide_w6/ckpt/guide.sync", LOCKS),
];

const LOCKS: &str = "empty files that Megatron Core has locked";

const FILES: &str = "torch_save.rs reads it, by its name";
const BEHIND: &str = "its metadata are damaged or missing, so that nobody knows what lies in it";

/// The sources with the names of TensorFlow's cases.
const OF_TENSORFLOW: [&str; 3] = [
    include_str!("tf_bundle.rs"),
    include_str!("tf_embedding.rs"),
    include_str!("tf_policy.rs"),
];

static STORE: Mutex<Option<CountingStore>> = Mutex::new(None);

/// Opens a checkpoint, and counts what is read of it.
fn counted(dir: &Path) -> (Stores, CountingStore) {
    let store = CountingStore::new(Arc::new(LocalStore::at(dir).unwrap()));
    *STORE.lock().unwrap() = Some(store.clone());
    let mut stores = Stores::linked().unwrap();
    let open = |_: &str| Ok(Arc::new(STORE.lock().unwrap().clone().unwrap()) as Arc<dyn Store>);
    stores
        .register(StoreScheme::new(
            "counted",
            "reshard-golden",
            env!("CARGO_PKG_VERSION"),
            open,
        ))
        .unwrap();
    (stores, store)
}

/// What the tests beside this one ask of a checkpoint.
fn read_all(checkpoint: &Checkpoint) {
    drop(block_on(checkpoint.verify(true, Progress::default())));
    drop(block_on(checkpoint.common()));
    drop(block_on(checkpoint.sidecar()));
    checkpoint
        .objects()
        .for_each(|key| drop(block_on(checkpoint.object(key))));
}

fn files_below(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, out)
        } else {
            out.push(path)
        }
    }
}

#[test]
fn every_file_of_the_fixtures_is_read_or_on_the_list_of_those_that_are_not() {
    if !ours() {
        // The list is of this repository's.
        return;
    }
    let mut read: BTreeSet<String> = BTreeSet::new();
    for f in fixtures() {
        read.insert(format!("{}/expected.json", f.name));
        let (stores, store) = counted(&f.checkpoint());
        if let Ok(opened) = block_on(OpenOptions::new().stores(stores).open("counted://it")) {
            read_all(&opened);
        }
        read.extend(
            store
                .take()
                .opened
                .iter()
                .map(|file| format!("{}/ckpt/{file}", f.name)),
        );
    }
    for f in of_safetensors() {
        read.insert(format!("{}/expected.json", f.name));
        for place in f.places() {
            let (stores, store) = counted(&place);
            let opened = block_on(OpenOptions::new().stores(stores).open("counted://it")).unwrap();
            read_all(&opened);
            let place = place.strip_prefix(root()).unwrap().display().to_string();
            let opened = store.take().opened;
            read.extend(opened.iter().map(|file| format!("{place}/{file}")));
        }
    }
    for name in OF_TENSORFLOW
        .iter()
        .flat_map(|source| source.split("cases(\"").skip(1))
    {
        read.insert(format!(
            "tf/goldens/{}.json",
            name.split('"').next().unwrap()
        ));
    }
    let mut files = Vec::new();
    files_below(&root(), &mut files);
    let name = |file: &PathBuf| file.strip_prefix(root()).unwrap().display().to_string();
    let files: BTreeSet<String> = files.iter().map(name).collect();
    let covers = |entry: &str, file: &str| {
        file.strip_prefix(entry)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut wrong: Vec<String> = Vec::new();
    for file in &files {
        let listed = UNREAD.iter().any(|(entry, _)| covers(entry, file));
        match (read.contains(file), listed) {
            (false, false) => wrong.push(format!("{file}: no test reads it")),
            (true, true) => wrong.push(format!(
                "{file}: is read, and on the list of those that are not"
            )),
            _ => {}
        }
    }
    for (entry, _) in UNREAD {
        if !files.iter().any(|file| covers(entry, file)) {
            wrong.push(format!("{entry}: is on the list, but not there"));
        }
    }
    wrong.extend(
        read.difference(&files)
            .map(|file| format!("{file}: a test looks for it, but it is not there")),
    );
    assert!(
        wrong.is_empty(),
        "{} findings:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
