//! A spec, read; and its values.

use anyhow::{Context, Result, bail};
use reshard::{
    DType, Dialect, Region, Tensor, Value,
    model::{Path, Step},
};
use serde::Deserialize;
use serde_json::Value as Json;

#[derive(Debug, Deserialize)]
pub(crate) struct Spec {
    pub(crate) dialect: Dialect,
    pub(crate) tensors: Vec<TensorSpec>,
    #[serde(default)]
    pub(crate) values: Vec<ValueSpec>,
    #[serde(default)]
    pub(crate) objects: Vec<ObjectSpec>,
    #[serde(default)]
    pub(crate) common: serde_json::Map<String, Json>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct TensorSpec {
    #[serde(default)]
    path: Vec<Json>,
    #[serde(default)]
    key: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    seed: u64,
    pub(crate) write: Cut,
    pub(crate) read: Cut,
    #[serde(default)]
    pub(crate) prepend: usize,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ValueSpec {
    path: Vec<Json>,
    value: Json,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ObjectSpec {
    pub(crate) key: String,
    cells: Vec<Json>,
}

/// How a tensor is spread over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) enum Cut {
    Axis(usize),
    Replicate,
    Plain,
    /// So many cells along an axis; each rank has a range of the elements of each, or of one.
    Flattened {
        axis: usize,
        cells: u64,
        one: bool,
    },
}

impl TryFrom<Json> for Cut {
    type Error = String;
    fn try_from(j: Json) -> Result<Self, String> {
        match &j {
            Json::Number(n) => Ok(Self::Axis(n.as_u64().unwrap_or(0) as usize)),
            Json::String(s) if s == "replicate" => Ok(Self::Replicate),
            Json::String(s) if s == "plain" => Ok(Self::Plain),
            Json::Object(o) => {
                let one = o.contains_key("one_cell");
                let of = &j[if one { "one_cell" } else { "flat" }];
                match (of[0].as_u64(), of[1].as_u64()) {
                    (Some(axis), Some(cells)) => Ok(Self::Flattened {
                        axis: axis as usize,
                        cells,
                        one,
                    }),
                    _ => Err(format!("{j} is no cut")),
                }
            }
            _ => Err(format!("{j} is no cut")),
        }
    }
}

fn path(parts: &[Json]) -> Path {
    let step = |p: &Json| match p {
        Json::Number(n) => Step::Index(n.as_u64().unwrap_or(0)),
        p @ Json::Object(_) => Step::from(p["reshard"].as_str().unwrap_or_default()),
        p => Step::from(p.as_str().unwrap_or_default()),
    };
    Path(parts.iter().map(step).collect())
}

impl Spec {
    pub(crate) fn read(file: &std::path::Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("reading {}", file.display()))
    }
}

impl TensorSpec {
    /// Its place in the state dict; for Megatron's dialect that is free.
    pub(crate) fn path(&self) -> Path {
        if self.path.is_empty() {
            Path(vec![self.key.as_str().into()])
        } else {
            path(&self.path)
        }
    }

    /// Its key in the checkpoint.
    pub(crate) fn key(&self) -> String {
        if self.key.is_empty() {
            path(&self.path).to_string()
        } else {
            self.key.clone()
        }
    }

    /// A region of it in memory of its own.
    pub(crate) fn part(&self, region: &Region) -> Result<Tensor> {
        let whole = tensor(self.dtype, &self.shape, self.seed)?;
        Ok(Tensor::new(
            self.dtype,
            &region.lengths,
            whole.narrow(region).to_bytes().to_vec(),
        )?)
    }
}

impl ValueSpec {
    pub(crate) fn path(&self) -> Path {
        path(&self.path)
    }

