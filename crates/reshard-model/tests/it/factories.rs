//! Factories: leaves that are several when saved.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use indexmap::IndexMap;
use proptest::prelude::*;
use reshard_model::{
    DType, Data, Dialect, Leaf, LentBuffer, Path, Region, Sharded, ShardedTensor,
    ShardedTensorFactory, StateDict, Step, Swiglu, Tensor, Tree, Value, ValueTree,
    expand_factories, merge_factories, split,
};

fn ints(shape: &[u64]) -> Tensor {
    Tensor::from_vec(shape, (0..shape.iter().product::<u64>() as i32).collect()).unwrap()
}

fn parts(factory: &ShardedTensorFactory) -> Vec<ShardedTensor> {
    let tensor = |s| match s {
        Sharded::Tensor(t) => t,
        Sharded::Object(o) => panic!("{o:?}"),
    };
    factory
        .build()
        .unwrap()
        .into_nested_values()
        .into_iter()
        .map(tensor)
        .collect()
}

/// Part 1 of 2 of a gated weight, of 16 local rows, of which elements 8..64 are here.
fn flat() -> ShardedTensor {
    let data = Tensor::from_vec(&[56], (8..64).collect::<Vec<i32>>()).unwrap();
    ShardedTensor::from_rank_offsets_flat("fc1", data, &[16, 5], &[(0, 1, 2)], 0, 8..64).unwrap()
}

#[test]
fn a_flattened_range_is_cut_where_the_second_half_begins() {
    let p = parts(&ShardedTensorFactory::swiglu(flat(), Swiglu::OneKey).unwrap());
    let elements = |t: &ShardedTensor| t.data.host().unwrap().to_vec::<i32>().unwrap();
    assert_eq!(
        (p[0].flattened_range.clone(), p[1].flattened_range.clone()),
        (Some(8..40), Some(0..24))
    );
    assert_eq!(elements(&p[0]), (8..40).collect::<Vec<_>>());
    assert_eq!(elements(&p[1]), (40..64).collect::<Vec<_>>());
    assert!(p.iter().all(|p| p.local_shape == [8, 5].into()
        && p.global_shape == [32, 5].into()
        && &*p.key == "fc1"));
    // w is part 1 of 4, v part 3
    assert_eq!(
        (p[0].global_offset.clone(), p[1].global_offset.clone()),
        ([8, 0].into(), [24, 0].into())
    );
    assert_eq!(p[0].axis_fragmentations, Some([4, 1].into()));
}

#[test]
fn in_the_form_of_two_keys_each_half_is_a_tensor() {
    let p = parts(&ShardedTensorFactory::swiglu(flat(), Swiglu::TwoKeys).unwrap());
    assert_eq!((&*p[0].key, &*p[1].key), ("fc1_w", "fc1_v"));
    for p in &p {
        assert_eq!(p.global_shape, [16, 5].into());
        assert_eq!(p.global_offset, [8, 0].into());
        assert_eq!(p.axis_fragmentations, Some([2, 1].into()));
    }
}

#[test]
fn a_half_that_a_range_does_not_reach_is_left_out() {
    let ranges = |range: std::ops::Range<u64>| {
        let t = ShardedTensor::from_rank_offsets_flat(
            "k",
            ints(&[range.end - range.start]),
            &[4, 2],
            &[],
            0,
            range,
        );
        let f = ShardedTensorFactory::swiglu(t.unwrap(), Swiglu::TwoKeys).unwrap();
        let one = |t: ShardedTensor| (t.key.to_string(), t.flattened_range.unwrap());
        parts(&f).into_iter().map(one).collect::<Vec<_>>()
    };
    assert_eq!(ranges(1..4), [("k_w".into(), 1..4)]);
    assert_eq!(ranges(4..8), [("k_v".into(), 0..4)]);
    assert_eq!(ranges(3..5), [("k_w".into(), 3..4), ("k_v".into(), 0..1)]);
    for (range, key) in [(0..0, "k_w"), (4..4, "k_w"), (8..8, "k_v")] {
        assert_eq!(
            ranges(range)[0].0,
            key,
            "something comes back of an empty range"
        );
    }
}

