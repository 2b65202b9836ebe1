//! Python's values as JSON. What JSON can't say is tagged: an object with one member whose name starts with `$`.
//! `docs/cli.md` lists the tags.

use crate::{error::Result as CliResult, table::steers};
use reshard::{
    DType, Tensor, Value,
    model::{Construct, Opaque},
    plan::cast,
};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};
use std::io::{self, Write};

/// Writes a line of JSON that can't steer a terminal.
pub(crate) fn write(out: &mut dyn Write, value: &(impl Serialize + ?Sized)) -> CliResult<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, Inert))?;
    Ok(writeln!(out)?)
}

/// Compact, and what text for people escapes is escaped in strings too.
struct Inert;

impl serde_json::ser::Formatter for Inert {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find(steers) {
            out.write_all(&rest.as_bytes()[..at])?;
            let mut behind = rest[at..].chars();
            for unit in behind.next().into_iter().flat_map(|c| c.encode_utf16(&mut [0; 2]).to_vec()) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = behind.as_str();
        }
        out.write_all(rest.as_bytes())
    }
}

/// Tensors up to so many elements are written out.
const SMALL: u64 = 32;
/// Ints up to so many bytes are written in decimal, larger ones in hexadecimal, which takes no time that grows with the
/// square of their length.
const DECIMAL: usize = 512;

/// A value, tagged where needed.
pub(crate) fn value(v: &Value) -> Json {
    match v {
        Value::None => Json::Null,
        Value::Bool(b) => Json::Bool(*b),
        Value::Int(i) => json!(i),
        Value::BigInt(bytes) => json!({ "$int": big_int(bytes) }),
        Value::Float(f) => float(*f),
        Value::Str(s) => json!(s),
        Value::Bytes(b) => json!({ "$bytes": base64(b) }),
        Value::List(v) => list(v),
        Value::Tuple(v) => json!({ "$tuple": list(v) }),
        Value::Set(v) => json!({ "$set": list(v) }),
        Value::Dict(d) => dict(d),
        Value::Tensor(t) => json!({ "$tensor": tensor(t) }),
        Value::Opaque(o) => json!({ "$opaque": opaque(o) }),
        other => json!({ "$opaque": { "class": other.type_name() } }),
    }
}

fn list(v: &[Value]) -> Json {
    v.iter().map(value).collect()
}

fn pairs(d: &[(Value, Value)]) -> Json {
    d.iter().map(|(k, v)| json!([value(k), value(v)])).collect()
}

/// An object where all keys are strs that can't be taken for a tag.
fn dict(d: &[(Value, Value)]) -> Json {
    let mut out = Map::new();
    for (k, v) in d {
        match k {
            Value::Str(k) if !k.starts_with('$') && !out.contains_key(&**k) => {
                out.insert(k.to_string(), value(v));
            }
            _ => return json!({ "$dict": pairs(d) }),
        }
    }
    Json::Object(out)
}

fn float(f: f64) -> Json {
    let name = match f {
        f if f.is_nan() => "nan",
        f64::INFINITY => "inf",
        f64::NEG_INFINITY => "-inf",
        _ => return json!(f),
    };
    json!({ "$float": name })
}

fn opaque(o: &Opaque) -> Json {
    let mut out = Map::new();
    let mut put = |k: &str, v: Json| drop(out.insert(k.into(), v));
    put("class", json!(o.class()));
    match &o.construct {
        Construct::Global => put("global", json!(true)),
        Construct::Reduce(args) | Construct::NewObj(args) if args.is_empty() => {}
        Construct::Reduce(args) | Construct::NewObj(args) => put("args", list(args)),
        Construct::NewObjEx(args, kwargs) => {
            put("args", list(args));
            put("kwargs", pairs(kwargs));
        }
        _ => {}
    }
    if let Some(state) = &o.state {
        put("state", value(state));
    }
    if !o.items.is_empty() {
        put("items", list(&o.items));
    }
    if !o.pairs.is_empty() {
        put("pairs", pairs(&o.pairs));
    }
    Json::Object(out)
}

