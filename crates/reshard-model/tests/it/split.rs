//! State dicts taken apart and put together again.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use indexmap::IndexMap;
use proptest::prelude::*;
use reshard_model::{
    DType, Data, Dialect, Flatten, Leaf, LocalNonpersistent, Parts, Path, Payload, Sharded,
    ShardedObject, ShardedTensor, StateDict, Step, Tensor, Tree, Value, ValueTree, split, split_as,
    split_ref, unflatten,
};

fn tensor(key: &str) -> ShardedTensor {
    ShardedTensor::template(key, DType::Int8, &[2])
}

fn plain_tensor() -> Value {
    Value::Tensor(Tensor::from_vec(&[1], vec![7u8]).unwrap())
}

fn dict<L>(entries: impl IntoIterator<Item = (&'static str, Tree<L>)>) -> Tree<L> {
    Tree::Dict(entries.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

fn value(v: impl Into<Value>) -> StateDict {
    Tree::Leaf(Leaf::Value(v.into()))
}

fn path(steps: &[Step]) -> Path {
    Path::from(steps)
}

/// What a load would hand in for each leaf: what it holds, or its key.
fn loaded(parts: &Parts) -> IndexMap<Path, Value> {
    let one = |s: &Sharded| match s {
        Sharded::Tensor(t) => t
            .data
            .host()
            .map_or_else(|| Value::from(&*t.key), |t| Value::Tensor(t.clone())),
        Sharded::Object(o) => match &o.data {
            Payload::Value(v) => v.clone(),
            _ => Value::from(&*o.key),
        },
    };
    parts
        .flat
        .iter()
        .map(|(p, s)| (p.clone(), one(s)))
        .collect()
}

/// The same tree with what [`loaded`] gives for each leaf.
fn expected(state: &StateDict) -> ValueTree {
    state.clone().map(&mut |leaf| match leaf {
        Leaf::Value(v) => v,
        Leaf::Local(l) => Value::Local(l),
        Leaf::Tensor(t) => Value::from(&*t.key),
        Leaf::Object(o) => Value::from(&*o.key),
        Leaf::Factory(_) => unreachable!(),
    })
}

fn any_leaf() -> impl Strategy<Value = StateDict> {
    prop_oneof![
        any::<i64>().prop_map(value),
        "[a-z]{1,3}".prop_map(value),
        Just(()).prop_map(|()| value(plain_tensor())),
        Just(()).prop_map(|()| tensor("?").into()),
        Just(()).prop_map(|()| ShardedObject::item("?", Payload::None).into()),
        Just(()).prop_map(|()| LocalNonpersistent::new(1).into()),
    ]
}

/// Any tree with a dict on top; sharded leaves have keys of their own.
fn any_state() -> impl Strategy<Value = StateDict> {
    let key = prop_oneof![
        "[a-c]".prop_map(Step::from),
        (0u64..3).prop_map(Step::from),
        Just(Step::from("0"))
    ];
    let dict = move |inner| {
        prop::collection::vec((key.clone(), inner), 0..4)
            .prop_map(|v| Tree::Dict(v.into_iter().collect()))
    };
    let of_dicts = dict.clone();
    let tree = any_leaf().prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            of_dicts(inner.clone()).boxed(),
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(Tree::List)
                .boxed(),
            // dicts in a list, as parameter groups are
            prop::collection::vec(of_dicts(inner), 0..3)
                .prop_map(Tree::List)
                .boxed(),
        ]
    });
    dict(tree.boxed()).prop_map(|mut state: StateDict| {
        let mut n = 0;
        state.visit_mut(&mut |_, leaf| {
            n += 1;
            match leaf {
                Leaf::Tensor(t) => t.key = format!("tensor {n}").into(),
                Leaf::Object(o) => o.key = format!("object {n}").into(),
                _ => {}
            }
        });
        state
    })
}

fn any_dialect() -> impl Strategy<Value = Dialect> {
    prop::sample::select(vec![Dialect::Megatron, Dialect::Dcp, Dialect::TensorsOnly])
}

