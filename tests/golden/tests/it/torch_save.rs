//! A file of `torch.save`, the checkpoint that PyTorch's `torch_save_to_dcp` made of it, and the file that `dcp_to_torch_save` made of
//! that, are the same state.

use reshard::{
    BackendVersion, Dialect, Region, StateDict, ValueTree, blocking, blocking::Checkpoint,
    model::Leaf, storage::Progress, torch_save::TorchSaveConfig,
};
use reshard_golden::root;
use std::path::{Path, PathBuf};

fn at(name: &str) -> PathBuf {
    root().join("dcp/torch_save_to_dcp").join(name)
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(&path.display().to_string()).unwrap()
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