    pub(crate) fn value(&self) -> Result<Value> {
        value(&self.value)
    }
}

impl ObjectSpec {
    pub(crate) fn cells(&self) -> Result<Vec<Value>> {
        self.cells.iter().map(value).collect()
    }
}

/// The whole tensor of a seed.
fn tensor(dtype: DType, shape: &[u64], seed: u64) -> Result<Tensor> {
    let bytes = shape.iter().product::<u64>() * dtype.size();
    let byte = |i: u64| {
        let b = ((i + 1).wrapping_add(seed << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
        if dtype == DType::Bool {
            b as u8 & 1
        } else {
            b as u8
        }
    };
    Ok(Tensor::new(
        dtype,
        shape,
        (0..bytes).map(byte).collect::<Vec<u8>>(),
    )?)
}

/// The value that tagged JSON means.
pub(crate) fn value(j: &Json) -> Result<Value> {
    Ok(match j {
        Json::Null => Value::None,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match n.as_i64() {
            Some(i) => Value::Int(i),
            None => Value::Float(n.as_f64().context("a number that is none")?),
        },
        Json::String(s) => Value::Str(s.as_str().into()),
        Json::Array(v) => Value::List(v.iter().map(value).collect::<Result<_>>()?),
        Json::Object(o) => match o.iter().next() {
            Some((tag, body)) if o.len() == 1 && tag.starts_with('$') => tagged(tag, body)?,
            _ => {
                let pair =
                    |(k, v): (&String, &Json)| Ok((Value::Str(k.as_str().into()), value(v)?));
                Value::Dict(o.iter().map(pair).collect::<Result<_>>()?)
            }
        },
    })
}

fn tagged(tag: &str, body: &Json) -> Result<Value> {
    let list = || body.as_array().context("a tag without its list");
    let text = || body.as_str().context("a tag without its text");
    Ok(match tag {
        "$tuple" => Value::Tuple(list()?.iter().map(value).collect::<Result<_>>()?),
        "$bytes" => Value::Bytes(base64(text()?)?.into()),
        "$float" => Value::Float(text()?.parse()?),
        "$int" => big(text()?)?,
        "$dict" => {
            let pair = |p: &Json| match p.as_array().map(Vec::as_slice) {
                Some([k, v]) => Ok((value(k)?, value(v)?)),
                _ => bail!("a pair that is none"),
            };
            Value::Dict(list()?.iter().map(pair).collect::<Result<_>>()?)
        }
        "$tensor" => {
            #[derive(Deserialize)]
            struct Whole {
                dtype: DType,
                shape: Vec<u64>,
                seed: u64,
            }
            let w: Whole = serde_json::from_value(body.clone())?;
            Value::Tensor(tensor(w.dtype, &w.shape, w.seed)?)
        }
        _ => bail!("unknown tag {tag}"),
    })
}

fn base64(text: &str) -> Result<Vec<u8>> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut out, mut bits, mut n) = (Vec::new(), 0u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        let digit = DIGITS.iter().position(|d| *d == c).context("no base64")? as u32;
        (bits, n) = (bits << 6 | digit, n + 6);
        if n >= 8 {
            n -= 8;
            out.push((bits >> n) as u8);
        }
    }
    Ok(out)
}

/// A decimal int beyond 64 bits, as two's complement.
fn big(text: &str) -> Result<Value> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |d| (true, d));
    let mut le: Vec<u8> = Vec::new();
    for c in digits.chars() {
        let mut carry = c.to_digit(10).context("no decimal")?;
        for b in &mut le {
            carry += u32::from(*b) * 10;
            *b = carry as u8;
            carry >>= 8;
        }
        if carry > 0 {
            le.push(carry as u8);
        }
    }
    le.push(0);
    if negative {
        let mut carry = true;
        for b in &mut le {
            let (v, c) = (!*b).overflowing_add(u8::from(carry));
            (*b, carry) = (v, c);
        }
    }
    // As short as it can be.
    while let [.., a, b] = le[..]
        && ((b == 0 && a < 0x80) || (b == 0xff && a >= 0x80))
    {
        le.pop();
    }
    Ok(Value::BigInt(le.into()))
}
