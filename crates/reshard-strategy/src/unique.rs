//! Maps in files whose keys come once each.

use serde::{
    Serialize,
    de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value as Json;
use std::{collections::BTreeMap, fmt, marker::PhantomData};

/// A map that is parsed from a file, of which no key came twice. A parser that takes the last of two hides damage.
///
/// ```
/// use reshard_strategy::UniqueMap;
/// let index: UniqueMap<u32> = serde_json::from_str(r#"{"a": 1, "b": 2}"#).unwrap();
/// assert_eq!(index.0["b"], 2);
/// let twice = serde_json::from_str::<UniqueMap<u32>>(r#"{"a": 1, "a": 2}"#);
/// assert!(twice.unwrap_err().to_string().contains("the key \"a\" comes twice"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UniqueMap<T>(pub BTreeMap<Box<str>, T>);

impl<T> Default for UniqueMap<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> UniqueMap<T> {
    /// That a key is not there yet, before its value is parsed.
    ///
    /// # Errors
    /// It is there.
    pub fn expect_new<E: Error>(&self, key: &str) -> Result<(), E> {
        match self.0.contains_key(key) {
            true => Err(E::custom(format_args!("the key {key:?} comes twice"))),
            false => Ok(()),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for UniqueMap<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Map<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Map<T> {
            type Value = UniqueMap<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<UniqueMap<T>, A::Error> {
                let mut out = UniqueMap::default();
                while let Some(key) = from.next_key::<Box<str>>()? {
                    out.expect_new(&key)?;
                    out.0.insert(key, from.next_value()?);
                }
                Ok(out)
            }
        }
        from.deserialize_map(Map(PhantomData))
    }
}

/// JSON in which no object has a key twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueJson(pub Json);

impl<'de> Deserialize<'de> for UniqueJson {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_none<E>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Json, D::Error> {
                from.deserialize_any(self)
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Json, D::Error> {
                from.deserialize_any(self)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_str<E>(self, value: &str) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
                let mut out = Vec::new();
                while let Some(UniqueJson(value)) = from.next_element()? {
                    out.push(value);
                }
                Ok(out.into())
            }

            fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<Json, A::Error> {
                let from = serde::de::value::MapAccessDeserializer::new(from);
                let all = UniqueMap::<UniqueJson>::deserialize(from)?;
                let all = all.0.into_iter().map(|(key, value)| (key.into(), value.0));
                Ok(Json::Object(all.collect()))
            }
        }
        from.deserialize_any(Any).map(Self)
    }
}
