//! Objects as entries: strings, types without a counterpart, and values that no tensor of TensorFlow can be.

use crate::{
    dtype::{self, Enum, Kind, STRING},
    record::Form,
    strings::{self, Order},
    varint,
};
use bytes::Bytes;
use reshard_model::{BoxError, Construct, Dims, ObjectCodec, Opaque, Value};
use reshard_torch_format::TorchSave;

/// The Python module that opaque objects name.
const MODULE: &str = "tensorflow";

/// Lists of strings have at most so many axes. More become opaque.
const MAX_LISTS: usize = 32;

/// Numbers of types that a number has as an entry.
const FLOAT64: Enum = 2;
const UINT8: Enum = 4;
const INT64: Enum = 9;
const BOOL: Enum = 10;

/// An entry that is no tensor here, with its bytes, little-endian.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub(crate) form: Form,
    pub(crate) dtype: Enum,
    pub(crate) shape: Dims,
    pub(crate) stored: Bytes,
}

impl Object {
    fn string(form: Form, string: &[u8]) -> Self {
        Self {
            form,
            dtype: STRING,
            shape: Dims::default(),
            stored: strings::encode([string].into_iter()).0.into(),
        }
    }

    fn number(dtype: Enum, stored: &[u8]) -> Self {
        Self {
            form: Form::Number,
            dtype,
            shape: Dims::default(),
            stored: Bytes::copy_from_slice(stored),
        }
    }

    /// Zeros.
    pub(crate) fn blank(bytes: u64) -> Self {
        Self {
            form: Form::Stored,
            dtype: UINT8,
            shape: [bytes].into(),
            stored: vec![0; usize::try_from(bytes).unwrap_or_default()].into(),
        }
    }

    /// As the codec encodes it: what the entry says, and then the bytes.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut out = vec![self.form as u8];
        varint::put(&mut out, self.dtype as u64);
        varint::put(&mut out, self.shape.len() as u64);
        self.shape.iter().for_each(|n| varint::put(&mut out, *n));
        out.extend(&self.stored);
        out.into()
    }

    /// `None` if the bytes are of no such object.
    pub(crate) fn parse(bytes: &Bytes) -> Option<Self> {
        let (form, mut rest) = bytes.split_first()?;
        let form = *Form::ALL.get(usize::from(*form))?;
        let dtype = Enum::try_from(varint::take(&mut rest)?).ok()?;
        let axes = varint::take(&mut rest)?;
        let mut shape = Dims::default();
        for _ in 0..usize::try_from(axes)
            .ok()
            .filter(|n| *n <= crate::entry::MAX_AXES)?
        {
            shape.push(varint::take(&mut rest)?);
        }
        shape.volume()?;
        let stored = bytes.slice(bytes.len() - rest.len()..);
        Some(Self {
            form,
            dtype,
            shape,
            stored,
        })
    }

    fn elements(&self) -> Result<u64, String> {
        let elements = self.shape.volume();
        elements.ok_or_else(|| "its shape has too many elements".into())
    }

    /// The strings, if it is a string tensor.
    fn strings(&self) -> Result<Vec<Bytes>, String> {
        let found = strings::decode(&self.stored, self.elements()?, Order::Little)?;
        Ok(found
            .places
            .into_iter()
            .map(|at| self.stored.slice(at))
            .collect())
    }

    /// The checksum of its entry. The error says why it can't be an entry.
    pub(crate) fn crc(&self) -> Result<u32, String> {
        let elements = self.elements()?;
        match Kind::of(self.dtype) {
            Some(Kind::Strings) => Ok(strings::decode(&self.stored, elements, Order::Little)?.crc),
            Some(Kind::Variant) => crate::variant::check(&self.stored, elements, Order::Little),
            Some(kind) => match kind.item().and_then(|item| item.checked_mul(elements)) {
                Some(bytes) if bytes == self.stored.len() as u64 => {
                    Ok(crc32c::crc32c(&self.stored))
                }
                _ => Err(format!(
                    "it has {} bytes, which is not what {elements} elements take",
                    self.stored.len()
                )),
            },
            None => Err(format!(
                "{} is no type of a stored tensor",
                dtype::name(self.dtype)
            )),
        }
    }
}

/// How objects of a bundle become values, and the other way round.
#[derive(Debug, Default)]
pub(crate) struct Codec {
    pub(crate) torch: TorchSave,
}

/// The name of the codec.
pub(crate) const CODEC: &str = "tensor_bundle";

