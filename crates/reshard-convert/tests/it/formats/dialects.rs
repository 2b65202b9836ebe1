//! Conversions that choose whose conventions they follow.

use crate::formats::states::{Case, cases, contents, formats, open, save, strategy};
use futures::executor::block_on;
use reshard::{
    BackendVersion, Checkpoint, CommonForm, Dialect, ErrorKind, LocalGroup, ShardedTensor,
    StateDict, Tensor, Value, ValueTree, blocking, model::Tree, tensor_bundle::TensorBundleConfig,
};
use reshard_convert::{ConvertError, convert};
use std::{future::IntoFuture as _, path::Path};

fn torch_dist() -> BackendVersion {
    BackendVersion::new("torch_dist", 1)
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|c| c.name == name).unwrap()
}

fn saved(name: &str, url: &str) -> Checkpoint {
    save(&case(name), &torch_dist(), url).unwrap();
    block_on(Checkpoint::open(url)).unwrap()
}

fn common(c: &Checkpoint) -> ValueTree {
    block_on(c.common()).unwrap()
}

/// Keys and values.
fn objects(c: &Checkpoint) -> Vec<(String, Value)> {
    let keys: Vec<String> = c.objects().map(str::to_owned).collect();
    let read = |key: String| (key.clone(), block_on(c.object(&key)).unwrap());
    keys.into_iter().map(read).collect()
}

#[test]
fn tensors_of_any_format_get_the_files_that_megatron_core_needs() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let source = saved("plain", &url("src"));
    let hf = url("hf");
    let to = BackendVersion::new("safetensors", 1);
    blocking::run(convert(&source, &hf).to(to)).unwrap();
    let hf = block_on(Checkpoint::open(&hf)).unwrap();
    for (i, from) in [&source, &hf].into_iter().enumerate() {
        for format in ["torch_dist", "zarr", "zarr3"] {
            let dst = url(&format!("{format}-{i}"));
            let to = BackendVersion::new(format, 1);
            let conversion = convert(from, &dst).to(to.clone()).ranks(2);
            blocking::run(conversion.dialect(Dialect::Megatron)).unwrap();
            for file in ["metadata.json", "common.pt"] {
                assert!(Path::new(&dst).join(file).is_file(), "{format}: {file}");
            }
            // As it is found, without its name.
            let there = block_on(Checkpoint::open(&dst)).unwrap();
            assert_eq!((there.dialect(), there.backend()), (Dialect::Megatron, &to));
            assert_eq!(common(&there), ValueTree::new());
            assert_eq!(contents(&there), contents(&source), "{format}");
        }
    }
}

#[test]
fn objects_become_common_state_where_their_paths_say_and_items_again() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let mut state = StateDict::new();
    let tensor = Tensor::from_vec(&[2], vec![1f32, 2.0]).unwrap();
    let at = |path: &[&str]| path.iter().map(|s| (*s).into()).collect::<Vec<_>>();
    let leaf = |v: Value| Tree::Leaf(v.into());
    state.insert("w", ShardedTensor::full("w", tensor));
    state.insert_at(&at(&["train", "step"]), leaf(7.into()));
    state.insert_at(&at(&["train", "name"]), leaf("run 7".into()));
    state.insert_at(&at(&["nothing"]), Tree::new());
    let src = url("src");
    blocking::run(reshard::save(&state, &src).dialect(Dialect::Dcp)).unwrap();
    let source = block_on(Checkpoint::open(&src)).unwrap();
    assert_eq!(source.objects().count(), 2);

    for form in [CommonForm::File, CommonForm::Object] {
        let dst = url(&format!("{form:?}"));
        let conversion = convert(&source, &dst).dialect(Dialect::Megatron);
        let report = blocking::run(conversion.common_form(form)).unwrap();
        assert_eq!((report.tensors, report.objects), (1, 2));
        let there = block_on(Checkpoint::open(&dst)).unwrap();
        let stored = block_on(there.stored_common()).unwrap().unwrap();
        assert_eq!(stored.form(), form);
        // All of it is common state, and so is the empty dict. Megatron Core takes any object for a cell of an array.
        let left = usize::from(form == CommonForm::Object);
        assert_eq!(there.objects().count(), left);
        let found = common(&there);
        let train = |name: &str| found.at(&at(&["train", name])).and_then(|t| t.leaf());
        assert_eq!(train("step"), Some(&Value::Int(7)));
        assert_eq!(train("name"), Some(&Value::from("run 7")));
        assert_eq!(found.get("nothing"), Some(&ValueTree::new()));

        let back = url(&format!("{form:?} and back"));
        blocking::run(convert(&there, &back).dialect(Dialect::Dcp)).unwrap();
        let back = block_on(Checkpoint::open(&back)).unwrap();
        assert_eq!(back.dialect(), Dialect::Dcp);
        assert_eq!(contents(&back), contents(&source));
        assert_eq!(objects(&back), objects(&source));
    }
    // Keys choose objects, too.
    let some = url("some");
    let conversion = convert(&source, &some).dialect(Dialect::Megatron);
    let report = blocking::run(conversion.keys(|key| key == "train.step")).unwrap();
    assert_eq!((report.tensors, report.objects), (0, 1));
}

