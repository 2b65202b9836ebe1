//! Python's values as JSON. What JSON can't say is tagged: an object with one member whose name starts with `$`.
//! `docs/cli.md` lists the tags.

mod ints;

use crate::{error::Result as CliResult, table::steers};
use base64::{display::Base64Display, engine::general_purpose::STANDARD};
use reshard::{
    DType, Tensor, Value,
    blocking::Checkpoint,
    model::{Cast, Construct, Element, Opaque},
    strategy::hex,
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use std::io::{self, Write};

/// Writes a line of JSON that can't steer a terminal.
pub(crate) fn write(out: &mut dyn Write, value: &(impl Serialize + ?Sized)) -> CliResult<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(
        &mut *out, Inert,
    ))?;
    Ok(writeln!(out)?)
}

/// Writes the JSON of a report about checkpoints, with their warnings as `notes`.
pub(crate) fn write_about(
    out: &mut dyn Write,
    checkpoints: &[&Checkpoint],
    report: &impl Serialize,
) -> CliResult<()> {
    #[derive(Serialize)]
    struct WithNotes<'r, R> {
        #[serde(flatten)]
        report: &'r R,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
    }
    let notes = checkpoints.iter().flat_map(|c| warnings(c)).collect();
    write(out, &WithNotes { report, notes })
}

/// Warnings about a checkpoint, each with its place.
pub(crate) fn warnings(of: &Checkpoint) -> Vec<String> {
    let all = of.producer().warnings.into_iter();
    all.map(|what| format!("{}: {what}", of.url())).collect()
}

/// Compact, and what text for people escapes is escaped in strings too.
struct Inert;

impl serde_json::ser::Formatter for Inert {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        text: &str,
    ) -> io::Result<()> {
        // Most text is such, and there may be a gigabyte of it.
        if text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            return out.write_all(text.as_bytes());
        }
        let mut rest = text;
        while let Some(at) = rest.find(steers) {
            out.write_all(&rest.as_bytes()[..at])?;
            let mut behind = rest[at..].chars();
            for unit in behind
                .next()
                .into_iter()
                .flat_map(|c| c.encode_utf16(&mut [0; 2]).to_vec())
            {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = behind.as_str();
        }
        out.write_all(rest.as_bytes())
    }
}

/// Tensors up to so many elements are written out.
const SMALL: u64 = 32;

/// A value, tagged where needed. It is written while it is walked, so that a large one never lies in memory as JSON.
pub(crate) fn value(v: &Value) -> impl Serialize {
    InJson(v)
}

/// A value in a line.
pub(crate) fn text(v: &Value) -> String {
    // Only a map with keys that are no text fails, and there is none.
    serde_json::to_string(&value(v)).unwrap_or_default()
}

struct InJson<'v>(&'v Value);

impl Serialize for InJson<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::None => s.serialize_unit(),
            Value::Bool(b) => s.serialize_bool(*b),
            Value::Int(i) => s.serialize_i64(*i),
            Value::BigInt(bytes) => tagged(s, "$int", &ints::text(bytes)),
            Value::Float(f) => Float(*f).serialize(s),
            Value::Str(v) => s.serialize_str(v),
            Value::Bytes(b) => tagged(s, "$bytes", &Base64(b)),
            Value::List(v) => list(v).serialize(s),
            Value::Tuple(v) => tagged(s, "$tuple", &list(v)),
            Value::Set(v) => tagged(s, "$set", &list(v)),
            Value::Dict(d) if is_plain(d) => s.collect_map(
                d.iter()
                    .map(|(k, v)| (k.as_str().unwrap_or_default(), InJson(v))),
            ),
            Value::Dict(d) => tagged(s, "$dict", &pairs(d)),
            Value::Tensor(t) => tagged(s, "$tensor", &Digested(t)),
            Value::Opaque(o) => tagged(s, "$opaque", &Object(o)),
            other => tagged(s, "$opaque", &json!({ "class": other.type_name() })),
        }
    }
}

