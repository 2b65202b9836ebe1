use crate::{DeviceTensor, LocalNonpersistent, Tensor};
use bytes::Bytes;

/// Data as Python programs keep it in checkpoints: a finite tree. Nothing in it is ever executed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Value {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An int of up to 64 bits.
    Int(i64),
    /// A larger int: two's complement, little-endian, in as few bytes as possible.
    BigInt(Box<[u8]>),
    /// A float, bit for bit.
    Float(f64),
    /// A str.
    Str(Box<str>),
    /// Bytes.
    Bytes(Bytes),
    /// A list.
    List(Vec<Value>),
    /// A tuple.
    Tuple(Vec<Value>),
    /// A set, in stored order.
    Set(Vec<Value>),
    /// A dict with keys of any kind, in stored order.
    Dict(Vec<(Value, Value)>),
    /// A tensor in host memory.
    Tensor(Tensor),
    /// A tensor in device memory. It occurs in templates and loaded state only, never inside a stored object.
    Device(DeviceTensor),
    /// An object of an unknown class. It is shown, kept and written back, but never executed.
    Opaque(Box<Opaque>),
    /// The value of a [`LocalNonpersistent`] leaf. It occurs in loaded state only, never in a file.
    Local(LocalNonpersistent),
}

/// How Python would make an [`Opaque`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Construct {
    /// It is the class or function itself.
    Global,
    /// `class(*args)`.
    Reduce(Vec<Value>),
    /// `class.__new__(class, *args)`.
    NewObj(Vec<Value>),
    /// `class.__new__(class, *args, **kwargs)`.
    NewObjEx(Vec<Value>, Vec<(Value, Value)>),
}

/// An object of an unknown class: how Python would make it, and what Python would then put into it.
#[derive(Clone, Debug, PartialEq)]
pub struct Opaque {
    /// Python module of the class, `argparse`.
    pub module: Box<str>,
    /// Qualified name in the module, `Namespace`.
    pub name: Box<str>,
    /// How it is made.
    pub construct: Construct,
    /// The argument of `__setstate__`, or the update of `__dict__`.
    pub state: Option<Value>,
    /// The elements to append or add, for subclasses of list and set.
    pub items: Vec<Value>,
    /// The items to set, for subclasses of dict.
    pub pairs: Vec<(Value, Value)>,
}

impl Opaque {
    /// `module.name`.
    pub fn class(&self) -> String {
        format!("{}.{}", self.module, self.name)
    }
}

impl Value {
    /// The int, if it is one of up to 64 bits.
    pub fn as_int(&self) -> Option<i64> {
        if let Self::Int(i) = self {
            Some(*i)
        } else {
            None
        }
    }

    /// The float, if it is one.
    pub fn as_float(&self) -> Option<f64> {
        if let Self::Float(f) = self {
            Some(*f)
        } else {
            None
        }
    }

    /// The text, if it is a str.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(s) = self {
            Some(s)
        } else {
            None
        }
    }

    /// The tensor, if it is one in host memory.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        if let Self::Tensor(t) = self {
            Some(t)
        } else {
            None
        }
    }

    /// The tensor, if it is one in host memory.
    pub fn into_tensor(self) -> Option<Tensor> {
        if let Self::Tensor(t) = self {
            Some(t)
        } else {
            None
        }
    }

    /// The elements of a list or tuple.
    pub fn as_seq(&self) -> Option<&[Self]> {
        match self {
            Self::List(v) | Self::Tuple(v) => Some(v),
            _ => None,
        }
    }

    /// The value of a str key of a dict, or of an object's state.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let (pairs, state) = match self {
            Self::Dict(d) => (d, None),
            Self::Opaque(o) => (&o.pairs, o.state.as_ref()),
            _ => return None,
        };
        let found = pairs.iter().find(|(k, _)| k.as_str() == Some(key));
        found.map_or_else(|| state?.get(key), |(_, v)| Some(v))
    }

    /// Calls `f` with this value, then with each value inside it: elements, keys and values of dicts, and all parts of objects.
    pub fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Self)) {
        f(self);
        match self {
            Self::List(v) | Self::Tuple(v) | Self::Set(v) => visit(v, f),
            Self::Dict(d) => visit_pairs(d, f),
            Self::Opaque(o) => {
                match &mut o.construct {
                    Construct::Global => {}
                    Construct::Reduce(args) | Construct::NewObj(args) => visit(args, f),
                    Construct::NewObjEx(args, kwargs) => {
                        visit(args, f);
                        visit_pairs(kwargs, f);
                    }
                }
                o.state.iter_mut().for_each(|state| state.visit_mut(f));
                visit(&mut o.items, f);
                visit_pairs(&mut o.pairs, f);
            }
            _ => {}
        }
    }

    /// Python's name of its type.
    pub fn type_name(&self) -> String {
        match self {
            Self::None => "NoneType".into(),
            Self::Bool(_) => "bool".into(),
            Self::Int(_) | Self::BigInt(_) => "int".into(),
            Self::Float(_) => "float".into(),
            Self::Str(_) => "str".into(),
            Self::Bytes(_) => "bytes".into(),
            Self::List(_) => "list".into(),
            Self::Tuple(_) => "tuple".into(),
            Self::Set(_) => "set".into(),
            Self::Dict(_) => "dict".into(),
            Self::Tensor(_) | Self::Device(_) => "torch.Tensor".into(),
            Self::Opaque(o) => o.class(),
            Self::Local(_) => "local".into(),
        }
    }
}

