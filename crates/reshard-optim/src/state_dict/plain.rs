//! Values that can be sent to other ranks.

use reshard_model::Value;
use serde::{Deserialize, Serialize};

/// A value without tensors and objects of unknown classes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Sendable {
    None,
    Bool(bool),
    Int(i64),
    BigInt(Vec<u8>),
    /// Bit for bit.
    Float(u64),
    Str(String),
    Bytes(Vec<u8>),
    List(Vec<Sendable>),
    Tuple(Vec<Sendable>),
    Set(Vec<Sendable>),
    Dict(Vec<(Sendable, Sendable)>),
}

impl Sendable {
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

impl From<Sendable> for Value {
    fn from(plain: Sendable) -> Self {
        let all = |v: Vec<Sendable>| v.into_iter().map(Self::from).collect();
        match plain {
            Sendable::None => Self::None,
            Sendable::Bool(b) => Self::Bool(b),
            Sendable::Int(i) => Self::Int(i),
            Sendable::BigInt(b) => Self::BigInt(b.into()),
            Sendable::Float(bits) => Self::Float(f64::from_bits(bits)),
            Sendable::Str(s) => Self::Str(s.into()),
            Sendable::Bytes(b) => Self::Bytes(b.into()),
            Sendable::List(v) => Self::List(all(v)),
            Sendable::Tuple(v) => Self::Tuple(all(v)),
            Sendable::Set(v) => Self::Set(all(v)),
            Sendable::Dict(d) => {
                Self::Dict(d.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
            }
        }
    }
}