fn tagged<S: Serializer>(
    s: S,
    tag: &'static str,
    value: &impl Serialize,
) -> Result<S::Ok, S::Error> {
    let mut m = s.serialize_map(Some(1))?;
    m.serialize_entry(tag, value)?;
    m.end()
}

fn list(v: &[Value]) -> impl Serialize {
    Seq(move || v.iter().map(InJson))
}

fn pairs(v: &[(Value, Value)]) -> impl Serialize {
    Seq(move || v.iter().map(|(k, v)| (InJson(k), InJson(v))))
}

/// Whether all keys are strs that can't be taken for a tag, each of them once.
fn is_plain(d: &[(Value, Value)]) -> bool {
    /// Of so few keys each is compared with each.
    const FEW: usize = 8;
    let keys = || {
        d.iter()
            .filter_map(|(k, _)| k.as_str().filter(|k| !k.starts_with('$')))
    };
    if keys().count() != d.len() {
        return false;
    }
    if d.len() <= FEW {
        return keys()
            .enumerate()
            .all(|(i, k)| keys().take(i).all(|before| before != k));
    }
    let mut sorted: Vec<&str> = keys().collect();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

/// A float. JSON has no number for some of them.
pub(crate) struct Float(pub(crate) f64);

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let name = match self.0 {
            f if f.is_nan() => "nan",
            f64::INFINITY => "inf",
            f64::NEG_INFINITY => "-inf",
            f => return s.serialize_f64(f),
        };
        tagged(s, "$float", &name)
    }
}

struct Object<'v>(&'v Opaque);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let o = self.0;
        let mut m = s.serialize_map(None)?;
        m.serialize_entry("class", &o.class())?;
        match &o.construct {
            Construct::Global => m.serialize_entry("global", &true)?,
            Construct::Reduce(args) | Construct::NewObj(args) if args.is_empty() => {}
            Construct::Reduce(args) | Construct::NewObj(args) => {
                m.serialize_entry("args", &list(args))?
            }
            Construct::NewObjEx(args, kwargs) => {
                m.serialize_entry("args", &list(args))?;
                m.serialize_entry("kwargs", &pairs(kwargs))?;
            }
            _ => {}
        }
        if let Some(state) = &o.state {
            m.serialize_entry("state", &InJson(state))?;
        }
        if !o.items.is_empty() {
            m.serialize_entry("items", &list(&o.items))?;
        }
        if !o.pairs.is_empty() {
            m.serialize_entry("pairs", &pairs(&o.pairs))?;
        }
        m.end()
    }
}

/// Adds the elements of a tensor, row-major.
pub(crate) fn hash(hasher: &mut Sha256, tensor: &Tensor) {
    tensor.blocks(1 << 20).for_each(|b| hasher.update(&b));
}

/// A tensor by its digest, with its elements if they are few.
struct Digested<'v>(&'v Tensor);

impl Serialize for Digested<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let t = self.0;
        let mut hasher = Sha256::new();
        hash(&mut hasher, t);
        let mut m = s.serialize_map(None)?;
        m.serialize_entry("dtype", t.dtype().name())?;
        m.serialize_entry("shape", &**t.shape())?;
        m.serialize_entry("sha256", &hex(&hasher.finalize()))?;
        if t.shape().volume().is_some_and(|n| n <= SMALL)
            && let Some(all) = numbers(t)
        {
            m.serialize_entry("data", &all)?;
        }
        m.end()
    }
}

/// Whether elements are integers that fit 64 bits with a sign.
pub(crate) fn are_ints(dtype: DType) -> bool {
    dtype != DType::Bool && Cast::Lossless.allows(dtype, DType::Int64)
}

/// The elements in row-major order, cast to a type.
pub(crate) fn elements<T: Element>(t: &Tensor) -> Option<Vec<T>> {
    t.cast(T::DTYPE).ok()?.to_vec().ok()
}