/// Whether a subtree has sharded or local leaves, and whether it has common ones (empty containers are common).
fn halves(tree: &StateDict) -> (bool, bool) {
    match tree {
        Tree::Leaf(Leaf::Value(_)) => (false, true),
        Tree::Leaf(_) => (true, false),
        Tree::Dict(d) if d.is_empty() => (false, true),
        Tree::List(v) if v.is_empty() => (false, true),
        Tree::Dict(d) => d
            .values()
            .map(halves)
            .fold((false, false), |a, b| (a.0 || b.0, a.1 || b.1)),
        Tree::List(v) => v
            .iter()
            .map(halves)
            .fold((false, false), |a, b| (a.0 || b.0, a.1 || b.1)),
    }
}

fn has_mixed_list(tree: &StateDict) -> bool {
    match tree {
        Tree::Leaf(_) => false,
        Tree::Dict(d) => d.values().any(has_mixed_list),
        Tree::List(v) => {
            let all = halves(tree);
            v.iter().any(has_mixed_list)
                || all == (true, true) && v.iter().any(|e| halves(e) != (true, true))
        }
    }
}

fn has_double_name(tree: &StateDict) -> bool {
    match tree {
        Tree::Leaf(_) => false,
        Tree::List(v) => v.iter().any(has_double_name),
        Tree::Dict(d) => {
            let leaves = |step: Step| d.get(&step).is_some();
            leaves(0.into()) && leaves("0".into()) || d.values().any(has_double_name)
        }
    }
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn what_is_split_is_joined_to_the_same_in_megatrons_dialect(state in any_state()) {
        let Ok(parts) = split(state.clone(), Dialect::Megatron) else {
            prop_assert!(has_mixed_list(&state), "only lists that mix are refused");
            return Ok(());
        };
        prop_assert!(!has_mixed_list(&state));
        let loaded = loaded(&parts);
        let common = parts.common.clone();
        prop_assert_eq!(parts.skeleton.join(loaded, common).unwrap(), expected(&state));
        let parts = split(state.clone(), Dialect::Megatron).unwrap();
        let restored = parts.skeleton.restore(parts.flat, parts.common).unwrap();
        prop_assert_eq!(expected(&restored), expected(&state));
    }

    #[test]
    fn what_is_split_is_joined_to_the_same_in_torchs_dialect(state in any_state(), old in any::<bool>()) {
        let rule = if old { Flatten::Torch2_3 } else { Flatten::Torch2_4 };
        let Ok(parts) = split_as(state.clone(), Dialect::Dcp, rule) else {
            prop_assert!(has_double_name(&state), "only names for two are refused");
            return Ok(());
        };
        prop_assert_eq!(&parts.common, &ValueTree::new());
        let loaded = loaded(&parts);
        prop_assert_eq!(parts.skeleton.join(loaded, ValueTree::new()).unwrap(), expected(&state));
        let parts = split_as(state.clone(), Dialect::Dcp, rule).unwrap();
        let restored = parts.skeleton.restore(parts.flat, parts.common).unwrap();
        prop_assert_eq!(expected(&restored), expected(&state));
    }

    /// A borrowed state is split as an owned one, and stays as it was.
    #[test]
    fn a_state_that_stays_with_the_caller_is_split_alike(state in any_state(), dialect in any_dialect()) {
        let before = expected(&state);
        let (ours, owned) = (split_ref(&state, dialect, Flatten::default()), split(state.clone(), dialect));
        prop_assert_eq!(expected(&state), before);
        match (ours, owned) {
            (Ok(ours), Ok(owned)) => {
                prop_assert_eq!(format!("{:?}", ours.flat), format!("{:?}", owned.flat));
                prop_assert_eq!(&ours.common, &owned.common);
                prop_assert_eq!(&ours.paths, &owned.paths);
                let restored = ours.skeleton.restore(ours.flat, ours.common).unwrap();
                prop_assert_eq!(expected(&restored), expected(&state));
            }
            (Err(ours), Err(owned)) => prop_assert_eq!(ours.to_string(), owned.to_string()),
            (ours, owned) => prop_assert!(false, "{ours:?} is not {owned:?}"),
        }
    }

    /// As PyTorch has it: int keys of dicts come back as text, empty dicts don't come back, local leaves aren't there.
    #[test]
    fn stored_paths_give_the_nesting_back_without_a_template(state in any_state()) {
        let Ok(parts) = split(state.clone(), Dialect::Dcp) else { return Ok(()) };
        let values = loaded(&parts);
        let entries = parts.flat.iter().zip(values.values()).map(|((_, sharded), value)| {
            (parts.paths[sharded.key()].clone(), value.clone())
        });
        let ours = unflatten(entries).unwrap();
        prop_assert_eq!(ours, as_torch(&expected(&state)).unwrap_or_default());
    }
}