fn tensor(t: &Tensor) -> Json {
    let mut hasher = Sha256::new();
    t.blocks(1 << 20).for_each(|b| hasher.update(&b));
    let mut out =
        json!({ "dtype": t.dtype().name(), "shape": &**t.shape(), "sha256": hex(&hasher.finalize()) });
    if let (Some(all), Json::Object(out)) = (elements(t), &mut out) {
        out.insert("data".into(), all);
    }
    out
}

/// The elements of a small tensor of a type that JSON has numbers for.
fn elements(t: &Tensor) -> Option<Json> {
    fn ints<T: Into<i128>>(v: Option<Vec<T>>) -> Option<Json> {
        v.map(|v| v.into_iter().map(|i| int(i.into())).collect())
    }
    if t.shape().volume()? > SMALL {
        return None;
    }
    match t.dtype() {
        DType::Bool => Some(t.to_bytes().iter().map(|b| Json::Bool(*b != 0)).collect()),
        DType::UInt8 => ints(t.to_vec::<u8>()),
        DType::UInt16 => ints(t.to_vec::<u16>()),
        DType::UInt32 => ints(t.to_vec::<u32>()),
        DType::UInt64 => ints(t.to_vec::<u64>()),
        DType::Int8 => ints(t.to_vec::<i8>()),
        DType::Int16 => ints(t.to_vec::<i16>()),
        DType::Int32 => ints(t.to_vec::<i32>()),
        DType::Int64 => ints(t.to_vec::<i64>()),
        DType::Float16 | DType::BFloat16 | DType::Float32 | DType::Float64 => {
            let wide = cast::tensor(t, DType::Float64).ok()?.to_vec::<f64>()?;
            Some(wide.into_iter().map(float).collect())
        }
        _ => None,
    }
}

fn int(i: i128) -> Json {
    i64::try_from(i).map(Json::from).or_else(|_| u64::try_from(i).map(Json::from)).unwrap_or(Json::Null)
}

/// Text of an int in two's complement, little-endian.
fn big_int(bytes: &[u8]) -> String {
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let mut magnitude = bytes.to_vec();
    if negative {
        let mut carry = true;
        for b in &mut magnitude {
            let (low, over) = (!*b).overflowing_add(u8::from(carry));
            (*b, carry) = (low, over);
        }
    }
    let sign = if negative { "-" } else { "" };
    if magnitude.len() > DECIMAL {
        let digits: String = magnitude.iter().rev().map(|b| format!("{b:02x}")).collect();
        return format!("{sign}0x{}", digits.trim_start_matches('0'));
    }
    // Nine decimal digits at a time, the last ones first.
    let mut groups = Vec::new();
    while magnitude.iter().any(|b| *b != 0) {
        let mut rest = 0u64;
        for b in magnitude.iter_mut().rev() {
            let now = rest << 8 | u64::from(*b);
            *b = (now / 1_000_000_000) as u8;
            rest = now % 1_000_000_000;
        }
        groups.push(rest);
    }
    let mut out = format!("{sign}{}", groups.pop().unwrap_or(0));
    groups.iter().rev().for_each(|g| out += &format!("{g:09}"));
    out
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Standard alphabet, padded.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * i) & 63) as usize];
            out.push(if i > group.len() { '=' } else { letter.into() });
        }
    }
    out
}

/// A list that is written while it is walked, so that a million chunks never lie in memory as JSON.
pub(crate) struct Seq<F>(pub(crate) F);