impl ObjectCodec for Codec {
    fn name(&self) -> &'static str {
        CODEC
    }

    fn decode(&self, bytes: &Bytes) -> Result<Value, BoxError> {
        let object = Object::parse(bytes).ok_or("these bytes are no object of a bundle")?;
        let one = || -> Result<Bytes, String> {
            object
                .strings()?
                .pop()
                .ok_or_else(|| "it has no string".into())
        };
        Ok(match (object.form, object.dtype) {
            (Form::Bytes, STRING) => Value::Bytes(one()?),
            (Form::TorchSave, STRING) => return self.torch.decode(&one()?),
            (Form::Number, dtype) => number(dtype, &object.stored).ok_or("it is no number")?,
            (Form::Stored, STRING) if is_list(&object.shape) => {
                let mut strings = object.strings()?.into_iter();
                lists(&object.shape, &mut strings)
                    .ok_or("it has fewer strings than its shape says")?
            }
            _ => opaque(&object),
        })
    }

    fn encode(&self, value: &Value) -> Result<Bytes, BoxError> {
        Ok(match value {
            Value::Int(n) => Object::number(INT64, &n.to_le_bytes()),
            Value::Float(n) => Object::number(FLOAT64, &n.to_le_bytes()),
            Value::Bool(n) => Object::number(BOOL, &[u8::from(*n)]),
            Value::Bytes(bytes) if std::str::from_utf8(bytes).is_ok() => {
                Object::string(Form::Bytes, bytes)
            }
            Value::Opaque(opaque) if of_opaque(opaque).is_some() => {
                of_opaque(opaque).ok_or("it is no object of a bundle")?
            }
            value => match of_lists(value) {
                Some((shape, strings)) => Object {
                    form: Form::Stored,
                    dtype: STRING,
                    shape,
                    stored: strings::encode(strings.into_iter()).0.into(),
                },
                None => Object::string(Form::TorchSave, &self.torch.encode(value)?),
            },
        }
        .to_bytes())
    }
}

fn number(dtype: Enum, stored: &[u8]) -> Option<Value> {
    Some(match dtype {
        INT64 => Value::Int(i64::from_le_bytes(stored.try_into().ok()?)),
        FLOAT64 => Value::Float(f64::from_le_bytes(stored.try_into().ok()?)),
        BOOL => Value::Bool(matches!(stored, [n] if *n != 0)),
        _ => return None,
    })
}

/// Whether strings of this shape are lists in lists.
fn is_list(shape: &Dims) -> bool {
    shape.len() <= MAX_LISTS && shape.volume() != Some(0)
}

/// A str, or bytes if it is none.
fn string(bytes: Bytes) -> Value {
    match std::str::from_utf8(&bytes) {
        Ok(text) => Value::Str(text.into()),
        Err(_) => Value::Bytes(bytes),
    }
}

fn lists(shape: &[u64], strings: &mut impl Iterator<Item = Bytes>) -> Option<Value> {
    let Some((n, inner)) = shape.split_first() else {
        return strings.next().map(string);
    };
    (0..*n)
        .map(|_| lists(inner, strings))
        .collect::<Option<_>>()
        .map(Value::List)
}

/// The shape and strings of a value that [`lists`] makes.
fn of_lists(value: &Value) -> Option<(Dims, Vec<&[u8]>)> {
    let (mut shape, mut at) = (Dims::default(), value);
    while let Value::List(inner) = at {
        shape.push(inner.len() as u64);
        at = inner.first()?;
    }
    if !is_list(&shape) {
        return None;
    }
    let mut out = Vec::new();
    flatten(value, &shape, &mut out).then_some((shape, out))
}

fn flatten<'v>(value: &'v Value, shape: &[u64], out: &mut Vec<&'v [u8]>) -> bool {
    match (value, shape.split_first()) {
        (Value::List(inner), Some((n, rest))) => {
            inner.len() as u64 == *n && inner.iter().all(|value| flatten(value, rest, out))
        }
        (Value::Str(text), None) => {
            out.push(text.as_bytes());
            true
        }
        (Value::Bytes(bytes), None) if std::str::from_utf8(bytes).is_err() => {
            out.push(bytes);
            true
        }
        _ => false,
    }
}

/// An object that is kept as it is stored: `tensorflow.NAME(shape, bytes)`.
fn opaque(object: &Object) -> Value {
    let shape = object
        .shape
        .iter()
        .map(|n| Value::Int(i64::try_from(*n).unwrap_or(i64::MAX)));
    Value::Opaque(Box::new(Opaque {
        module: MODULE.into(),
        name: dtype::name(object.dtype).into(),
        construct: Construct::Reduce(vec![
            Value::Tuple(shape.collect()),
            Value::Bytes(object.stored.clone()),
        ]),
        state: None,
        items: Vec::new(),
        pairs: Vec::new(),
    }))
}