/// What PyTorch gives back of a tree; `None` when nothing.
fn as_torch(tree: &ValueTree) -> Option<ValueTree> {
    match tree {
        Tree::Leaf(Value::Local(_)) => None,
        Tree::Leaf(v) => Some(Tree::Leaf(v.clone())),
        Tree::Dict(d) => {
            let d: IndexMap<Step, ValueTree> = d
                .iter()
                .filter_map(|(k, v)| Some((Step::from(k.to_string()), as_torch(v)?)))
                .collect();
            (!d.is_empty()).then_some(Tree::Dict(d))
        }
        Tree::List(v) if v.is_empty() => Some(Tree::List(Vec::new())),
        Tree::List(v) => {
            let mut v: Vec<Option<ValueTree>> = v.iter().map(as_torch).collect();
            while v.last().is_some_and(Option::is_none) {
                v.pop();
            }
            let none = || Tree::Leaf(Value::None);
            (!v.is_empty())
                .then(|| Tree::List(v.into_iter().map(|e| e.unwrap_or_else(none)).collect()))
        }
    }
}

#[test]
fn a_list_that_mixes_sharded_and_common_leaves_is_refused_with_its_path() {
    let groups = Tree::List(vec![value(1), tensor("w").into()]);
    let e = split(
        dict([("optimizer", dict([("groups", groups)]))]),
        Dialect::Megatron,
    )
    .unwrap_err();
    assert!(
        e.to_string()
            .starts_with("at optimizer.groups: this list mixes sharded and common"),
        "{e}"
    );
    // but dicts in a list may have both
    let group = || dict([("lr", value(0.1)), ("params", tensor("w").into())]);
    assert!(
        split(
            dict([("groups", Tree::List(vec![group(), group()]))]),
            Dialect::Megatron
        )
        .is_ok()
    );
}

#[test]
fn local_leaves_leave_no_trace_and_come_back_as_they_were() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let state = dict([
            ("local", LocalNonpersistent::new("mine").into()),
            ("x", value(1)),
        ]);
        let parts = split(state, dialect).unwrap();
        assert!(!format!("{:?} {:?} {:?}", parts.flat, parts.common, parts.paths).contains("ocal"));
        let loaded = loaded(&parts);
        let result = parts.skeleton.join(loaded, parts.common).unwrap();
        let Some(Value::Local(l)) = result.get("local").and_then(ValueTree::leaf) else {
            panic!("{result:?}")
        };
        assert_eq!(l.0.downcast_ref::<&str>(), Some(&"mine"));
        // what a load gave is a state again
        let again = split(result.map(&mut Leaf::Value), dialect).unwrap();
        assert!(!format!("{:?} {:?}", again.flat, again.common).contains("ocal"));
    }
}

#[test]
fn a_stored_common_leaf_in_the_place_of_a_local_or_sharded_one_is_an_error_with_the_path() {
    for leaf in [tensor("w").into(), LocalNonpersistent::new(0).into()] {
        let parts = split(dict([("a", dict([("b", leaf)]))]), Dialect::Megatron).unwrap();
        let loaded = loaded(&parts);
        let mut stored = ValueTree::new();
        stored.insert_tree("a", dict([("b", Tree::Leaf(Value::Int(1)))]));
        let e = parts.skeleton.join(loaded, stored).unwrap_err();
        assert_eq!(e.to_string(), "at a.b: two values for one place");
    }
}

