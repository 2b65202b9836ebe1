//! JSON objects whose keys come once each.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::{collections::BTreeMap, fmt, marker::PhantomData};

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// A byte of the file, if it is known.
    pub(crate) offset: Option<u64>,
    pub(crate) what: String,
}

impl Fault {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            offset: None,
            what: what.into(),
        }
    }

    pub(crate) fn at(offset: u64, what: impl Into<String>) -> Self {
        Self {
            offset: Some(offset),
            what: what.into(),
        }
    }

    /// Of a parser. `from` is where its text begins in the file. A text of one line tells where in it.
    pub(crate) fn parser(e: &serde_json::Error, from: u64) -> Self {
        let offset = (e.line() == 1).then(|| from + (e.column() as u64).saturating_sub(1));
        Self {
            offset,
            what: e.to_string(),
        }
    }
}

/// A map of which no key came twice.
#[derive(Debug, Default)]
pub(crate) struct Unique<T>(pub(crate) BTreeMap<Box<str>, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Map<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Map<T> {
            type Value = Unique<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Unique<T>, A::Error> {
                let mut out = BTreeMap::new();
                while let Some(key) = from.next_key::<Box<str>>()? {
                    once(&out, &key)?;
                    let value = from.next_value()?;
                    out.insert(key, value);
                }
                Ok(Unique(out))
            }
        }
        from.deserialize_map(Map(PhantomData))
    }
}

/// Fails if a key was there.
pub(crate) fn once<T, E: serde::de::Error>(
    map: &BTreeMap<Box<str>, T>,
    key: &str,
) -> Result<(), E> {
    match map.contains_key(key) {
        true => Err(E::custom(format_args!("the key {key:?} comes twice"))),
        false => Ok(()),
    }
}