/// The elements in row-major order, if JSON has numbers for their type.
pub(crate) fn numbers(t: &Tensor) -> Option<Vec<Json>> {
    fn all<T: Element, J: Serialize>(t: &Tensor, json: impl Fn(T) -> J) -> Option<Vec<Json>> {
        let all = elements(t)?.into_iter();
        all.map(|x| serde_json::to_value(json(x)).ok()).collect()
    }
    match t.dtype() {
        DType::Bool => all(t, |is: bool| is),
        DType::UInt64 => all(t, |n: u64| n),
        int if are_ints(int) => all(t, |n: i64| n),
        float if float.is_float() => all(t, Float),
        complex if complex.is_complex() => all(t, |parts: [f64; 2]| parts.map(Float)),
        _ => None,
    }
}

/// Bytes in base64, which is written while it is made: it is longer than the bytes.
struct Base64<'b>(&'b [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
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
        assert_eq!(
            serde_json::from_str::<Json>(&text).unwrap(),
            json!({ odd: odd })
        );
    }

    #[test]
    fn what_json_has_is_written_as_it_is() {
        let d = Value::Dict(vec![
            ("a".into(), Value::None),
            (
                "b".into(),
                vec![true.into(), Value::Int(i64::MIN), 1.5.into()].into(),
            ),
        ]);
        assert_eq!(
            text(&d),
            r#"{"a":null,"b":[true,-9223372036854775808,1.5]}"#
        );
        assert_eq!(text(&Value::Float(-0.0)), "-0.0");
    }

    #[test]
    fn what_json_lacks_is_tagged() {
        for (v, want) in [
            (Value::Tuple(vec![Value::Int(1)]), r#"{"$tuple":[1]}"#),
            (Value::Set(vec!["x".into()]), r#"{"$set":["x"]}"#),
            (
                Value::Bytes(b"\x00\xff"[..].to_vec().into()),
                r#"{"$bytes":"AP8="}"#,
            ),
            (Value::Float(f64::NAN), r#"{"$float":"nan"}"#),
            (Value::Float(f64::NEG_INFINITY), r#"{"$float":"-inf"}"#),
            (
                Value::Dict(vec![(Value::Int(0), "x".into())]),
                r#"{"$dict":[[0,"x"]]}"#,
            ),
            (
                Value::Dict(vec![("$tuple".into(), Value::None)]),
                r#"{"$dict":[["$tuple",null]]}"#,
            ),
            (
                Value::BigInt([0, 0, 0, 0, 0, 0, 0, 0, 1].into()),
                r#"{"$int":"18446744073709551616"}"#,
            ),
            (
                Value::BigInt([255, 255, 255, 255, 255, 255, 255, 255, 254].into()),
                r#"{"$int":"-18446744073709551617"}"#,
            ),
        ] {
            assert_eq!(text(&v), want);
        }
    }

    #[test]
    fn base64_is_the_standard_one() {
        for (text, want) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(json!(Base64(text.as_bytes())), json!(want));
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
        assert_eq!(text(&Value::Opaque(Box::new(o))), want);
    }

    #[test]
    fn small_tensors_are_written_out_and_all_have_a_digest() {
        let t = Tensor::from_vec(&[3], vec![1f32, f32::INFINITY, -2.5]).unwrap();
        let j = &serde_json::to_value(value(&t.into())).unwrap()["$tensor"];
        assert_eq!(j["data"].to_string(), r#"[1.0,{"$float":"inf"},-2.5]"#);
        assert_eq!(
            (&j["dtype"], j["shape"].to_string()),
            (&json!("float32"), "[3]".into())
        );
        let big = Tensor::from_vec(&[64], vec![0u8; 64]).unwrap();
        let j = &serde_json::to_value(value(&big.into())).unwrap()["$tensor"];
        assert_eq!(j["sha256"], hex(&Sha256::digest([0u8; 64])));
        assert!(j.get("data").is_none());
    }
}