#[test]
fn what_was_not_loaded_is_missing_and_what_has_no_place_is_an_error() {
    let state = || {
        let group = |k: &str| dict([("p", tensor(k).into()), ("lr", value(1))]);
        dict([
            ("w", tensor("w").into()),
            ("groups", Tree::List(vec![group("0"), group("1")])),
        ])
    };
    let parts = split(state(), Dialect::Megatron).unwrap();
    let only_last = parts.flat.keys().filter(|p| p.to_string() == "groups.1.p");
    let loaded = only_last.map(|p| (p.clone(), Value::Int(5))).collect();
    let result = parts.skeleton.join(loaded, parts.common).unwrap();
    assert!(result.get("w").is_none());
    let groups = Value::from(result.get("groups").unwrap().clone());
    let lr = |more: Vec<(Value, Value)>| {
        Value::Dict([vec![("lr".into(), Value::Int(1))], more].concat())
    };
    assert_eq!(
        groups,
        Value::List(vec![lr(vec![]), lr(vec![("p".into(), Value::Int(5))])])
    );

    let parts = split(state(), Dialect::Megatron).unwrap();
    let stranger = [(path(&["x".into()]), Value::None)].into_iter().collect();
    let e = parts.skeleton.join(stranger, ValueTree::new()).unwrap_err();
    assert_eq!(
        e.to_string(),
        "at x: this was loaded, but the template has no such leaf"
    );
}

/// Names of the items that a state becomes.
fn names(state: StateDict, flatten: Flatten) -> Vec<String> {
    let parts = split_as(state, Dialect::Dcp, flatten).unwrap();
    parts.flat.values().map(|s| s.key().to_string()).collect()
}

fn nested() -> StateDict {
    dict([
        ("ints", Tree::List(vec![value(1), value(2)])),
        ("tensors", Tree::List(vec![value(plain_tensor()), value(3)])),
        ("tuple", value(Value::Tuple(vec![plain_tensor()]))),
        ("empty", StateDict::new()),
        ("empty_list", Tree::List(vec![])),
        (
            "deep",
            Tree::List(vec![Tree::List(vec![dict([("x", value(1))])]), value(4)]),
        ),
        (
            "plain",
            dict([("a", value(1)), ("b", dict([("c", value(2))]))]),
        ),
        (
            "mixed",
            dict([
                ("a", value(1)),
                ("t", value(plain_tensor())),
                ("d", dict([("c", value(2))])),
            ]),
        ),
        // containers in one value are taken apart as those of the tree are
        (
            "value",
            value(Value::Dict(vec![(
                Value::Int(3),
                Value::List(vec![plain_tensor()]),
            )])),
        ),
        (
            "odd",
            value(Value::Dict(vec![(Value::Float(0.5), Value::Int(1))])),
        ),
    ])
}

#[test]
fn containers_are_taken_apart_as_torch_2_4_does() {
    let want = [
        "ints",
        "tensors.0",
        "tensors.1",
        "tuple",
        "empty_list",
        "deep.0.0.x",
        "deep.1",
        "plain.a",
        "plain.b.c",
        "mixed.a",
        "mixed.t",
        "mixed.d.c",
        "value.3.0",
        "odd",
    ];
    assert_eq!(names(nested(), Flatten::Torch2_4), want);
    let parts = split(nested(), Dialect::Dcp).unwrap();
    assert_eq!(parts.dropped_empty, [path(&["empty".into()])]);
    assert_eq!(
        parts.paths["tensors.0"],
        path(&["tensors".into(), 0.into()])
    );
    assert_eq!(
        parts.paths["value.3.0"],
        path(&["value".into(), "3".into(), 0.into()]),
        "a key is text"
    );
    let Sharded::Object(ints) = &parts.flat[0] else {
        panic!()
    };
    assert_eq!(
        ints.data,
        Payload::Value(Value::List(vec![Value::Int(1), Value::Int(2)]))
    );
    let Sharded::Tensor(t) = &parts.flat[1] else {
        panic!()
    };
    assert_eq!(
        (t.axis_fragmentations.is_some(), t.global_offset.clone()),
        (true, [0].into())
    );
}

#[test]
fn containers_are_taken_apart_as_torch_2_3_did() {
    let want = [
        "ints",
        "tensors.0",
        "tensors.1",
        "tuple",
        "empty",
        "empty_list",
        "deep",
        "plain",
        "mixed.a",
        "mixed.t",
        "mixed.d",
        "value.3.0",
        "odd",
    ];
    assert_eq!(names(nested(), Flatten::Torch2_3), want);
    let parts = split_as(nested(), Dialect::Dcp, Flatten::Torch2_3).unwrap();
    assert!(parts.dropped_empty.is_empty());
}

