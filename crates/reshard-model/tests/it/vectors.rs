//! Golden calls of Megatron Core 0.12.3's pure functions, made by Megatron itself (`megatron/vectors_012.json` of `tests/fixtures`).
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use reshard_model::testkit::{fixture_text, ours};
use reshard_model::{
    AxisCoordinates, DType, Dims, Leaf, Path, ReplicaId, ShardedObject, ShardedTensor, StateDict,
    Step, Tensor, Tree, Value, ValueTree, apply_prefix_mapping, diff,
};
use serde_json::{Value as Json, json};
use std::ops::Range;

/// A call: its input, and its result or its error.
struct Vector {
    input: Json,
    out: Option<Json>,
}

fn vectors(function: &str, count: usize) -> Vec<Vector> {
    let Some(file) = fixture_text("megatron/vectors_012.json") else {
        return Vec::new();
    };
    let file: Json = serde_json::from_str(&file).unwrap();
    let of_function = |v: &&Json| v["fn"] == function;
    let all: Vec<Vector> = file["vectors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(of_function)
        .map(|v| {
            assert!(v.get("out").is_some() != v.get("err").is_some(), "{v}");
            Vector {
                input: v["in"].clone(),
                out: v.get("out").cloned(),
            }
        })
        .collect();
    assert!(
        all.len() == count || !ours(),
        "{} vectors of {function}",
        all.len()
    );
    all
}

/// Ours must err where Megatron did, and give the same where it gave something.
fn check<T>(v: &Vector, ours: Result<T, impl std::fmt::Display>, same: impl FnOnce(T, &Json)) {
    match (ours, &v.out) {
        (Ok(ours), Some(theirs)) => same(ours, theirs),
        (Err(_), None) => {}
        (Ok(_), None) => panic!("Megatron refuses {}", v.input),
        (Err(e), Some(_)) => panic!("{} is refused: {e}", v.input),
    }
}

fn dims(v: &Json) -> Dims {
    v.as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .collect()
}

/// Some bounds were written as text, since they were numpy's ints.
fn number(v: &Json) -> u64 {
    v.as_u64()
        .unwrap_or_else(|| v.as_str().unwrap().parse().unwrap())
}

fn range(v: &Json) -> Option<Range<u64>> {
    v.as_array().map(|r| number(&r[0])..number(&r[1]))
}

fn offsets(input: &Json) -> Result<Vec<(usize, u64, u64)>, String> {
    let number = |v: &Json| v.as_u64().ok_or_else(|| format!("{v} is negative"));
    let triple = |o: &Json| Ok((number(&o[0])? as usize, number(&o[1])?, number(&o[2])?));
    input["offsets"]
        .as_array()
        .unwrap()
        .iter()
        .map(triple)
        .collect()
}

/// Whether all fields are as Megatron's; data is compared by [`data`].
fn fields(t: &ShardedTensor, v: &Json) {
    assert_eq!(&*t.key, v["key"].as_str().unwrap());
    assert_eq!(t.local_shape, dims(&v["local_shape"]), "{v}");
    assert_eq!(t.global_shape, dims(&v["global_shape"]), "{v}");
    assert_eq!(t.global_offset, dims(&v["global_offset"]), "{v}");
    assert_eq!(
        t.axis_fragmentations,
        Some(dims(&v["axis_fragmentations"])),
        "{v}"
    );
    // Ours says "the main copy" by no number, too.
    assert!(v["replica_id"] == 0 && t.replica_id.is_main());
    assert_eq!(
        t.prepend_axis_num as u64,
        v["prepend_axis_num"].as_u64().unwrap()
    );
    assert_eq!(
        t.allow_shape_mismatch,
        v["allow_shape_mismatch"].as_bool().unwrap()
    );
    assert_eq!(t.flattened_range, range(&v["flattened_range"]), "{v}");
}

fn data(t: &ShardedTensor, v: &Json) {
    let ours = t.data.host().unwrap();
    assert_eq!(ours.shape(), &dims(&v["data"][0]), "{v}");
    let theirs: Vec<i32> = v["data"][1]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_i64().unwrap() as i32)
        .collect();
    assert_eq!(ours.to_vec::<i32>().unwrap(), theirs, "{v}");
}

