//! A file of `torch.save`, the checkpoint that PyTorch's `torch_save_to_dcp` made of it, and the file that `dcp_to_torch_save` made of
//! that, are the same state.

use reshard::{
    BackendVersion, Dialect, Region, StateDict, Tensor, Value, ValueTree, blocking,
    blocking::Checkpoint, model::Leaf, policy::MaxShardSize, storage::Progress,
    torch_save::TorchSaveConfig,
};
use reshard_convert::convert;
use reshard_golden::root;
use std::path::{Path, PathBuf};

fn at(name: &str) -> PathBuf {
    root().join("dcp/torch_save_to_dcp").join(name)
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path.display().to_string()).unwrap()
}

fn state(path: &Path) -> ValueTree {
    open(path).state().unwrap()
}

#[test]
fn the_file_the_checkpoint_and_the_file_made_of_it_are_equal() {
    let src = open(&at("src.pt"));
    assert_eq!(*src.backend(), BackendVersion::new("torch_save", 1));
    let mut keys: Vec<&str> = src.metadata().entries().map(|e| e.key()).collect();
    keys.sort_unstable();
    let all = [
        "lst.0",
        "lst.1",
        "meta.epoch",
        "meta.tags",
        "model.b",
        "model.w",
    ];
    assert_eq!(keys, all);
    let whole = src.state().unwrap();
    assert_eq!(whole, state(&at("ckpt")));
    assert_eq!(whole, state(&at("roundtrip.pt")));
    let w = src.tensor("model.w").unwrap();
    let row = w.read(Region::new([1, 1], [1, 2])).unwrap();
    let all = w.read(..).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(row.to_vec::<f32>().unwrap(), all[5..7]);
    for file in ["src.pt", "roundtrip.pt"] {
        assert!(
            open(&at(file))
                .verify(true, Progress::none())
                .unwrap()
                .damage
                .is_empty()
        );
    }
}

/// `ckpt` is what PyTorch made of `src.pt`.
#[test]
fn a_conversion_makes_the_file_again_with_its_nesting_and_its_order() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("new.pt");
    let url = file.display().to_string();
    let source = open(&at("ckpt"));
    blocking::run(convert(&source, &url).ranks(2)).unwrap();
    let (src, new) = (open(&at("src.pt")), open(&file));
    assert_eq!(*new.backend(), BackendVersion::new("torch_save", 1));
    assert_eq!(new.state().unwrap(), src.state().unwrap());
    let keys = |c: &Checkpoint| -> Vec<String> {
        let entries = c.metadata().entries();
        entries.map(|e| e.key().to_owned()).collect()
    };
    assert_eq!(keys(&new), keys(&src));
    assert_eq!(new.metadata().planner_data(), src.metadata().planner_data());
    // Dicts keep their order, which `state()` does not compare.
    assert_eq!(
        format!("{:?}", new.state().unwrap()),
        format!("{:?}", src.state().unwrap())
    );
}

#[test]
fn what_is_saved_as_a_file_and_as_a_checkpoint_is_the_same_again() {
    let home = tempfile::tempdir().unwrap();
    let whole = state(&at("src.pt"));
    let (file, folder) = (home.path().join("new.pt"), home.path().join("new"));
    let saved: StateDict = whole.clone().map(&mut Leaf::Value);
    let url = file.display().to_string();
    let save = || {
        reshard::save(&saved, &url)
            .dialect(Dialect::Dcp)
            .strategy(TorchSaveConfig::default())
    };
    blocking::run(save()).unwrap();
    assert!(file.is_file());
    assert_eq!(state(&file), whole);
    // Only on request it is replaced, and nothing else lies in the folder then.
    assert!(blocking::run(save()).is_err());
    blocking::run(save().overwrite(true)).unwrap();
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    let url = folder.display().to_string();
    blocking::run(reshard::save(&saved, &url).dialect(Dialect::Dcp)).unwrap();
    assert_eq!(state(&folder), whole);
}

#[test]
fn a_file_of_something_else_is_no_checkpoint_and_is_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("notes.bin");
    std::fs::write(&file, "not a checkpoint").unwrap();
    let url = file.display().to_string();
    let e = Checkpoint::open(&url).unwrap_err();
    assert_eq!(e.kind(), reshard::ErrorKind::NotFound, "{e:?}");
    let mut new = StateDict::new();
    new.insert("step", 7);
    let save = reshard::save(&new, &url)
        .dialect(Dialect::Dcp)
        .strategy(TorchSaveConfig::default())
        .overwrite(true);
    assert!(blocking::run(save).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"not a checkpoint");
}

#[test]
fn a_policy_makes_several_files_with_an_index_and_objects_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("model");
    let url = folder.display().to_string();
    let tensor = |n: u64| Tensor::from_vec(&[1000 * n], vec![n as f32; 1000 * n as usize]).unwrap();
    let mut model = StateDict::new();
    for (key, n) in [("a", 10), ("b", 8), ("c", 3), ("d", 12)] {
        model.insert(key, Value::Tensor(tensor(n)));
    }
    let mut saved = StateDict::new();
    saved.insert_tree("model", model);
    let save = |state: &StateDict| {
        let save = reshard::save(state, &url)
            .dialect(Dialect::Dcp)
            .strategy(TorchSaveConfig::default())
            .policy(MaxShardSize::new(52_000));
        blocking::run(save)
    };
    let mut with_object = saved.clone();
    with_object.insert("step", 7);
    assert!(save(&with_object).is_err());
    save(&saved).unwrap();
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let shards = ["1", "2", "3"].map(|n| format!("pytorch_model-0000{n}-of-00003.bin"));
    let others = ["pytorch_model.bin.index.json", "reshard.json"].map(String::from);
    assert_eq!(files, [&shards[..], &others[..]].concat());
    let index = std::fs::read(folder.join(&others[0])).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], 4000 * (10 + 8 + 3 + 12));
    assert_eq!(index["weight_map"].as_object().unwrap().len(), 4);
    // The nesting is kept in the index; a file alone is flat.
    let want: ValueTree = saved
        .try_map::<_, ()>(&mut |_, leaf| match leaf {
            Leaf::Value(value) => Ok(Some(ValueTree::Leaf(value))),
            _ => Ok(None),
        })
        .unwrap()
        .unwrap();
    assert_eq!(state(&folder), want);
    let first = open(&folder.join(&shards[0]));
    assert!(
        first
            .metadata()
            .entries()
            .all(|e| e.key().starts_with("model."))
    );
}