#[test]
fn both_rules_of_torch_load_to_the_same_tree() {
    let mut results = [Flatten::Torch2_3, Flatten::Torch2_4].map(|rule| {
        let parts = split_as(nested(), Dialect::Dcp, rule).unwrap();
        let loaded = loaded(&parts);
        parts.skeleton.join(loaded, ValueTree::new()).unwrap()
    });
    let [old, new] = &mut results;
    assert_eq!(old, new);
}

#[test]
fn two_leaves_with_one_name_are_both_named() {
    let error = |state| split(state, Dialect::Dcp).unwrap_err().to_string();
    let e = error(dict([("a.b", value(1)), ("a", dict([("b", value(2))]))]));
    assert!(
        e.contains(r#"the leaves at ["a.b"] and ["a"]["b"] would both be saved as "a.b""#),
        "{e}"
    );
    let ints = Tree::Dict(
        [(Step::from(0), value(1)), (Step::from("0"), value(2))]
            .into_iter()
            .collect(),
    );
    assert!(error(dict([("a", ints)])).contains(r#"["a"][0] and ["a"]["0"] have the same name"#));
    let e = error(dict([("w", value(1)), ("x", tensor("w").into())]));
    assert!(
        e.contains(r#"["w"] and ["x"] would both be saved as "w""#),
        "{e}"
    );
    // pieces of one tensor have one key
    assert!(
        split(
            dict([("x", tensor("w").into()), ("y", tensor("w").into())]),
            Dialect::Dcp
        )
        .is_ok()
    );
    // and in Megatron's dialect paths are no names
    assert!(
        split(
            dict([("w", value(1)), ("x", tensor("w").into())]),
            Dialect::Megatron
        )
        .is_ok()
    );
}

#[test]
fn a_sharded_leaf_without_a_key_takes_its_path_in_torchs_dialect() {
    let state = || {
        dict([(
            "m",
            dict([("w", tensor("").into()), ("v", tensor("own").into())]),
        )])
    };
    assert_eq!(names(state(), Flatten::Torch2_4), ["m.w", "own"]);
    let e = split(state(), Dialect::Megatron).unwrap_err();
    assert_eq!(
        e.to_string(),
        "at m.w: a sharded leaf needs a key in Megatron's dialect"
    );
}

#[test]
fn a_leaf_that_contradicts_itself_is_refused_in_both_dialects() {
    let mut bad = tensor("w");
    bad.global_offset = [1].into();
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let e = split(dict([("x", bad.clone().into())]), dialect).unwrap_err();
        assert!(e.to_string().starts_with("w: "), "{e}");
        assert!(split(value(1), dialect).is_err(), "the top must be a dict");
        assert!(
            split(Tree::List(vec![]), dialect).is_err(),
            "the top must be a dict"
        );
    }
}

#[test]
fn a_failed_load_gives_the_same_buffers_back() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let v = vec![1f32, 2.0];
        let address = v.as_ptr();
        let t = ShardedTensor::full("w", Tensor::from_vec(&[2], v).unwrap());
        let parts = split(dict([("a", Tree::List(vec![t.into()]))]), dialect).unwrap();
        let restored = parts.skeleton.restore(parts.flat, parts.common).unwrap();
        let Some(Leaf::Tensor(t)) = restored.into_nested_values().pop() else {
            panic!()
        };
        let Data::Host(t) = t.data else { panic!() };
        let v: Vec<f32> = t.into_vec().unwrap();
        assert_eq!(v.as_ptr(), address);
    }
}

#[test]
fn empty_dicts_are_named_by_paths_that_tell_lists_from_int_keys() {
    let empty = || Value::Dict(Vec::new());
    let ints = Value::Dict(vec![(Value::Int(0), empty())]);
    let value = Value::Dict(vec![
        ("list".into(), Value::List(vec![empty(), Value::Int(1)])),
        ("ints".into(), ints),
    ]);
    let parts = split(ValueTree::from(value).map(&mut Leaf::Value), Dialect::Dcp).unwrap();
    let want = [
        path(&["list".into(), 0.into()]),
        path(&["ints".into(), "0".into()]),
    ];
    assert_eq!(parts.dropped_empty, want);
    let mut entries = vec![(path(&["list".into(), 1.into()]), Value::Int(1))];
    entries.extend(parts.dropped_empty.into_iter().map(|p| (p, empty())));
    let tree = unflatten(entries).unwrap();
    assert_eq!(
        tree.get("list"),
        Some(&ValueTree::from(Value::List(vec![empty(), Value::Int(1)])))
    );
    assert_eq!(
        tree.at(&["ints".into(), "0".into()]),
        Some(&ValueTree::new())
    );
    let again = [
        (path(&["d".into(), "x".into()]), Value::Int(1)),
        (path(&["d".into()]), empty()),
    ];
    assert_eq!(
        unflatten(again)
            .unwrap()
            .at(&["d".into(), "x".into()])
            .and_then(ValueTree::leaf),
        Some(&Value::Int(1))
    );
}

#[test]
fn stored_paths_that_no_program_writes_are_refused() {
    let error = |entries: Vec<(Path, Value)>| unflatten(entries).unwrap_err().to_string();
    let v = || Value::Int(1);
    let (a, b) = (Step::from("a"), Step::from("b"));
    assert!(error(vec![(path(&[]), v())]).contains("a stored path has 0 steps"));
    assert!(error(vec![(Path(vec![a.clone(); 401]), v())]).contains("a stored path has 401 steps"));
    assert!(unflatten([(Path(vec![a.clone(); 400]), v())]).is_ok());
    let twice = vec![(Path(vec![a.clone()]), v()), (Path(vec![a.clone()]), v())];
    assert_eq!(error(twice), "at a: two stored values for one place");
    let both = vec![
        (path(&[a.clone(), 0.into()]), v()),
        (path(&[a.clone(), b.clone()]), v()),
    ];
    assert!(error(both).starts_with(
        "at a.b: by the stored paths, this is more than one of a list, a dict and a value"
    ));
    let under = vec![(Path(vec![a.clone()]), v()), (path(&[a.clone(), b]), v())];
    assert!(error(under).starts_with("at a.b: by the stored paths, this is more than one of"));
    assert!(error(vec![(path(&[0.into()]), v())]).starts_with("at 0: by the stored paths"));
    for index in [u64::MAX, 1 << 40, 1 << 21] {
        let e = error(vec![(path(&[a.clone(), index.into()]), v())]);
        assert!(
            e.contains("of a list of which almost nothing is stored"),
            "{e}"
        );
    }
}

#[test]
fn dialects_are_told_by_name() {
    for &d in Dialect::ALL {
        assert_eq!(d.to_string().parse(), Ok(d));
        assert_eq!(
            serde_json::to_string(&d).unwrap(),
            format!("{:?}", d.name())
        );
    }
    assert_eq!(
        "torch".parse::<Dialect>().unwrap_err().to_string(),
        r#""torch" is not a dialect; the dialects are megatron, dcp and tensors_only"#
    );
}

#[test]
fn tensors_alone_are_what_pytorch_makes_of_them_and_nothing_else_is_taken() {
    let state = || {
        dict([(
            "a",
            dict([("w", tensor("").into()), ("b", tensor("b").into())]),
        )])
    };
    let (dcp, alone) = (
        split(state(), Dialect::Dcp).unwrap(),
        split(state(), Dialect::TensorsOnly).unwrap(),
    );
    assert!(alone.flat.keys().eq(dcp.flat.keys()) && alone.flat.len() == 2);
    assert!(
        alone.flat.values().map(Sharded::key).eq(["a.w", "b"]),
        "{:?}",
        alone.flat
    );
    assert!(alone.paths.is_empty() && !dcp.paths.is_empty() && alone.common == ValueTree::new());

    let e = split(
        dict([("a", dict([("step", value(1))]))]),
        Dialect::TensorsOnly,
    )
    .unwrap_err();
    assert!(
        e.to_string().starts_with("at a.step: it is not a tensor"),
        "{e}"
    );
}
