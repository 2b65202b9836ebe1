//! What Megatron Core's own helpers saved: ours declare the same, and load it.

use crate::state::{dict, state};
use futures::{executor::block_on, future::join_all};
use reshard::{
    Checkpoint, DType, Dialect, LocalGroup, Region, ShardedTensor, StateDict, Tensor, Value,
    ValueTree,
    model::{Dims, Leaf, Step, Tree},
};
use reshard_model::testkit::fixture;
use reshard_optim::{
    OptimTensor, ParamId, fp32_from_fp16_params, make_sharded_optimizer_tensor,
    param_id_to_sharded_param_map, restore_optim_state, sharded_optim_state,
};
use serde_json::Value as Json;
use std::fs;

const FIXTURES: [&str; 2] = ["mc012_optimizer_w4", "mc016_optimizer_w4"];

/// What is known of a fixture, and where its checkpoint lies. `None` if the fixtures are of another folder, which lacks it.
fn found(name: &str) -> Option<(Json, String)> {
    let folder = fixture(&format!("megatron/{name}"))?;
    let text = fs::read(folder.join("expected.json")).unwrap();
    let url = folder.join("ckpt").display().to_string();
    Some((serde_json::from_slice(&text).unwrap(), url))
}

fn numbers(value: &Json) -> Vec<u64> {
    let all = value.as_array().unwrap().iter();
    all.map(|n| n.as_u64().unwrap()).collect()
}

/// Rows of a tensor, with the numbers that Megatron's side has recorded.
fn rows(expected: &Json, key: &str, rows: std::ops::Range<u64>) -> Tensor {
    let t = &expected["tensors"][key];
    let shape = numbers(&t["shape"]);
    let values: Vec<f32> = t["values"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap() as f32)
        .collect();
    let whole = match t["dtype"].as_str().unwrap() {
        "float32" => Tensor::from_vec(&shape, values).unwrap(),
        "bfloat16" => {
            let bits: Vec<u8> = values
                .iter()
                .flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes())
                .collect();
            Tensor::new(DType::BFloat16, &shape, bits).unwrap()
        }
        other => panic!("{other}"),
    };
    let mut region = Region::whole(&shape);
    (region.offsets[0], region.lengths[0]) = (rows.start, rows.end - rows.start);
    whole.narrow(&region)
}

/// The state of a rank of 2 tensor-parallel times 2 data-parallel ones, as Megatron's fixture has it. Without data it is a template.
fn rank_state(expected: &Json, rank: u32, data: bool) -> StateDict {
    let (tp, dp) = (rank % 2, rank / 2);
    let w = |prefix: &str| {
        rows(
            expected,
            &format!("{prefix}w"),
            u64::from(tp) * 4..u64::from(tp) * 4 + 4,
        )
    };
    let b = |prefix: &str| rows(expected, &format!("{prefix}b"), 0..4);
    let mut model = StateDict::new();
    let weight = ShardedTensor::from_rank_offsets("w", w(""), &[(0, tp.into(), 2)]).unwrap();
    model.insert("w", weight.with_replica_id([0, 0, dp]));
    model.insert("b", ShardedTensor::replicated("b", b(""), [0, tp, dp]));

    let moments = |of: &dyn Fn(&str) -> Tensor| {
        let mut entries: Vec<(Value, Value)> = ["exp_avg", "exp_avg_sq"]
            .into_iter()
            .map(|name| {
                (
                    name.into(),
                    Value::Tensor(of(&format!("optimizer.state.{name}."))),
                )
            })
            .collect();
        entries.push(("step".into(), Value::Int(9)));
        dict(entries)
    };
    let group = |decay: f64, id: i64| {
        dict(vec![
            ("lr".into(), Value::Float(0.001)),
            (
                "betas".into(),
                Value::Tuple(vec![Value::Float(0.9), Value::Float(0.95)]),
            ),
            ("weight_decay".into(), Value::Float(decay)),
            ("params".into(), Value::List(vec![Value::Int(id)])),
        ])
    };
    let mut inner = state(dict(vec![
        (
            "state".into(),
            dict(vec![
                (Value::Int(0), moments(&w)),
                (Value::Int(1), moments(&b)),
            ]),
        ),
        (
            "param_groups".into(),
            Value::List(vec![group(0.1, 0), group(0., 1)]),
        ),
    ]));
    let params =
        param_id_to_sharded_param_map(&model, [(ParamId(0), "w"), (ParamId(1), "b")]).unwrap();
    sharded_optim_state(&mut inner, &params).unwrap();
    let copies = [
        vec![(ParamId(0), w("optimizer.state.fp32_param."))],
        vec![(ParamId(1), b("optimizer.state.fp32_param."))],
    ];
    let mut optimizer = StateDict::new();
    optimizer.insert_tree("optimizer", inner);
    optimizer.insert_tree(
        "fp32_from_fp16_params",
        fp32_from_fp16_params(copies, &params).unwrap(),
    );

    let mut out = StateDict::new();
    out.insert_tree("model", model);
    out.insert_tree("optimizer", optimizer);
    out.insert("iteration", 9);
    if !data {
        out.visit_mut(&mut |_, leaf| {
            if let Leaf::Tensor(t) = leaf {
                *t = t.without_data();
            }
        });
    }
    out
}

