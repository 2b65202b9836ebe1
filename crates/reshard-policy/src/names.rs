//! Which policies, and which other values with a `type`, are linked.

use crate::ShardingPolicy;
use serde::{
    Deserialize,
    de::{self, DeserializeOwned, value::MapDeserializer},
};
use std::{fmt, iter};

/// The names of all policies that are linked into this program, sorted: what `type` may be in the JSON of a policy.
///
/// ```
/// assert!(reshard_policy::names().contains(&"max_shard_size"));
/// ```
pub fn names() -> Vec<&'static str> {
    names_of::<dyn ShardingPolicy>()
}

/// The same for another trait of `typetag` with the tag `type`.
pub fn names_of<T: ?Sized>() -> Vec<&'static str>
where
    Box<T>: DeserializeOwned,
{
    // typetag tells the names only to whoever asks for one that does not exist.
    let unknown = MapDeserializer::<_, Expected>::new(iter::once(("type", "?")));
    let mut names = match <Box<T>>::deserialize(unknown) {
        Ok(_) => Vec::new(),
        Err(Expected(names)) => names.to_vec(),
    };
    names.sort_unstable();
    names
}

/// The names that a value could have had.
#[derive(Debug)]
struct Expected(&'static [&'static str]);

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {}", self.0.join(", "))
    }
}

impl std::error::Error for Expected {}

impl de::Error for Expected {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_policies_of_this_crate_are_named() {
        let names = names();
        for name in ["all_in_one", "by_files", "max_shard_size", "then"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(names.is_sorted());
        let wrong = r#"{"type": "?"}"#;
        let e = serde_json::from_str::<Box<dyn ShardingPolicy>>(wrong).unwrap_err();
        assert!(names.iter().all(|name| e.to_string().contains(name)), "{e}");
    }
}
