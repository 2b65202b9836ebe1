//! What a checkpoint says of its dialect, and what a format can be told by hand.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use reshard::{
    BackendVersion, Dialect, ErrorKind, OpenOptions, ShardedObject, ShardedTensor, StateDict,
    Tensor, Value,
    blocking::{self, Checkpoint},
    model::{Leaf, Tree},
};

fn place() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("x").display().to_string();
    (dir, url)
}

fn tensor(n: f32) -> Tensor {
    Tensor::from_vec(&[2], vec![n, n + 1.]).unwrap()
}

fn state() -> StateDict {
    let mut inner = StateDict::new();
    inner.insert("bias", tensor(3.));
    let mut state = StateDict::new();
    state.insert("weight", ShardedTensor::full("w", tensor(1.)));
    state.insert_tree("inner", inner);
    state
}

#[test]
fn tensors_alone_are_saved_and_loaded_without_anything_beside() {
    let (_dir, url) = place();
    blocking::run(reshard::save(&state(), &url).dialect(Dialect::TensorsOnly)).unwrap();
    let checkpoint = Checkpoint::open(&url).unwrap();
    let keys: Vec<_> = checkpoint.tensors().map(|t| t.key().to_owned()).collect();
    assert_eq!(keys, ["inner.bias", "w"]);
    assert_eq!(
        (
            checkpoint.objects().count(),
            checkpoint.metadata().planner_data()
        ),
        (0, None)
    );
    // The format makes PyTorch's checkpoints.
    assert_eq!(checkpoint.dialect(), Dialect::Dcp);
    let loaded = blocking::load(state(), &url).unwrap();
    let Some(Tree::Leaf(Value::Tensor(bias))) =
        loaded.get("inner").and_then(|inner| inner.get("bias"))
    else {
        panic!("{loaded:?}")
    };
    assert_eq!(bias.to_vec::<f32>().unwrap(), [3., 4.]);
}

#[test]
fn what_is_no_tensor_is_refused_with_its_path_before_anything_is_written() {
    let object = ShardedObject::new("o", Value::Int(1), &[1], &[0], 0).unwrap();
    for (key, leaf) in [
        ("step", Leaf::Value(Value::Int(7))),
        ("o", Leaf::Object(object)),
    ] {
        let (dir, url) = place();
        let mut state = state();
        state.insert_tree(key, Tree::Leaf(leaf));
        let e =
            blocking::run(reshard::save(&state, &url).dialect(Dialect::TensorsOnly)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(
            reshard::strategy::with_sources(e.to_string(), &e)
                .contains(&format!("at {key}: it is not a tensor")),
            "{e}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_format_that_is_chosen_by_hand_is_not_looked_for() {
    let (_dir, url) = place();
    blocking::save(&state(), &url).unwrap();
    let open = |name: &str| {
        let format: BackendVersion = name.parse().unwrap();
        Checkpoint::open_with(OpenOptions::new().format(format), &url)
    };
    assert_eq!(open("torch_dist").unwrap().dialect(), Dialect::Megatron);
    // What metadata.json names can't be read as something else.
    let e = open("torch_dist/0").unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Invalid), "{e}");
    for wrong in ["", "/1", "torch_dist/", "torch_dist/one"] {
        assert!(wrong.parse::<BackendVersion>().is_err(), "{wrong}");
    }
    // Without metadata.json, whatever lies there.
    std::fs::create_dir(format!("{url}-empty")).unwrap();
    let empty = format!("{url}-empty");
    let e = Checkpoint::open_with(
        OpenOptions::new().format(BackendVersion::new("torch_dist", 1)),
        &empty,
    )
    .unwrap_err();
    assert!(e.to_string().contains("there is no .metadata"), "{e}");
    let e = Checkpoint::open(&empty).unwrap_err();
    assert!(e.to_string().contains("it is empty"), "{e}");
}

#[test]
fn a_state_that_is_not_flattened_has_one_object_for_each_dict_and_loads_into_the_same_template() {
    let (_dir, url) = place();
    let state = || {
        let mut nested = StateDict::new();
        nested.insert("a", 1);
        nested.insert("b", tensor(5.));
        let mut state = StateDict::new();
        state.insert("w", tensor(1.));
        state.insert_tree("nested", nested);
        state
    };
    blocking::run(
        reshard::save(&state(), &url)
            .dialect(Dialect::Dcp)
            .flatten(false),
    )
    .unwrap();
    let checkpoint = Checkpoint::open(&url).unwrap();
    let tensors: Vec<_> = checkpoint.tensors().map(|t| t.key().to_owned()).collect();
    assert_eq!(tensors, ["w"]);
    assert_eq!(checkpoint.objects().collect::<Vec<_>>(), ["nested"]);
    assert_eq!(checkpoint.metadata().planner_data(), None);

    let loaded = blocking::load(state(), &url).unwrap();
    let b = loaded.at(&["nested".into(), "b".into()]);
    assert_eq!(b.and_then(Tree::leaf), Some(&Value::Tensor(tensor(5.))));
    // What PyTorch saved so loads in the same way.
    let theirs = format!(
        "{}/../../tests/fixtures/dcp/no_flatten/ckpt",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut template = StateDict::new();
    template.insert("w", Tensor::from_vec(&[2, 2], vec![0f32; 4]).unwrap());
    let mut nested = StateDict::new();
    nested.insert("a", 0);
    template.insert_tree("nested", nested);
    let loaded = blocking::load(template, &theirs).unwrap();
    let a = loaded.at(&["nested".into(), "a".into()]);
    assert_eq!(a.and_then(Tree::leaf), Some(&Value::Int(1)));

    let state = state();
    let refused = reshard::save(&state, &url).overwrite(true).flatten(false);
    let error = blocking::run(refused).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        format!("{error:?}").contains("no flat state dict"),
        "{error:?}"
    );
}