fn saved(expected: &Json, url: &str) {
    let states: Vec<StateDict> = (0..4)
        .map(|rank| rank_state(expected, rank, true))
        .collect();
    save(&states, url);
}

fn save(states: &[StateDict], url: &str) {
    let groups = LocalGroup::new(states.len() as u32);
    let saves = groups.iter().zip(states).map(|(group, state)| {
        let save = reshard::save(state, url).group(group);
        let save = save.dialect(Dialect::Megatron);
        async move { save.await }
    });
    for report in block_on(join_all(saves)) {
        report.unwrap();
    }
}

/// A tensor has the same type, shape, chunks and bytes in both.
fn same(ours: &Checkpoint, theirs: &Checkpoint, key: &str, item: &Json) {
    let (a, b) = (ours.tensor(key).unwrap(), theirs.tensor(key).unwrap());
    assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()), "{key}");
    let mut chunks: Vec<Region> = a.chunks().into_iter().map(|c| c.region).collect();
    chunks.sort();
    let chunk = |c: &Json| Region::new(numbers(&c[0]), numbers(&c[1]));
    let mut want: Vec<Region> = item["chunks"]
        .as_array()
        .unwrap()
        .iter()
        .map(chunk)
        .collect();
    want.sort();
    assert_eq!(chunks, want, "{key}");
    let read = |t: reshard::TensorHandle| block_on(t.read(..)).unwrap().to_bytes();
    assert_eq!(read(a), read(b), "{key}");
}

#[test]
fn the_leaves_of_each_rank_are_those_that_megatrons_helpers_declared() {
    // The other fixture does not say what was declared.
    for name in ["mc016_optimizer_w4"] {
        let Some((expected, _)) = found(name) else {
            continue;
        };
        for rank in 0..4 {
            let state = rank_state(&expected, rank, true);
            let mut seen = 0;
            for leaf in expected["save_spec"][rank as usize]["leaves"]
                .as_array()
                .unwrap()
            {
                if leaf["kind"] != "tensor" {
                    continue;
                }
                let mut at = &state;
                for step in leaf["path"].as_array().unwrap() {
                    let step = step.as_str().unwrap();
                    let index = step.parse::<u64>().ok();
                    at = index
                        .and_then(|i| at.at(&[i.into()]))
                        .or_else(|| at.get(step))
                        .unwrap();
                }
                let Tree::Leaf(Leaf::Tensor(t)) = at else {
                    panic!("{name}: {leaf}")
                };
                assert_eq!(&*t.key, leaf["key"].as_str().unwrap());
                assert_eq!(t.dtype.to_string(), leaf["dtype"].as_str().unwrap());
                let dims = |field: &str| Dims::from(numbers(&leaf[field]));
                assert_eq!(t.local_shape, dims("local_shape"));
                assert_eq!(t.global_shape, dims("global_shape"));
                assert_eq!(t.global_offset, dims("global_offset"));
                assert_eq!(t.axis_fragmentations, Some(dims("axis_fragmentations")));
                assert_eq!(
                    t.replica_id
                        .0
                        .iter()
                        .map(|n| u64::from(*n))
                        .collect::<Vec<_>>(),
                    numbers(&leaf["replica_id"])
                );
                seen += 1;
            }
            let ours = state
                .nested_values()
                .into_iter()
                .filter(|l| matches!(l, Leaf::Tensor(_)));
            assert_eq!((seen, ours.count()), (8, 8));
        }
    }
}

#[test]
fn what_four_ranks_save_has_the_keys_shapes_chunks_and_bytes_of_megatrons() {
    for name in FIXTURES {
        let Some((expected, theirs)) = found(name) else {
            continue;
        };
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ours").display().to_string();
        saved(&expected, &url);
        let theirs = block_on(Checkpoint::open(&theirs)).unwrap();
        let ours = block_on(Checkpoint::open(&url)).unwrap();

        let keys = |c: &Checkpoint| -> Vec<String> {
            let mut keys: Vec<String> =
                c.metadata().entries().map(|e| e.key().to_owned()).collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&ours), keys(&theirs));
        for (key, item) in expected["dcp"]["items"].as_object().unwrap() {
            assert_eq!(
                ours.tensor(key).unwrap().shape().to_vec(),
                numbers(&item["size"])
            );
            same(&ours, &theirs, key, item);
        }
        let common = |c: &Checkpoint| Value::from(block_on(c.common()).unwrap());
        assert_eq!(common(&ours), common(&theirs));
    }
}