impl<F: Fn() -> I, I: IntoIterator<Item: Serialize>> Serialize for Seq<F> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq((self.0)())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_file_cannot_steer_the_terminal_in_json() {
        let odd = "a\u{9b}31m\u{202e}b\u{e0041}\u{7f}é\u{1b}";
        let mut out = Vec::new();
        write(&mut out, &json!({ odd: odd })).unwrap();
        let text = String::from_utf8(out).unwrap();
        let inert = r"a\u009b31m\u202eb\udb40\udc41\u007fé\u001b";
        assert_eq!(text, format!("{{\"{inert}\":\"{inert}\"}}\n"));
        assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), json!({ odd: odd }));
    }

    #[test]
    fn what_json_has_is_written_as_it_is() {
        let d = Value::Dict(vec![
            ("a".into(), Value::None),
            ("b".into(), vec![true.into(), Value::Int(i64::MIN), 1.5.into()].into()),
        ]);
        assert_eq!(value(&d).to_string(), r#"{"a":null,"b":[true,-9223372036854775808,1.5]}"#);
        assert_eq!(value(&Value::Float(-0.0)).to_string(), "-0.0");
    }

    #[test]
    fn what_json_lacks_is_tagged() {
        for (v, want) in [
            (Value::Tuple(vec![Value::Int(1)]), r#"{"$tuple":[1]}"#),
            (Value::Set(vec!["x".into()]), r#"{"$set":["x"]}"#),
            (Value::Bytes(b"\x00\xff"[..].to_vec().into()), r#"{"$bytes":"AP8="}"#),
            (Value::Float(f64::NAN), r#"{"$float":"nan"}"#),
            (Value::Float(f64::NEG_INFINITY), r#"{"$float":"-inf"}"#),
            (Value::Dict(vec![(Value::Int(0), "x".into())]), r#"{"$dict":[[0,"x"]]}"#),
            (Value::Dict(vec![("$tuple".into(), Value::None)]), r#"{"$dict":[["$tuple",null]]}"#),
            (Value::BigInt([0, 0, 0, 0, 0, 0, 0, 0, 1].into()), r#"{"$int":"18446744073709551616"}"#),
            (
                Value::BigInt([255, 255, 255, 255, 255, 255, 255, 255, 254].into()),
                r#"{"$int":"-18446744073709551617"}"#,
            ),
        ] {
            assert_eq!(value(&v).to_string(), want);
        }
    }

    #[test]
    fn large_ints_are_right_in_both_forms() {
        // 10^30
        let million = 1_000_000_000_000_000_000_000_000_000_000u128.to_le_bytes();
        assert_eq!(big_int(&million), "1000000000000000000000000000000");
        let mut long = vec![0; 600];
        long[599] = 1;
        assert_eq!(big_int(&long), format!("0x1{}", "00".repeat(599)));
    }

    #[test]
    fn base64_is_the_standard_one() {
        for (text, want) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(text.as_bytes()), want);
        }
    }

    #[test]
    fn objects_show_their_class_and_state() {
        let o = Opaque {
            module: "argparse".into(),
            name: "Namespace".into(),
            construct: Construct::NewObj(vec![]),
            state: Some(Value::Dict(vec![("lr".into(), 0.5.into())])),
            items: vec![],
            pairs: vec![],
        };
        let want = r#"{"$opaque":{"class":"argparse.Namespace","state":{"lr":0.5}}}"#;
        assert_eq!(value(&Value::Opaque(Box::new(o))).to_string(), want);
    }

    #[test]
    fn small_tensors_are_written_out_and_all_have_a_digest() {
        let t = Tensor::from_vec(&[3], vec![1f32, f32::INFINITY, -2.5]).unwrap();
        let j = &value(&t.into())["$tensor"];
        assert_eq!(j["data"].to_string(), r#"[1.0,{"$float":"inf"},-2.5]"#);
        assert_eq!((&j["dtype"], j["shape"].to_string()), (&json!("float32"), "[3]".into()));
        let big = Tensor::from_vec(&[64], vec![0u8; 64]).unwrap();
        let j = &value(&big.into())["$tensor"];
        assert_eq!(j["sha256"], hex(&Sha256::digest([0u8; 64])));
        assert!(j.get("data").is_none());
    }
}
