//! Calls of Megatron Core's own loader, made again. They were made at world size 2.

use crate::load;
use reshard::{
    Cast, Data, ErrorKind, ShardedTensor, StateDict, Tensor, Value, ValueTree, model::Dims,
};
use reshard_golden::{Fixture, chain, fixtures, ours, sha256};
use serde_json::Value as Json;

#[test]
fn what_megatron_core_loads_is_loaded_equally_and_what_it_refuses_is_refused() {
    let (mut count, mut refused, mut not_yet, mut wrong) = (0, 0, 0, Vec::new());
    for f in fixtures() {
        for l in &f.expected.loads {
            count += 1;
            let what = match () {
                () if !l["declaration"]["flattened_range"].is_null() => {
                    not_yet += 1;
                    flattened(&f, l)
                }
                () if l.get("error").is_some() => {
                    refused += 1;
                    refusal(&f, l)
                }
                () => success(&f, l),
            };
            wrong.extend(
                what.err()
                    .map(|what| format!("{f}: {}: {what}", l["request"])),
            );
        }
    }
    println!("{count} calls made again: {refused} refused, {not_yet} of flattened ranges");
    assert!(count > 0 || !ours(), "no call was made");
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
            .filter(|l| l.get("error").is_none() && l["declaration"]["flattened_range"].is_null())
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

/// PyTorch reads them in the shape that they are stored in, and so do we (see `sound`). In their own shape they are not yet read,
/// and nothing else comes instead.
#[test]
fn a_flattened_tensor_is_not_taken_for_one_of_its_own_shape() {
    let (mut count, mut wrong) = (0, Vec::new());
    for f in fixtures() {
        for (key, shape) in &f.expected.flattened {
            if *shape == f.expected.tensors[key].shape {
                continue;
            }
            count += 1;
            let mut template = StateDict::new();
            template.insert(
                "t",
                ShardedTensor::template(key, f.expected.tensors[key].dtype, shape),
            );
            match load(vec![template], &f.url(), Cast::Never).remove(0) {
                Ok(_) => wrong.push(format!("{f}: {key} of {shape} was loaded")),
                Err(e) if matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Unsupported) => {}
                Err(e) => wrong.push(format!("{f}: {key}: {:?} {}", e.kind(), chain(&e))),
            }
        }
    }
    println!("{count} flattened tensors were asked for in their own shape");
    assert!(count > 0 || !ours(), "there was no flattened tensor");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn flattened_tensors_are_counted() {
    for f in fixtures().iter().filter(|f| f.expected.sound) {
        let found = reshard::blocking::Checkpoint::open(&f.url())
            .unwrap()
            .producer()
            .as_stored
            .len() as u64;
        assert_eq!(found, f.expected.flattened.len() as u64, "{f}");
    }
}

fn call(f: &Fixture, l: &Json, cast: Cast) -> Vec<Result<ValueTree, reshard::LoadError>> {
    let template = || {
        let mut s = StateDict::new();
        s.insert("t", declared(&l["declaration"]));
        s
    };
    load(vec![template(), template()], &f.url(), cast)
}

fn success(f: &Fixture, l: &Json) -> Result<(), String> {
    let d = &l["declaration"];
    let key = d["key"].as_str().unwrap();
    let stored = f.expected.tensors[key].dtype.to_string();
    // The real loader converts without a word; here one must say that one wants it.
    let cast = stored != d["dtype"].as_str().unwrap();
    for loaded in call(f, l, Cast::Never) {
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
        for loaded in call(f, l, Cast::Any) {
            equal(&l["result"], tensor(&loaded.map_err(|e| chain(&e))?, "t"))?;
        }
    }
    Ok(())
}

fn refusal(f: &Fixture, l: &Json) -> Result<(), String> {
    for loaded in call(f, l, Cast::Any) {
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

/// Not yet supported, and said so. When it is, this is a [`success`].
fn flattened(f: &Fixture, l: &Json) -> Result<(), String> {
    for loaded in call(f, l, Cast::Any) {
        match loaded {
            Ok(state) => equal(&l["result"], tensor(&state, "t"))?,
            Err(e) => {
                let said = chain(&e);
                let key = l["declaration"]["key"].as_str().unwrap();
                if e.kind() != ErrorKind::Unsupported
                    || !said.contains("flattened")
                    || !said.contains(key)
                {
                    return Err(format!("{:?} {said}", e.kind()));
                }
            }
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

fn declared(d: &Json) -> ShardedTensor {
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
        flattened_range: some("flattened_range").map(|f| f[0]..f[1]),
        tag: None,
    }
}