#[test]
fn what_megatron_saved_loads_into_our_declarations() {
    for name in FIXTURES {
        let Some((expected, url)) = found(name) else {
            continue;
        };
        let groups = LocalGroup::new(4);
        let loads = (0..4).zip(&groups).map(|(rank, group)| {
            let load = reshard::load(rank_state(&expected, rank, false), &url).group(group);
            async move { load.await }
        });
        for (rank, loaded) in (0..4).zip(block_on(join_all(loads))) {
            let mut loaded: ValueTree = loaded.unwrap();
            let optimizer = match &mut loaded {
                Tree::Dict(d) => d.get_mut(&Step::from("optimizer")).unwrap(),
                other => panic!("{other:?}"),
            };
            let Tree::Dict(parts) = optimizer else {
                panic!()
            };
            let inner = parts.get_mut(&Step::from("optimizer")).unwrap();
            restore_optim_state(inner).unwrap();
            for (id, key) in [(0u64, "w"), (1, "b")] {
                let tp = rank % 2;
                let part = if key == "w" { tp * 4..tp * 4 + 4 } else { 0..4 };
                for name in ["exp_avg", "exp_avg_sq"] {
                    let got = inner.at(&["state".into(), id.into(), name.into()]).unwrap();
                    let want = rows(
                        &expected,
                        &format!("optimizer.state.{name}.{key}"),
                        part.clone(),
                    );
                    assert_eq!(
                        got.leaf().unwrap().as_tensor().unwrap().to_bytes(),
                        want.to_bytes()
                    );
                }
                let step = inner
                    .at(&["state".into(), id.into(), "step".into()])
                    .unwrap();
                assert_eq!(step.leaf(), Some(&Value::Int(9)));
                let params = inner
                    .at(&["param_groups".into(), id.into(), "params".into()])
                    .unwrap();
                assert_eq!(
                    params.leaf(),
                    Some(&Value::List(vec![Value::Int(id as i64)]))
                );
            }
        }
    }
}

/// Layer by layer, as Megatron's distributed optimizer declares it: each data-parallel rank has a range of a parameter.
fn distributed(theirs: &Checkpoint, rank: u32) -> StateDict {
    let (tp, dp) = (rank % 2, rank / 2);
    let mut model = StateDict::new();
    for layer in 0..2 {
        let offsets = [(0, layer, 2), (1, tp.into(), 2)];
        let weight =
            ShardedTensor::declare("decoder.weight", DType::BFloat16, &[4, 4], &offsets, 1);
        model.insert(
            format!("{layer}"),
            weight.unwrap().with_replica_id([0, 0, dp]),
        );
    }
    let params =
        param_id_to_sharded_param_map(&model, [(ParamId(0), "0"), (ParamId(1), "1")]).unwrap();
    let mut state = StateDict::new();
    for (layer, ranges) in [(0, [0..6, 6..16]), (1, [0..16, 16..16])] {
        let range = ranges[dp as usize].clone();
        for name in ["fp32_param", "exp_avg", "exp_avg_sq"] {
            let prefix = format!("optimizer.state.{name}");
            let whole = theirs.tensor(&format!("{prefix}.decoder.weight")).unwrap();
            let region = Region::new([layer, u64::from(tp) * 4, 0], [1, 4, 4]);
            let elements = block_on(whole.read(region)).unwrap().view(&[16]).unwrap();
            let part = elements.narrow(&Region::new([range.start], [range.end - range.start]));
            let part = OptimTensor::from(part)
                .flattened(range.clone())
                .with_replica_id([0, 0, 0]);
            let leaf =
                make_sharded_optimizer_tensor(params.get(ParamId(layer)).unwrap(), part, &prefix);
            state.insert(format!("{layer}.{name}"), leaf.unwrap());
        }
    }
    state
}

#[test]
fn flattened_state_has_the_keys_chunks_and_bytes_of_megatrons_distributed_optimizer() {
    let Some((expected, theirs)) = found("mc012_dist_opt_model_space_w4") else {
        return;
    };
    let theirs = block_on(Checkpoint::open(&theirs)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ours").display().to_string();
    let states: Vec<StateDict> = (0..4).map(|rank| distributed(&theirs, rank)).collect();
    save(&states, &url);
    let ours = block_on(Checkpoint::open(&url)).unwrap();
    let mut seen = 0;
    for (key, item) in expected["dcp"]["items"].as_object().unwrap() {
        if key.starts_with("optimizer.state.") {
            assert_eq!(
                ours.tensor(key).unwrap().flattened_shape(),
                Some(numbers(&item["size"]).into())
            );
            same(&ours, &theirs, key, item);
            seen += 1;
        }
    }
    assert_eq!((seen, ours.metadata().tensor_count()), (3, 3));
}