/// Cells of arrays of objects are lists in some formats, and common state is items where there is none.
#[test]
fn a_checkpoint_of_megatron_core_comes_back_whole_from_formats_without_its_dialect() {
    let (mut there_and_back, mut pairs) = (0, 0);
    for from in formats() {
        let dir = tempfile::tempdir().unwrap();
        let url = |name: String| dir.path().join(name).display().to_string();
        let src = url("src".into());
        if save(&case("megatron"), &from, &src).is_none() {
            continue;
        }
        let source = open(&src, &from);
        for to in formats() {
            let holds = strategy(&to).can_handle_sharded_objects();
            let can = strategy(&to).capabilities();
            if !can.saves(Dialect::Dcp) || !holds {
                continue;
            }
            pairs += 1;
            let there = url(format!("{}", to.backend));
            let conversion = convert(&source, &there).to(to.clone());
            blocking::run(conversion.dialect(Dialect::Dcp)).unwrap();
            let there = open(&there, &to);
            assert_eq!(there.dialect(), Dialect::Dcp);
            let back = url(format!("{} and back", to.backend));
            let conversion = convert(&there, &back).to(from.clone()).ranks(2);
            blocking::run(conversion.dialect(Dialect::Megatron)).unwrap();
            let back = open(&back, &from);
            assert_eq!(contents(&back), contents(&source), "{from} to {to}");
            assert_eq!(objects(&back), objects(&source), "{from} to {to}");
            assert_eq!(common(&back), common(&source), "{from} to {to}");
            there_and_back += 1;
        }
    }
    assert!(pairs >= 9 && there_and_back == pairs, "{pairs}");
}

#[test]
fn a_dialect_that_a_format_does_not_have_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let source = saved("plain", &url("src"));
    let dst = url("dst");
    for (format, version) in [("safetensors", 1), ("torch_save", 1), ("tensor_bundle", 2)] {
        let conversion = convert(&source, &dst).to(BackendVersion::new(format, version));
        let error = blocking::run(conversion.dialect(Dialect::Megatron)).unwrap_err();
        assert!(matches!(error, ConvertError::Dialect { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let why = "no place for `common.pt`";
        assert!(error.to_string().contains(why), "{error}");
    }
    // A folder has room for the files; beside files with a prefix they would belong to other checkpoints, too.
    assert!(!Path::new(&dst).exists());
    let in_folder = TensorBundleConfig::default().with_in_folder("ckpt");
    let conversion = convert(&source, &dst).strategy(in_folder);
    blocking::run(conversion.dialect(Dialect::Megatron)).unwrap();
    let there = block_on(Checkpoint::open(&dst)).unwrap();
    assert_eq!(there.dialect(), Dialect::Megatron);
    assert_eq!(contents(&there), contents(&source));
}

/// Ranks may have had different values at one place.
#[test]
fn objects_whose_paths_contradict_each_other_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let mut states = [StateDict::new(), StateDict::new()];
    states[0].insert("a", 5);
    states[1].insert_at(&["a".into(), "b".into()], Tree::Leaf(Value::Int(6).into()));
    let src = url("src");
    let groups = LocalGroup::new(2);
    let saves = groups.iter().zip(&states).map(|(group, state)| {
        let save = reshard::save(state, &src).group(group);
        save.dialect(Dialect::Dcp).into_future()
    });
    let done = block_on(futures::future::join_all(saves));
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let source = block_on(Checkpoint::open(&src)).unwrap();
    let dst = url("dst");
    let conversion = convert(&source, &dst).dialect(Dialect::Megatron);
    let error = blocking::run(conversion).unwrap_err();
    assert!(matches!(error, ConvertError::IntoCommon { .. }), "{error}");
    assert!(!Path::new(&dst).exists());
}