fn visit(values: &mut [Value], f: &mut dyn FnMut(&mut Value)) {
    values.iter_mut().for_each(|v| v.visit_mut(f));
}

fn visit_pairs(pairs: &mut [(Value, Value)], f: &mut dyn FnMut(&mut Value)) {
    for (key, value) in pairs {
        key.visit_mut(f);
        value.visit_mut(f);
    }
}

/// Values are compared by content. Floats are compared by their bits, so a NaN equals itself. Local objects are compared by
/// identity.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::BigInt(a), Self::BigInt(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::List(a), Self::List(b))
            | (Self::Tuple(a), Self::Tuple(b))
            | (Self::Set(a), Self::Set(b)) => a == b,
            (Self::Dict(a), Self::Dict(b)) => a == b,
            (Self::Tensor(a), Self::Tensor(b)) => a == b,
            (Self::Device(a), Self::Device(b)) => {
                std::sync::Arc::ptr_eq(a.buffer(), b.buffer())
                    && (a.dtype(), a.layout()) == (b.dtype(), b.layout())
            }
            (Self::Opaque(a), Self::Opaque(b)) => a == b,
            (Self::Local(a), Self::Local(b)) => std::sync::Arc::ptr_eq(&a.0, &b.0),
            _ => false,
        }
    }
}

macro_rules! from {
    ($($t:ty => |$v:ident| $e:expr,)*) => {$(
        impl From<$t> for Value { fn from($v: $t) -> Self { $e } }
    )*};
}

