//! Serde helpers for the record files that reshard adds to checkpoints.

use serde::{Deserialize as _, Deserializer, de::Error as _};

/// Deserializes the `schema` field of a record. Fails for every schema but `KNOWN`.
///
/// # Errors
/// Those of the deserializer; another schema.
pub fn known_schema<'de, const KNOWN: u32, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    match u32::deserialize(from)? {
        found if found == KNOWN => Ok(found),
        other => Err(D::Error::custom(format_args!(
            "its schema is {other}, and this version knows {KNOWN}"
        ))),
    }
}

/// Whether a field has its default value and can be left out of a record.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
