//! Plain state dicts that are declared as parts of global tensors.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use reshard_model::{Leaf, ShardPlace, ShardedTensor, StateDict, Tensor, Value, ValueTree};

fn tensor(shape: &[u64]) -> Value {
    let n: u64 = shape.iter().product();
    Value::Tensor(Tensor::from_vec(shape, vec![0f32; n as usize]).unwrap())
}

/// A layer with a matrix and a bias, and a number.
fn layer() -> ValueTree {
    ValueTree::from(Value::Dict(vec![
        (
            "fc".into(),
            Value::Dict(vec![
                ("weight".into(), tensor(&[2, 3])),
                ("bias".into(), tensor(&[3])),
            ]),
        ),
        ("calls".into(), Value::Int(7)),
    ]))
}

fn at<'s>(state: &'s StateDict, name: &str) -> &'s ShardedTensor {
    match state.get("fc").unwrap().get(name).unwrap().leaf() {
        Some(Leaf::Tensor(t)) => t,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_cut_and_what_is_copied_lies_where_the_rank_stands() {
    // Layer 1 of 4; tensor-parallel rank 2 of 3 has columns; data-parallel rank 5.
    let place = ShardPlace::new()
        .tensor_parallel(2, 3)
        .data_parallel(5)
        .prepended(1, 4);
    let state = StateDict::from_plain(layer(), "layers.", &place, &[("fc.weight", 1)]).unwrap();
    let weight = at(&state, "weight");
    assert_eq!(&*weight.key, "layers.fc.weight");
    assert_eq!(weight.global_shape, [4, 2, 9].into());
    assert_eq!(weight.global_offset, [1, 0, 6].into());
    assert_eq!(weight.axis_fragmentations, Some([4, 1, 3].into()));
    assert_eq!(weight.replica_id, [0, 0, 5].into());
    let bias = at(&state, "bias");
    assert_eq!(
        (&bias.global_shape, &bias.global_offset),
        (&[4, 3].into(), &[1, 0].into())
    );
    assert_eq!(bias.replica_id, [0, 2, 5].into());
    let calls = state.get("calls").unwrap().leaf();
    assert!(matches!(calls, Some(Leaf::Value(Value::Int(7)))));
}

#[test]
fn one_rank_has_everything_and_it_is_main() {
    let state = StateDict::from_plain(layer(), "", &ShardPlace::new(), &[]).unwrap();
    let weight = at(&state, "weight");
    assert_eq!(
        (&*weight.key, &weight.global_shape),
        ("fc.weight", &[2, 3].into())
    );
    assert!(weight.replica_id.is_main() && at(&state, "bias").replica_id.is_main());
}

#[test]
fn a_tensor_that_should_be_cut_and_is_not_there_is_an_error() {
    let place = ShardPlace::new().tensor_parallel(0, 2);
    let error = StateDict::from_plain(layer(), "m.", &place, &[("weight", 0)]).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("m.weight") && said.contains("no tensor of this name"),
        "{said}"
    );
}

#[test]
fn a_rank_that_is_not_one_of_its_group_is_an_error() {
    let place = ShardPlace::new().tensor_parallel(2, 2);
    let error = StateDict::from_plain(layer(), "", &place, &[("fc.bias", 0)]).unwrap_err();
    assert!(error.to_string().starts_with("fc.bias: "), "{error}");
}