from! {
    bool => |v| Self::Bool(v),
    i64 => |v| Self::Int(v),
    i32 => |v| Self::Int(v.into()),
    u32 => |v| Self::Int(v.into()),
    f64 => |v| Self::Float(v),
    f32 => |v| Self::Float(v.into()),
    u64 => |v| match i64::try_from(v) {
        Ok(v) => Self::Int(v),
        // Two's complement: a ninth byte says that it is not negative.
        Err(_) => Self::BigInt(v.to_le_bytes().into_iter().chain([0]).collect()),
    },
    usize => |v| (v as u64).into(),
    &str => |v| Self::Str(v.into()),
    String => |v| Self::Str(v.into()),
    Bytes => |v| Self::Bytes(v),
    Tensor => |v| Self::Tensor(v),
    Vec<Value> => |v| Self::List(v),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, testkit::FakeDevice};

    #[test]
    fn ints_that_need_64_bits_without_a_sign_are_large_ones() {
        assert_eq!(Value::from(7u64), Value::Int(7));
        assert_eq!(Value::from(7usize), Value::Int(7));
        let bytes = [[0xff; 8].as_slice(), &[0]].concat();
        assert_eq!(Value::from(u64::MAX), Value::BigInt(bytes.into()));
        assert_eq!(Value::from(0.5f32), Value::Float(0.5));
    }

    #[test]
    fn views_of_one_device_buffer_are_equal_when_they_show_the_same() {
        let whole = DeviceTensor::new(DType::UInt8, &[4], FakeDevice::new(4)).unwrap();
        let view = |from| Value::Device(whole.narrow(&crate::Region::new([from], [2])));
        assert_eq!(view(0), view(0));
        assert_ne!(view(0), view(2));
    }

    #[test]
    fn values_are_equal_by_content_and_floats_by_bits() {
        let nan = Value::Float(f64::NAN);
        assert_eq!(nan, nan.clone());
        assert_ne!(Value::Float(0.0), Value::Float(-0.0));
        assert_ne!(Value::Int(1), Value::Bool(true));
        assert_ne!(Value::List(vec![]), Value::Tuple(vec![]));
        let tensor = |v| Value::Tensor(Tensor::from_vec(&[2], v).unwrap());
        assert_eq!(tensor(vec![1u8, 2]), tensor(vec![1, 2]));
        assert_ne!(tensor(vec![1u8, 2]), tensor(vec![1, 3]));
    }

    #[test]
    fn every_value_in_a_value_is_visited_once() {
        let object = |construct| {
            Value::Opaque(Box::new(Opaque {
                module: "m".into(),
                name: "C".into(),
                construct,
                state: Some(Value::Int(1)),
                items: vec![Value::Int(2)],
                pairs: vec![(Value::Int(3), Value::Int(4))],
            }))
        };
        let mut value = Value::Dict(vec![
            (
                Value::Int(5),
                Value::List(vec![Value::Int(6), object(Construct::Global)]),
            ),
            (
                Value::Tuple(vec![Value::Int(7)]),
                object(Construct::Reduce(vec![Value::Int(8)])),
            ),
            ("new".into(), object(Construct::NewObj(vec![Value::Int(9)]))),
            (
                "ex".into(),
                object(Construct::NewObjEx(
                    vec![Value::Set(vec![Value::Int(10)])],
                    vec![(Value::Int(11), Value::Int(12))],
                )),
            ),
        ]);
        let mut sum = 0;
        value.visit_mut(&mut |v| {
            if let Value::Int(i) = v {
                sum += *i;
                *i = 0;
            }
        });
        assert_eq!(sum, 4 * (1 + 2 + 3 + 4) + (5..=12).sum::<i64>());
        value.visit_mut(&mut |v| assert!(!matches!(v, Value::Int(1..))));
    }

    #[test]
    fn local_and_device_values_are_equal_by_identity() {
        let local = Value::Local(LocalNonpersistent::new(1));
        assert_eq!(local, local.clone());
        assert_ne!(local, Value::Local(LocalNonpersistent::new(1)));
        let device =
            || Value::Device(DeviceTensor::new(DType::UInt8, &[1], FakeDevice::new(1)).unwrap());
        let one = device();
        assert_eq!(one, one.clone());
        assert_ne!(one, device());
    }

    #[test]
    fn keys_are_found_in_dicts_and_in_objects() {
        let dict =
            |k: &str, v: i64| Value::Dict(vec![(Value::Int(0), Value::None), (k.into(), v.into())]);
        assert_eq!(dict("a", 1).get("a"), Some(&Value::Int(1)));
        assert_eq!(dict("a", 1).get("b"), None);
        let object = |state, pairs| {
            let (module, name) = ("argparse".into(), "Namespace".into());
            let construct = Construct::NewObj(vec![]);
            Value::Opaque(Box::new(Opaque {
                module,
                name,
                construct,
                state,
                items: vec![],
                pairs,
            }))
        };
        let o = object(Some(dict("a", 1)), vec![("b".into(), Value::Int(2))]);
        assert_eq!(
            (o.get("a"), o.get("b")),
            (Some(&Value::Int(1)), Some(&Value::Int(2)))
        );
        assert_eq!(o.type_name(), "argparse.Namespace");
        assert_eq!(object(None, vec![]).get("a"), None);
    }

    #[test]
    fn a_value_tells_what_it_is() {
        let t = Tensor::from_vec(&[1], vec![1u8]).unwrap();
        let all = [
            (Value::None, "NoneType"),
            (true.into(), "bool"),
            (3u32.into(), "int"),
            (Value::BigInt(vec![0; 9].into()), "int"),
            (1.5.into(), "float"),
            ("x".into(), "str"),
            (Bytes::new().into(), "bytes"),
            (vec![Value::None].into(), "list"),
            (Value::Tuple(vec![]), "tuple"),
            (Value::Set(vec![]), "set"),
            (Value::Dict(vec![]), "dict"),
            (t.clone().into(), "torch.Tensor"),
        ];
        for (v, name) in &all {
            assert_eq!(v.type_name(), *name);
        }
        assert_eq!(all[2].0.as_int(), Some(3));
        assert_eq!(all[4].0.as_float(), Some(1.5));
        assert_eq!(all[5].0.as_str(), Some("x"));
        assert_eq!(all[7].0.as_seq().map(<[_]>::len), Some(1));
        assert_eq!(all[8].0.as_seq(), Some(&[][..]));
        assert_eq!(all[11].0.as_tensor(), Some(&t));
        assert_eq!(all[11].0.clone().into_tensor(), Some(t));
        assert!(
            all[0].0.as_int().is_none()
                && all[0].0.as_tensor().is_none()
                && all[0].0.as_seq().is_none()
        );
    }
}