/// Local elements are numbered from 0 in Megatron's calls; a flattened range takes some of them.
fn local(shape: &[u64], range: Option<&Range<u64>>) -> Tensor {
    let n = Dims::from(shape).volume().unwrap();
    let all: Vec<i32> = (0..n as i32).collect();
    match range {
        None => Tensor::from_vec(shape, all).unwrap(),
        Some(r) => {
            let part = all[r.start as usize..r.end as usize].to_vec();
            Tensor::from_vec(&[part.len() as u64], part).unwrap()
        }
    }
}

/// The tensor that the input describes, regular or flattened.
fn tensor(input: &Json) -> Result<ShardedTensor, String> {
    let (shape, prepend) = (
        dims(&input["shape"]),
        input["prepend"].as_u64().unwrap() as usize,
    );
    let (offsets, range) = (offsets(input)?, range(&input["flattened_range"]));
    let data = local(&shape, range.as_ref());
    match range {
        None => ShardedTensor::from_rank_offsets_prepended("k", data, &offsets, prepend),
        Some(r) => ShardedTensor::from_rank_offsets_flat("k", data, &shape, &offsets, prepend, r),
    }
    .map_err(|e| e.to_string())
}

#[test]
fn from_rank_offsets() {
    for v in vectors("from_rank_offsets", 65) {
        check(&v, tensor(&v.input), |t, out| fields(&t, out));
    }
}

#[test]
fn from_rank_offsets_flat() {
    for v in vectors("from_rank_offsets_flat", 60) {
        check(&v, tensor(&v.input), |t, out| {
            fields(&t, out);
            data(&t, out);
        });
    }
}

#[test]
fn sharded_tensor() {
    for v in vectors("ShardedTensor", 7) {
        let fragmentations = v.input["axis_fragmentations"]
            .as_array()
            .map(|_| dims(&v.input["axis_fragmentations"]));
        let local_shape = dims(&v.input["local_shape"]);
        // The data had shape (2, 3), where the call did not ask for an empty one.
        let data = local(
            if local_shape[0] == 0 {
                &[0, 3]
            } else {
                &[2, 3]
            },
            None,
        );
        let ours = ShardedTensor::new(
            "k",
            data,
            DType::Int32,
            &local_shape,
            &dims(&v.input["global_shape"]),
            &dims(&v.input["global_offset"]),
            fragmentations.as_deref(),
            0,
            v.input["prepend_axis_num"].as_u64().unwrap() as usize,
            false,
            None,
        );
        if fragmentations.is_none() {
            // 0.12 knew no irregular grids and refused the offset; 0.15 and later, as ours, allow any.
            assert!(v.out.is_none() && ours.is_ok());
            continue;
        }
        check(&v, ours, |t, out| fields(&t, out));
    }
}

#[test]
fn local_chunk_offset_in_global() {
    for v in vectors("local_chunk_offset_in_global", 60) {
        let ours = tensor(&v.input)
            .and_then(|t| t.local_chunk_offset_in_global().map_err(|e| e.to_string()));
        check(&v, ours, |d, out| assert_eq!(d, dims(out)));
    }
}

#[test]
fn max_allowed_chunks() {
    for v in vectors("max_allowed_chunks", 60) {
        let ours = tensor(&v.input).and_then(|t| t.max_allowed_chunks().map_err(|e| e.to_string()));
        check(&v, ours, |d, out| assert_eq!(d, dims(out)));
    }
}

#[test]
fn local_coordinates() {
    for v in vectors("local_coordinates", 60) {
        let ours = tensor(&v.input).and_then(|t| t.local_coordinates().map_err(|e| e.to_string()));
        check(&v, ours, |c, out| assert_eq!(json!(c), *out));
    }
}