/// The object of which [`opaque`] makes this. `None` for all others.
fn of_opaque(opaque: &Opaque) -> Option<Object> {
    let Construct::Reduce(args) = &opaque.construct else {
        return None;
    };
    let [Value::Tuple(shape), Value::Bytes(stored)] = &**args else {
        return None;
    };
    let only = opaque.state.is_none() && opaque.items.is_empty() && opaque.pairs.is_empty();
    if *opaque.module != *MODULE || !only || shape.len() > crate::entry::MAX_AXES {
        return None;
    }
    let shape = shape.iter().map(|n| u64::try_from(n.as_int()?).ok());
    let object = Object {
        form: Form::Stored,
        dtype: dtype::of_object(&opaque.name)?,
        shape: shape.collect::<Option<Vec<u64>>>()?.into(),
        stored: stored.clone(),
    };
    object.crc().is_ok().then_some(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn around(value: &Value) -> (Object, Value) {
        let bytes = Codec::default().encode(value).unwrap();
        let object = Object::parse(&bytes).unwrap();
        assert!(object.crc().is_ok(), "{object:?}");
        let again = Codec::default().decode(&bytes).unwrap();
        (object, again)
    }

    #[test]
    fn values_become_what_tensorflow_has_for_them_and_come_back() {
        let list = |values: &[&str]| Value::List(values.iter().map(|s| Value::from(*s)).collect());
        let raw = Value::Bytes(Bytes::from_static(b"\xff\0"));
        for (value, form, dtype, shape) in [
            (Value::Int(-7), Form::Number, INT64, &[][..]),
            (Value::Float(0.5), Form::Number, FLOAT64, &[]),
            (Value::Bool(true), Form::Number, BOOL, &[]),
            ("é".into(), Form::Stored, STRING, &[]),
            (raw.clone(), Form::Stored, STRING, &[]),
            (
                Value::Bytes(Bytes::from_static(b"text")),
                Form::Bytes,
                STRING,
                &[],
            ),
            (list(&["a", ""]), Form::Stored, STRING, &[2]),
            (
                Value::List(vec![list(&["a"]), list(&["b"])]),
                Form::Stored,
                STRING,
                &[2, 1],
            ),
            (Value::List(vec![raw]), Form::Stored, STRING, &[1]),
            (Value::None, Form::TorchSave, STRING, &[]),
            (list(&[]), Form::TorchSave, STRING, &[]),
            (
                Value::List(vec![list(&["a"]), "b".into()]),
                Form::TorchSave,
                STRING,
                &[],
            ),
            (
                Value::List(vec![list(&["a"]), list(&["b", "c"])]),
                Form::TorchSave,
                STRING,
                &[],
            ),
            (
                Value::List(vec![Value::Int(1)]),
                Form::TorchSave,
                STRING,
                &[],
            ),
            (
                Value::Dict(vec![("a".into(), 1.5.into())]),
                Form::TorchSave,
                STRING,
                &[],
            ),
        ] {
            let (object, again) = around(&value);
            assert_eq!(
                (object.form, object.dtype, &*object.shape),
                (form, dtype, shape),
                "{value:?}"
            );
            assert_eq!(again, value);
        }
    }

    #[test]
    fn what_has_no_counterpart_survives_as_an_opaque_value() {
        let object = |dtype, shape: &[u64], stored: &'static [u8]| Object {
            form: Form::Stored,
            dtype,
            shape: shape.into(),
            stored: Bytes::from_static(stored),
        };
        let no_strings = 0xa282_ead8u32.to_le_bytes();
        for object in [
            object(13, &[2, 1], b"\x01\0\0\0\x02\0\0\0"),
            object(29, &[3], b"\x0f\0\x01"),
            Object {
                stored: Bytes::copy_from_slice(&no_strings),
                ..object(STRING, &[0, 3], b"")
            },
        ] {
            let value = Codec::default().decode(&object.to_bytes()).unwrap();
            assert!(value.type_name().starts_with("tensorflow."), "{value:?}");
            assert_eq!(around(&value), (object, value));
        }
        // Something else of that module is pickled like any other object.
        let other = Value::Opaque(Box::new(Opaque {
            module: MODULE.into(),
            name: "qint8".into(),
            construct: Construct::Reduce(vec![
                Value::Tuple(vec![Value::Int(2)]),
                Value::Bytes(Bytes::from_static(b"1")),
            ]),
            state: None,
            items: Vec::new(),
            pairs: Vec::new(),
        }));
        assert_eq!(around(&other).0.form, Form::TorchSave);
        assert_eq!(around(&other).1, other);
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn no_bytes_make_the_codec_panic(bytes: Vec<u8>, form in 0u8..5, dtype in 0u8..35, n in 0u8..3) {
            drop(Codec::default().decode(&bytes.clone().into()));
            let mut of_object = vec![form, dtype, n];
            of_object.extend(bytes);
            drop(Codec::default().decode(&of_object.into()));
        }
    }
}
