//! Calls of Megatron Core's own loader, made again. They were made at world size 2.

use crate::{load, load_by};
use reshard::{
    Cast, Data, ErrorKind, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    blocking::Checkpoint, model::Dims,
};
use reshard_golden::{Fixture, chain, fixtures, ours, sha256};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

#[test]
fn what_megatron_core_loads_is_loaded_equally_and_what_it_refuses_is_refused() {
    let (mut count, mut refused, mut flattened, mut wrong) = (0, 0, 0, Vec::new());
    for f in fixtures() {
        for l in &f.expected.loads {
            count += 1;
            let what = match () {
                () if unflattens(&f, l) => {
                    flattened += 1;
                    unflattened(&f, l)
                }
                () if l.get("error").is_some() => {
                    refused += 1;
                    refusal(&f, l)
                }
                () => {
                    flattened += u64::from(!l["declaration"]["flattened_range"].is_null());
                    success(&f, l, None)
                }
            };
            wrong.extend(
                what.err()
                    .map(|what| format!("{f}: {}: {what}", l["request"])),
            );
        }
    }
    println!("{count} calls made again: {refused} refused, {flattened} of flattened ranges");
    assert!(count > 0 && flattened > 0, "no call was made");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same calls, all of a checkpoint in one.
#[test]
fn calls_of_one_checkpoint_can_be_made_at_once() {
    let mut wrong = Vec::new();
    for f in fixtures() {
        let calls: Vec<&Json> = f
            .expected
            .loads
            .iter()
            .filter(|l| l.get("error").is_none())
            .collect();
        if calls.is_empty() {
            continue;
        }
        let mut template = StateDict::new();
        for (i, l) in calls.iter().enumerate() {
            template.insert(i.to_string(), declared(&l["declaration"]));
        }
        for loaded in load(vec![template.clone(), template], &f.url(), Cast::Any) {
            match loaded {
                Err(e) => wrong.push(format!("{f}: {}", chain(&e))),
                Ok(state) => wrong.extend(calls.iter().enumerate().filter_map(|(i, l)| {
                    let what = equal(&l["result"], tensor(&state, &i.to_string())).err()?;
                    Some(format!("{f}: {}: {what}", l["request"]))
                })),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Both of Megatron Core's ways to load its zarr: each rank reads a share for all, or one rank reads for its group.
#[test]
fn what_megatron_core_loads_of_its_zarr_is_loaded_equally_by_its_wrappers() {
    let (mut count, mut wrong) = (0, Vec::new());
    for f in fixtures() {
        if f.expected.backend != "zarr" {
            continue;
        }
        let made = |l: &&Json| l.get("error").is_none() && !unflattens(&f, l);
        for l in f.expected.loads.iter().filter(made) {
            for wrapper in ["fully_parallel", "two_stage"] {
                count += 1;
                let settings = json!({ "format": "zarr", "layers": [{ "type": wrapper }] });
                let what = success(&f, l, Some(&settings)).err();
                wrong.extend(what.map(|what| format!("{f}: {wrapper}: {}: {what}", l["request"])));
            }
        }
    }
    println!("{count} calls made again");
    assert!(count > 0 || !ours(), "no call was made");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn flattened_tensors_are_known_by_both_of_their_shapes() {
    for f in fixtures().iter().filter(|f| f.expected.sound) {
        let checkpoint = Checkpoint::open(f.url()).unwrap();
        let found: BTreeMap<String, Dims> = checkpoint
            .tensors()
            .filter_map(|t| Some((t.key().to_owned(), t.flattened_shape()?)))
            .collect();
        assert_eq!(found, f.expected.flattened, "{f}");
    }
}

fn call(
    f: &Fixture,
    l: &Json,
    settings: Option<&Json>,
    cast: Cast,
) -> Vec<Result<ValueTree, reshard::LoadError>> {
    let template = || {
        let mut s = StateDict::new();
        s.insert("t", declared(&l["declaration"]));
        s
    };
    load_by(settings, vec![template(), template()], &f.url(), cast)
}

fn success(f: &Fixture, l: &Json, settings: Option<&Json>) -> Result<(), String> {
    let d = &l["declaration"];
    let key = d["key"].as_str().unwrap();
    let stored = f.expected.tensors[key].dtype.to_string();
    // The real loader converts without a word; here one must say that one wants it.
    let cast = stored != d["dtype"].as_str().unwrap();
    for loaded in call(f, l, settings, Cast::Never) {
        match loaded {
            Ok(_) if cast => return Err("it was cast without having been asked for".into()),
            Ok(state) => equal(&l["result"], tensor(&state, "t"))?,
            Err(e) if cast => {
                let said = chain(&e);
                let all = [key, &stored, d["dtype"].as_str().unwrap()];
                if e.kind() != ErrorKind::Invalid || !all.iter().all(|s| said.contains(s)) {
                    return Err(format!("of another dtype: {:?} {said}", e.kind()));
                }
            }
            Err(e) => return Err(chain(&e)),
        }
    }
    if cast {
        for loaded in call(f, l, settings, Cast::Any) {
            equal(&l["result"], tensor(&loaded.map_err(|e| chain(&e))?, "t"))?;
        }
    }
    Ok(())
}

/// Megatron Core's zarr refuses a leaf that lies outside of the stored tensor, if shapes may differ. Its torch_dist fills it with zeros,
/// and so does reshard, whatever the format.
fn is_outside(l: &Json) -> bool {
    let error = l["error"]
        .as_array()
        .and_then(|e| e.last())
        .unwrap_or(&l["error"]);
    error
        .as_str()
        .is_some_and(|e| e.contains("Got empty slice"))
}

fn refusal(f: &Fixture, l: &Json) -> Result<(), String> {
    if is_outside(l) {
        for loaded in call(f, l, None, Cast::Never) {
            let state = loaded.map_err(|e| chain(&e))?;
            let zeros = tensor(&state, "t").is_some_and(|t| t.to_bytes().iter().all(|b| *b == 0));
            if !zeros {
                return Err("what lies outside of the tensor is not zero".into());
            }
        }
        return Ok(());
    }
    for loaded in call(f, l, None, Cast::Any) {
        let Err(e) = loaded else {
            return Err(format!("it was loaded; Megatron Core says {}", l["error"]));
        };
        let said = chain(&e);
        if !matches!(e.kind(), ErrorKind::Invalid | ErrorKind::NotFound)
            || !said.contains(l["declaration"]["key"].as_str().unwrap())
        {
            return Err(format!("{:?} {said}", e.kind()));
        }
    }
    Ok(())
}

/// Whether a call asks for the unflattened chunk of a flattened tensor, which Megatron Core refuses.
fn unflattens(f: &Fixture, l: &Json) -> bool {
    let d = &l["declaration"];
    let stored = d["key"].as_str().and_then(|k| f.expected.tensors.get(k));
    d["flattened_range"].is_null()
        && f.expected
            .flattened
            .contains_key(d["key"].as_str().unwrap())
        && stored.is_some_and(|t| *t.shape == dims(&d["global_shape"])[..])
}

/// It is that part of the whole tensor, of which the digest is known.
fn unflattened(f: &Fixture, l: &Json) -> Result<(), String> {
    let d = declared(&l["declaration"]);
    let whole = Checkpoint::open(f.url()).unwrap().tensor(&d.key).unwrap();
    let whole = whole.read(..).map_err(|e| chain(&e))?;
    assert_eq!(
        sha256(whole.blocks(1 << 20)),
        f.expected.tensors[&*d.key].sha256
    );
    let part = whole.narrow(&d.region());
    for loaded in call(f, l, None, Cast::Never) {
        let state = loaded.map_err(|e| chain(&e))?;
        if tensor(&state, "t").is_none_or(|t| t.to_bytes() != part.to_bytes()) {
            return Err("another part was loaded".into());
        }
    }
    Ok(())
}

fn tensor<'s>(state: &'s ValueTree, name: &str) -> Option<&'s Tensor> {
    state.get(name)?.leaf().and_then(Value::as_tensor)
}

fn equal(result: &Json, got: Option<&Tensor>) -> Result<(), String> {
    let Some(got) = got else {
        return Err("nothing was loaded".into());
    };
    let (dtype, shape) = (got.dtype().to_string(), got.shape());
    if result["dtype"] != dtype || Dims::from(&dims(&result["shape"])[..]) != *shape {
        return Err(format!(
            "expected {} {}, got {dtype} {shape}",
            result["dtype"], result["shape"]
        ));
    }
    let got = sha256(got.blocks(1 << 20));
    if result["sha256"] == got {
        Ok(())
    } else {
        Err(format!("expected sha256 {}, got {got}", result["sha256"]))
    }
}

fn dims(json: &Json) -> Vec<u64> {
    json.as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap())
        .collect()
}

pub(crate) fn declared(d: &Json) -> ShardedTensor {
    let some = |name: &str| d[name].as_array().map(|_| dims(&d[name]));
    ShardedTensor {
        key: d["key"].as_str().unwrap().into(),
        data: Data::None,
        dtype: d["dtype"].as_str().unwrap().parse().unwrap(),
        local_shape: dims(&d["local_shape"])[..].into(),
        global_shape: dims(&d["global_shape"])[..].into(),
        global_offset: dims(&d["global_offset"])[..].into(),
        axis_fragmentations: some("axis_fragmentations").map(|f| f[..].into()),
        replica_id: 0.into(),
        prepend_axis_num: d["prepend_axis_num"].as_u64().unwrap() as usize,
        allow_shape_mismatch: d["allow_shape_mismatch"].as_bool().unwrap(),
        optional: false,
        flattened_range: some("flattened_range").map(|f| f[0]..f[1]),
        tag: None,
    }
}