#[test]
fn prepended_axes_stay_before_the_halves() {
    let t =
        ShardedTensor::from_rank_offsets_prepended("k", ints(&[4, 2]), &[(0, 2, 3), (1, 1, 2)], 1)
            .unwrap();
    let p = parts(&ShardedTensorFactory::swiglu(t, Swiglu::OneKey).unwrap());
    let offsets: Vec<_> = p.iter().map(|p| p.global_offset.to_vec()).collect();
    assert_eq!(offsets, [[2, 2, 0], [2, 6, 0]]);
    assert!(p.iter().all(|p| p.global_shape == [3, 8, 2].into()));
}

#[test]
fn the_same_factory_serves_other_data_under_another_key() {
    let f = ShardedTensorFactory::swiglu(flat(), Swiglu::TwoKeys).unwrap();
    let moment = Tensor::from_vec(&[10], vec![0f64; 10]).unwrap();
    let f = ShardedTensorFactory {
        key: "optimizer.exp_avg.fc1".into(),
        data: moment.into(),
        flattened_range: Some(35..45),
        replica_id: [1].into(),
        ..f
    };
    let p = parts(&f);
    assert_eq!(
        (&*p[1].key, p[1].dtype, p[1].flattened_range.clone()),
        ("optimizer.exp_avg.fc1_v", DType::Float64, Some(0..5))
    );
    assert!(p.iter().all(|p| !p.replica_id.is_main()));
    let template = ShardedTensorFactory {
        flattened_range: None,
        ..f.without_data()
    };
    assert_eq!(
        parts(&template)[0].dtype,
        DType::Int32,
        "without data the type of the first tensor counts"
    );
}

#[test]
fn what_can_not_be_halved_is_refused() {
    let swiglu = |t| {
        ShardedTensorFactory::swiglu(t, Swiglu::OneKey)
            .unwrap_err()
            .to_string()
    };
    let odd = ShardedTensor::full("k", ints(&[3, 2]));
    assert!(swiglu(odd).starts_with("k: local shape [3, 2] can't be cut into [w | v]"));
    assert!(swiglu(ShardedTensor::full("k", ints(&[]))).contains("even number of rows"));
    let irregular = ShardedTensor::region_of("k", DType::Int8, &[5], Region::new([1], [2]));
    assert!(swiglu(irregular).contains("regular grid"));
    let mut endless = ShardedTensor::template("k", DType::Int8, &[0]);
    endless.axis_fragmentations = Some([u64::MAX].into());
    let f = ShardedTensorFactory::swiglu(endless, Swiglu::OneKey).unwrap();
    assert!(
        f.build()
            .unwrap_err()
            .to_string()
            .contains("fragments are too many")
    );
    let f =
        ShardedTensorFactory::swiglu(ShardedTensor::full("k", ints(&[4])), Swiglu::OneKey).unwrap();
    let other = ShardedTensorFactory {
        data: ints(&[6]).into(),
        ..f
    };
    assert!(
        other
            .build()
            .unwrap_err()
            .to_string()
            .contains("data shape [6] should match local_shape [4]")
    );
}

/// A state with a factory at `layers[1]["fc1"]`.
fn state(factory: ShardedTensorFactory) -> StateDict {
    let mut layer = StateDict::new();
    layer.insert("fc1", factory);
    layer.insert("lr", 1);
    let mut first = StateDict::new();
    first.insert("lr", 0);
    first.insert("w", ShardedTensor::template("w", DType::Int8, &[1]));
    let mut state = StateDict::new();
    state.insert_tree("layers", Tree::List(vec![first, layer]));
    state
}

/// What a load would hand in: the tensors of the template, or its key.
fn loaded(flat: reshard_model::FlatStateDict) -> IndexMap<Path, Value> {
    let value = |s| match s {
        Sharded::Tensor(ShardedTensor {
            data: Data::Host(t),
            ..
        }) => Value::Tensor(t),
        other => Value::from(other.key()),
    };
    flat.into_iter().map(|(p, s)| (p, value(s))).collect()
}

