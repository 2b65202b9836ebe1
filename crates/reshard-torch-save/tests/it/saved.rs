//! What a save writes is what `torch.save` would write of the whole state.

use super::{files, open, save, store};
use reshard_model::{DType, Region, ShardedTensor, StateDict, Tensor, Tree, Value};
use reshard_plan::PlannerData;
use reshard_torch_format::load;

fn numbers(shape: &[u64]) -> Tensor {
    let n = shape.iter().product::<u64>() as i32;
    Tensor::from_vec(shape, (0..n).collect::<Vec<i32>>()).unwrap()
}

/// A nested state; each of some ranks has columns of one tensor and rows of another.
fn state(rank: u64, ranks: u64) -> StateDict {
    let part = |region: Region| {
        let data = numbers(&[4, 6]).narrow(&region);
        ShardedTensor::region_of("", DType::Int32, &[4, 6], region).with_data(data)
    };
    let (columns, rows) = (6 / ranks, 4 / ranks);
    let mut model = StateDict::new();
    model.insert(
        "columns",
        part(Region::new([0, rank * columns], [4, columns])),
    );
    model.insert("rows", part(Region::new([rank * rows, 0], [rows, 6])));
    let mut of_int = StateDict::new();
    of_int.insert(3u64, Value::Tensor(numbers(&[2])));
    let mut state = StateDict::new();
    state.insert_tree("model", model);
    state.insert_tree("optim", of_int);
    let list = vec![
        Tree::Leaf(Value::Tensor(numbers(&[])).into()),
        Tree::Leaf(Value::from("x").into()),
    ];
    state.insert_tree("list", Tree::List(list));
    state.insert("step", 7);
    state
}

#[test]
fn ranks_write_the_file_that_one_rank_writes() {
    let (one, two) = (store(), store());
    save(&one, vec![state(0, 1)]);
    save(&two, (0..2).map(|rank| state(rank, 2)).collect());
    assert!(files(&one) == files(&two), "all bytes are equal");
    assert_eq!(
        files(&one).keys().collect::<Vec<_>>(),
        ["pytorch_model.bin"]
    );
}

#[test]
fn the_file_has_the_nesting_of_the_state_and_ints_as_keys() {
    let place = store();
    save(&place, (0..2).map(|rank| state(rank, 2)).collect());
    let bytes = files(&place).remove("pytorch_model.bin").unwrap();
    let dict = |pairs: Vec<(Value, Value)>| Value::Dict(pairs);
    let want = dict(vec![
        (
            "model".into(),
            dict(vec![
                ("columns".into(), numbers(&[4, 6]).into()),
                ("rows".into(), numbers(&[4, 6]).into()),
            ]),
        ),
        ("optim".into(), dict(vec![(3.into(), numbers(&[2]).into())])),
        (
            "list".into(),
            Value::List(vec![numbers(&[]).into(), "x".into()]),
        ),
        ("step".into(), 7.into()),
    ]);
    assert_eq!(load(bytes.into()).unwrap(), want);
    // And its keys are those of the state.
    let reader = open(&place);
    let keys: Vec<&str> = reader.metadata().entries().map(|e| e.key()).collect();
    let all = [
        "model.columns",
        "model.rows",
        "optim.3",
        "list.0",
        "list.1",
        "step",
    ];
    assert_eq!(keys, all);
    let Some(PlannerData::Paths(paths)) = reader.metadata().planner_data() else {
        unreachable!()
    };
    assert_eq!(paths["optim.3"].to_string(), "optim.3");
}

#[test]
fn leaves_over_one_buffer_share_a_storage() {
    let tied = numbers(&[5]);
    let mut state = StateDict::new();
    state.insert("a", Value::Tensor(tied.clone()));
    state.insert("b", Value::Tensor(tied));
    state.insert("c", Value::Tensor(numbers(&[5])));
    let place = store();
    save(&place, vec![state]);
    let bytes = files(&place).remove("pytorch_model.bin").unwrap();
    let Value::Dict(pairs) = load(bytes.into()).unwrap() else {
        unreachable!()
    };
    let buffer = |n: usize| match &pairs[n].1 {
        Value::Tensor(t) => t.buffer_id(),
        _ => 0,
    };
    assert_eq!(buffer(0), buffer(1));
    assert_ne!(buffer(0), buffer(2));
}
