//! Values that can be sent to other ranks.

use reshard_model::Value;
use serde::{Deserialize, Serialize};

/// A value without tensors and objects of unknown classes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Plain {
    None,
    Bool(bool),
    Int(i64),
    BigInt(Vec<u8>),
    /// Bit for bit.
    Float(u64),
    Str(String),
    Bytes(Vec<u8>),
    List(Vec<Plain>),
    Tuple(Vec<Plain>),
    Set(Vec<Plain>),
    Dict(Vec<(Plain, Plain)>),
}

impl Plain {
    /// `None` if there is something else in the value.
    pub(super) fn of(value: &Value) -> Option<Self> {
        let all = |v: &[Value]| v.iter().map(Self::of).collect::<Option<Vec<_>>>();
        Some(match value {
            Value::None => Self::None,
            Value::Bool(b) => Self::Bool(*b),
            Value::Int(i) => Self::Int(*i),
            Value::BigInt(b) => Self::BigInt(b.to_vec()),
            Value::Float(f) => Self::Float(f.to_bits()),
            Value::Str(s) => Self::Str(s.to_string()),
            Value::Bytes(b) => Self::Bytes(b.to_vec()),
            Value::List(v) => Self::List(all(v)?),
            Value::Tuple(v) => Self::Tuple(all(v)?),
            Value::Set(v) => Self::Set(all(v)?),
            Value::Dict(d) => {
                let pairs = d.iter().map(|(k, v)| Some((Self::of(k)?, Self::of(v)?)));
                Self::Dict(pairs.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }
}

impl From<Plain> for Value {
    fn from(plain: Plain) -> Self {
        let all = |v: Vec<Plain>| v.into_iter().map(Self::from).collect();
        match plain {
            Plain::None => Self::None,
            Plain::Bool(b) => Self::Bool(b),
            Plain::Int(i) => Self::Int(i),
            Plain::BigInt(b) => Self::BigInt(b.into()),
            Plain::Float(bits) => Self::Float(f64::from_bits(bits)),
            Plain::Str(s) => Self::Str(s.into()),
            Plain::Bytes(b) => Self::Bytes(b.into()),
            Plain::List(v) => Self::List(all(v)),
            Plain::Tuple(v) => Self::Tuple(all(v)),
            Plain::Set(v) => Self::Set(all(v)),
            Plain::Dict(d) => {
                Self::Dict(d.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
            }
        }
    }
}
