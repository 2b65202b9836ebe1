//! The lossless form of values in Megatron's fixtures.

use super::{args, big, float, numpy};
use crate::sha256;
use reshard::{
    Value,
    model::{Construct, Opaque},
};
use serde_json::Value as Json;

/// Compares a value with its typed form; what differs comes back with its place.
///
/// # Errors
/// The first difference.
pub fn same(expected: &Json, value: &Value) -> Result<(), String> {
    go(expected, value, "")
}

fn go(expected: &Json, value: &Value, at: &str) -> Result<(), String> {
    let fail = || {
        Err(format!(
            "at {at:?}: expected {}, got {}",
            short(expected),
            short_value(value)
        ))
    };
    let check = |ok: bool| if ok { Ok(()) } else { fail() };
    let items = || expected["items"].as_array().map_or(&[][..], Vec::as_slice);
    let kind = expected["t"].as_str().unwrap_or_default();
    let v = &expected["v"];
    match (kind, value) {
        ("none", Value::None) => Ok(()),
        ("bool", Value::Bool(b)) => check(*v == *b),
        // What a float of JSON can't hold stands as text.
        ("int", Value::Int(i)) => {
            check(v.as_i64() == Some(*i) || v.as_str() == Some(&i.to_string()))
        }
        ("int", Value::BigInt(le)) => check(
            v.as_str() == Some(&big(le)) || v.as_number().is_some_and(|n| n.to_string() == big(le)),
        ),
        ("float", Value::Float(f)) => {
            check(v.as_str() == Some(&float(*f)) || v.as_f64() == Some(*f))
        }
        ("str", Value::Str(s)) => check(v.as_str() == Some(s)),
        ("bytes", Value::Bytes(b)) => check(expected["hex"] == hex(b)),
        ("list", Value::List(v)) | ("tuple", Value::Tuple(v)) => sequence(items(), v, at),
        ("set", Value::Set(v)) => unordered(items(), v, at),
        ("dict", Value::Dict(d)) => pairs(items(), d, at),
        ("tensor", Value::Tensor(t)) => {
            let shape: Vec<u64> = t.shape().to_vec();
            check(
                expected["dtype"] == format!("torch.{}", t.dtype())
                    && expected["shape"] == Json::from(shape)
                    && expected["sha256"] == sha256(t.blocks(1 << 20)),
            )
        }
        (_, Value::Opaque(o)) => match opaque(expected, kind, o, at) {
            Some(found) => found,
            None => fail(),
        },
        _ => fail(),
    }
}

/// `None` when it is something else.
fn opaque(expected: &Json, kind: &str, o: &Opaque, at: &str) -> Option<Result<(), String>> {
    let items = || expected["items"].as_array().map_or(&[][..], Vec::as_slice);
    let yes = |ok: bool| ok.then_some(Ok(()));
    match (kind, &*o.module, &*o.name) {
        ("frozenset", "builtins", "frozenset") => Some(unordered(
            items(),
            args(o).first().and_then(Value::as_seq).unwrap_or(&[]),
            at,
        )),
        ("OrderedDict", "collections", "OrderedDict") => Some(pairs(items(), &o.pairs, at)),
        ("BytesIO", "_io", "BytesIO") => match o.state.as_ref()?.as_seq()? {
            [Value::Bytes(b), ..] => yes(expected["hex"] == hex(b)),
            _ => None,
        },
        ("argparse.Namespace", "argparse", "Namespace") => match &o.state {
            Some(Value::Dict(d)) => Some(fields(items(), d, at)),
            _ => None,
        },
        ("torch.dtype", "torch", name) if o.construct == Construct::Global => {
            yes(expected["v"] == format!("torch.{name}"))
        }
        ("ndarray", module, "_reconstruct") if module.starts_with("numpy.") => {
            let array = numpy::Array::of(o)?;
            let mut flat = Vec::new();
            flatten(&expected["v"], &mut flat);
            let shape = Json::from(array.shape.clone());
            let equal = |(e, text): (&&Json, &String)| match e {
                Json::Bool(b) => (*text == "True") == *b,
                e => e.as_f64().is_some() && e.as_f64() == text.trim_end_matches('.').parse().ok(),
            };
            yes(expected["dtype"] == array.dtype
                && expected["shape"] == shape
                && flat.len() == array.elements.len()
                && flat.iter().zip(&array.elements).all(equal))
        }
        _ => None,
    }
}

fn flatten<'j>(json: &'j Json, out: &mut Vec<&'j Json>) {
    match json {
        Json::Array(v) => v.iter().for_each(|v| flatten(v, out)),
        leaf => out.push(leaf),
    }
}

fn sequence(expected: &[Json], v: &[Value], at: &str) -> Result<(), String> {
    length(expected.len(), v.len(), at)?;
    expected
        .iter()
        .zip(v)
        .enumerate()
        .try_for_each(|(i, (e, v))| go(e, v, &format!("{at}[{i}]")))
}

fn unordered(expected: &[Json], v: &[Value], at: &str) -> Result<(), String> {
    length(expected.len(), v.len(), at)?;
    let mut left: Vec<&Value> = v.iter().collect();
    for e in expected {
        match left.iter().position(|v| go(e, v, at).is_ok()) {
            Some(i) => drop(left.remove(i)),
            None => return Err(format!("at {at:?}: the set lacks {}", short(e))),
        }
    }
    Ok(())
}

fn pairs(expected: &[Json], d: &[(Value, Value)], at: &str) -> Result<(), String> {
    length(expected.len(), d.len(), at)?;
    expected.iter().zip(d).try_for_each(|(e, (k, v))| {
        go(&e[0], k, at)?;
        go(&e[1], v, &format!("{at}[{}]", short_value(k)))
    })
}

fn fields(expected: &[Json], d: &[(Value, Value)], at: &str) -> Result<(), String> {
    length(expected.len(), d.len(), at)?;
    expected
        .iter()
        .zip(d)
        .try_for_each(|(e, (k, v))| match k.as_str() {
            Some(k) if e[0] == k => go(&e[1], v, &format!("{at}.{k}")),
            _ => Err(format!(
                "at {at:?}: expected {}, got {}",
                e[0],
                short_value(k)
            )),
        })
}

fn length(expected: usize, got: usize, at: &str) -> Result<(), String> {
    if expected == got {
        Ok(())
    } else {
        Err(format!(
            "at {at:?}: expected {expected} elements, got {got}"
        ))
    }
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|b| format!("{b:02x}")).collect()
}

fn short(json: &Json) -> String {
    json.to_string().chars().take(200).collect()
}

fn short_value(v: &Value) -> String {
    format!("{v:?}").chars().take(200).collect()
}