#[test]
fn global_coordinates() {
    for v in vectors("global_coordinates", 60) {
        let ours = tensor(&v.input).and_then(|t| t.global_coordinates().map_err(|e| e.to_string()));
        check(&v, ours, |c, out| {
            let axis = |a: AxisCoordinates| match a {
                AxisCoordinates::All(at) => json!(at),
                AxisCoordinates::Each(at) => json!(at),
            };
            assert_eq!(Json::from_iter(c.into_iter().map(axis)), *out);
        });
    }
}

#[test]
fn narrow() {
    for v in vectors("narrow", 105) {
        let at = |name: &str| v.input[name].as_u64().unwrap();
        let ours = tensor(&v.input).and_then(|t| {
            t.narrow(at("dim") as usize, at("start"), at("length"))
                .map_err(|e| e.to_string())
        });
        check(&v, ours, |ours, out| {
            let theirs = out.as_array().unwrap();
            assert_eq!(ours.len(), theirs.len(), "{}", v.input);
            for (t, out) in ours.iter().zip(theirs) {
                fields(t, out);
                data(t, out);
            }
        });
    }
}

#[test]
fn is_main_replica() {
    for v in vectors("is_main_replica", 8) {
        let ids = v.input["replica_id"]
            .as_array()
            .cloned()
            .unwrap_or_else(|| vec![v.input["replica_id"].clone()]);
        // A negative number can't be said; Megatron takes it for a copy that is not the main one.
        let ours = ids
            .iter()
            .map(|n| n.as_u64().map(|n| n as u32))
            .collect::<Option<Box<[u32]>>>();
        let main = ours.is_some_and(|ids| ReplicaId(ids).is_main());
        assert_eq!(json!(main), v.out.unwrap(), "{}", v.input);
    }
}

#[test]
fn unique_key() {
    for v in vectors("unique_key", 4) {
        let key = v.input["key"].as_str().unwrap();
        let (shape, offset) = (
            dims(&v.input["global_shape"]),
            dims(&v.input["global_offset"]),
        );
        let ours = ShardedObject::new(key, 1, &shape, &offset, 0);
        if shape.is_empty() {
            // Megatron makes a name of it that it can't read.
            assert!(
                ours.unwrap_err()
                    .to_string()
                    .starts_with("a: an array of objects needs an axis")
            );
            continue;
        }
        check(&v, ours, |o, out| assert_eq!(json!(o.unique_key()), *out));
    }
}

#[test]
fn empty_from_unique_key() {
    for v in vectors("empty_from_unique_key", 8) {
        let name = v.input["unique_key"].as_str().unwrap();
        check(&v, ShardedObject::empty_from_unique_key(name), |o, out| {
            assert_eq!(&*o.key, out["key"].as_str().unwrap());
            assert_eq!(o.global_offset, dims(&out["global_offset"]));
            assert!(o.replica_id.is_main());
            let mut shape = out["global_shape"].as_array().unwrap().clone();
            if shape.last() == Some(&json!(-1)) {
                // An extent that very old names lack: Megatron's loader replaces its -1 by the largest offset + 1.
                shape.pop();
                shape.push(json!(o.global_offset.last().unwrap() + 1));
            }
            assert_eq!(o.global_shape, dims(&Json::Array(shape)));
        });
    }
}

fn tree(v: &Json) -> ValueTree {
    match v {
        Json::Object(d) => Tree::Dict(d.iter().map(|(k, v)| (step(k), tree(v))).collect()),
        Json::Array(v) => Tree::List(v.iter().map(tree).collect()),
        Json::Number(n) => Tree::Leaf(Value::Int(n.as_i64().unwrap())),
        Json::String(s) => Tree::Leaf(s.as_str().into()),
        other => panic!("{other} in a tree"),
    }
}

/// Int keys are text in JSON.
fn step(k: &str) -> Step {
    k.parse().map_or_else(|_| k.into(), Step::Index)
}