#[test]
fn a_factorys_buffer_is_loaded_into_and_comes_back_whole_without_a_copy() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let v: Vec<i32> = vec![0; 8];
        let address = v.as_ptr();
        let whole = ShardedTensor::full("fc1", Tensor::from_vec(&[4, 2], v).unwrap());
        let f = ShardedTensorFactory::swiglu(whole, Swiglu::TwoKeys).unwrap();
        let mut parts = split(state(f), dialect).unwrap();

        // the two halves are all handles on the buffer, so a load can take it
        let halves: Vec<Tensor> = parts
            .flat
            .values_mut()
            .filter_map(|s| match s {
                Sharded::Tensor(t) => match std::mem::take(&mut t.data) {
                    Data::Host(t) => Some(t),
                    _ => None,
                },
                Sharded::Object(_) => None,
            })
            .collect();
        let (lent, views) = LentBuffer::new("fc1", halves).unwrap();
        let whole = Region::whole(&[2, 2]);
        let lent_regions = lent
            .regions_mut(&[(&views[0], whole.clone()), (&views[1], whole)])
            .unwrap();
        for (i, into) in lent_regions.into_iter().enumerate() {
            into.fill(&[i as u8 + 1; 16]).unwrap();
        }
        let mut halves = lent.reclaim(views).ok().unwrap().into_iter();
        for s in parts
            .flat
            .values_mut()
            .filter(|s| s.key().starts_with("fc1"))
        {
            let Sharded::Tensor(t) = s else { panic!() };
            t.data = Data::Host(halves.next().unwrap());
        }
        drop(halves);

        let loaded = loaded(parts.flat);
        let mut result = parts.skeleton.join(loaded, parts.common).unwrap();
        let Some(Tree::List(layers)) = result.remove("layers") else {
            panic!()
        };
        let merged = layers[1].get("fc1").unwrap().leaf().unwrap().clone();
        drop(layers);
        let v: Vec<i32> = merged.into_tensor().unwrap().into_vec().unwrap();
        assert_eq!(v.as_ptr(), address);
        assert_eq!(v, [[0x0101_0101; 4], [0x0202_0202; 4]].concat());
    }
}

#[test]
fn a_factory_gets_its_buffer_back_when_a_load_failed() {
    let v: Vec<i32> = (0..8).collect();
    let address = v.as_ptr();
    let whole = ShardedTensor::full("fc1", Tensor::from_vec(&[4, 2], v).unwrap());
    let parts = split(
        state(ShardedTensorFactory::swiglu(whole, Swiglu::OneKey).unwrap()),
        Dialect::Megatron,
    )
    .unwrap();
    let restored = parts.skeleton.restore(parts.flat, parts.common).unwrap();
    let mut tensors = restored
        .into_nested_values()
        .into_iter()
        .filter_map(|l| match l {
            Leaf::Factory(f) => match f.data {
                Data::Host(t) => Some(t),
                _ => None,
            },
            _ => None,
        });
    let t = tensors.next().unwrap();
    assert_eq!(t.shape(), &[4, 2].into());
    let v = t.into_vec::<i32>().unwrap();
    assert_eq!(v.as_ptr(), address);
}

#[test]
fn a_half_that_was_not_loaded_is_an_error_and_not_half_a_tensor() {
    let f =
        ShardedTensorFactory::swiglu(ShardedTensor::full("fc1", ints(&[4, 2])), Swiglu::TwoKeys)
            .unwrap();
    let parts = split(state(f), Dialect::Megatron).unwrap();
    let mut loaded = loaded(parts.flat);
    loaded.retain(|p, _| p.to_string() != "layers.1.fc1.0");
    let e = parts.skeleton.join(loaded, parts.common).unwrap_err();
    assert_eq!(
        e.to_string(),
        "fc1: the parts that were loaded have 4 elements, but 8 are needed"
    );
}

/// A factory whose value is what it gets.
fn echo() -> ShardedTensorFactory {
    let build = |f: &ShardedTensorFactory| {
        Ok(Tree::Leaf(Sharded::Tensor(ShardedTensor::template(
            &f.key,
            DType::Int8,
            &[1],
        ))))
    };
    ShardedTensorFactory::new("k", Data::None, build, |_, loaded| {
        Ok(Value::List(vec![loaded.into()]))
    })
}