fn path(v: &Json) -> Path {
    Path(
        v.as_array()
            .unwrap()
            .iter()
            .map(|s| step(s.as_str().unwrap()))
            .collect(),
    )
}

#[test]
fn extract_matching_values() {
    for v in vectors("extract_matching_values", 12) {
        let as_dicts = v.input["return_lists_as_dicts"].as_bool().unwrap();
        let ours = tree(&v.input["x"]).extract_matching_values(as_dicts, &mut |leaf: &Value| {
            leaf.as_str().is_some_and(|s| s.starts_with('!'))
        });
        check(&v, ours, |(yes, no), out| {
            assert_eq!((yes, no), (tree(&out[0]), tree(&out[1])), "{}", v.input)
        });
    }
}

#[test]
fn nested_values() {
    for v in vectors("nested_values", 6) {
        let x = tree(&v.input["x"]);
        let ours = Tree::List(
            x.nested_values()
                .into_iter()
                .cloned()
                .map(Tree::Leaf)
                .collect(),
        );
        assert_eq!(ours, tree(v.out.as_ref().unwrap()));
        assert_eq!(
            x.nested_values().into_iter().cloned().collect::<Vec<_>>(),
            x.into_nested_values()
        );
    }
}

#[test]
fn merge() {
    for v in vectors("merge", 8) {
        let mut ours = tree(&v.input["x1"]);
        let merged = ours.merge(tree(&v.input["x2"]));
        check(&v, merged.map(|()| ours), |ours, out| {
            assert_eq!(ours, tree(out))
        });
    }
}

#[test]
fn diff_names_both_sides() {
    let mut newer = 0;
    for v in vectors("diff", 8) {
        let ours = diff(&tree(&v.input["x1"]), &tree(&v.input["x2"]));
        let out = v.out.unwrap();
        let paths = |v: &Json| v.as_array().unwrap().iter().map(path).collect::<Vec<_>>();
        assert_eq!(ours.only_left, paths(&out[0]), "{}", v.input);
        if v.input["x2"] == json!({"a": [{}, {}]}) {
            // 0.12 does not see what the second list has more; 0.13 and later do.
            assert_eq!(ours.only_right, [Path(vec!["a".into(), 1.into()])]);
            newer += 1;
            continue;
        }
        assert_eq!(ours.only_right, paths(&out[1]), "{}", v.input);
        let ours: Vec<Json> = ours
            .mismatch
            .iter()
            .map(|(p, a, b)| {
                let steps = p.0.iter().map(|s| match s {
                    Step::Key(k) => format!("'{k}'"),
                    Step::Index(i) => i.to_string(),
                });
                let steps: Vec<String> = steps.collect();
                let tuple = if steps.len() == 1 {
                    format!("({},)", steps[0])
                } else {
                    format!("({})", steps.join(", "))
                };
                json!([tuple, format!("<class '{a}'>"), format!("<class '{b}'>")])
            })
            .collect();
        assert_eq!(Json::Array(ours), out[2], "{}", v.input);
    }
    assert_eq!(newer, 1);
}

#[test]
fn prefixes_are_mapped() {
    for v in vectors("apply_prefix_mapping", 4) {
        let mut state = StateDict::new();
        for (i, k) in v.input["keys"].as_array().unwrap().iter().enumerate() {
            let t = ShardedTensor::template(k.as_str().unwrap(), DType::Int8, &[1]);
            state.insert(i as u64, t);
        }
        let mapping = v.input["mapping"].as_object().unwrap();
        let mapping: Vec<(&str, &str)> = mapping
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str().unwrap()))
            .collect();
        apply_prefix_mapping(&mut state, &mapping);
        let keys = state.nested_values().into_iter().map(|l| match l {
            Leaf::Tensor(t) => json!(t.key),
            other => panic!("{other:?}"),
        });
        assert_eq!(Json::from_iter(keys), v.out.unwrap());
    }
}