#[test]
fn factories_are_expanded_at_their_places() {
    let (expanded, factories) = expand_factories(state(echo())).unwrap();
    let at = |tree: &StateDict| tree.at(&["layers".into(), 1.into(), "fc1".into()]).cloned();
    assert!(matches!(at(&expanded), Some(Tree::Leaf(Leaf::Tensor(t))) if &*t.key == "k"));
    assert!(
        factories
            .at(&["layers".into(), 1.into(), "fc1".into()])
            .unwrap()
            .leaf()
            .is_some()
    );
    assert_eq!(factories.nested_values().len(), 1);
    let (_, none) = expand_factories(StateDict::new()).unwrap();
    assert!(none.nested_values().is_empty());
}

#[test]
fn subtrees_that_do_not_fit_their_factories_are_errors_with_the_path() {
    fn tree<L>(steps: &[Step], leaf: L) -> Tree<L> {
        steps.iter().rev().fold(Tree::Leaf(leaf), |t, s| {
            Tree::Dict([(s.clone(), t)].into_iter().collect())
        })
    }
    let list = |n: i64| ValueTree::List((0..n).map(|i| ValueTree::Leaf(Value::Int(i))).collect());
    let under = |t: ValueTree| {
        let mut d = ValueTree::new();
        d.insert_tree("a", t);
        d
    };
    let error =
        |loaded, factories: &Tree<_>| merge_factories(loaded, factories).unwrap_err().to_string();
    let at = |step: Step| tree(&["a".into(), step], echo());
    assert_eq!(
        error(under(ValueTree::new()), &at("b".into())),
        "at a: what the factory at key b built was not loaded"
    );
    assert_eq!(
        error(under(list(2)), &at(2.into())),
        "at a: the factory's index 2 is out of bounds of a list of 2"
    );
    assert!(
        error(under(list(2)), &at("b".into()))
            .starts_with("at a: invalid key Key(\"b\") of a factory in a list")
    );
    assert!(
        error(under(ValueTree::Leaf(Value::None)), &at("b".into()))
            .starts_with("at a: a value was loaded where")
    );
    let mut lists = Tree::new();
    lists.insert_tree("a", Tree::List(vec![Tree::Leaf(echo())]));
    assert_eq!(
        error(under(list(2)), &lists),
        "at a: cannot merge two lists with different lengths (2 and 1)"
    );
    assert!(error(under(ValueTree::new()), &lists).starts_with("at a: a dict was loaded where"));
    let merged = merge_factories(under(list(1)), &lists).unwrap();
    assert_eq!(
        Value::from(merged.get("a").unwrap().clone()),
        Value::List(vec![Value::List(vec![Value::Int(0)])])
    );
    let merged = merge_factories(under(list(2)), &at(1.into())).unwrap();
    assert_eq!(
        merged.at(&["a".into(), 0.into()]),
        Some(&ValueTree::Leaf(Value::Int(0)))
    );
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    /// Whatever part of a flattened gated weight a rank has, cut and put together it is the same, in the same memory.
    #[test]
    fn halves_are_merged_to_what_was_cut(
        half in 0u64..4, width in 1u64..4, a: prop::sample::Index, b: prop::sample::Index, one in any::<bool>(),
    ) {
        let form = if one { Swiglu::OneKey } else { Swiglu::TwoKeys };
        let n = 2 * half * width;
        let (a, b) = (a.index(n as usize + 1) as u64, b.index(n as usize + 1) as u64);
        let range = a.min(b)..a.max(b);
        let data = ints(&[range.end - range.start]);
        let t = ShardedTensor::from_rank_offsets_flat("k", data.clone(), &[2 * half, width], &[(0, 2, 3)], 0, range.clone());
        let f = ShardedTensorFactory::swiglu(t.unwrap(), form).unwrap();
        let (mut seen, mut kept) = (Vec::new(), Vec::new());
        for p in parts(&f) {
            seen.push(p.flattened_range.clone().unwrap());
            kept.push(ValueTree::Leaf(Value::Tensor(p.data.host().unwrap().clone())));
        }
        prop_assert_eq!(seen.iter().map(|r| r.end - r.start).sum::<u64>(), range.end - range.start);
        let merged = (f.merge)(&f, ValueTree::List(kept)).unwrap().into_tensor().unwrap();
        prop_assert!(merged.same_buffer(&data));
        prop_assert_eq!(merged, data);
    }
}
