//! What a file has in addition to elements: its header.

use crate::{
    header::{self, NewEntry},
    texts::{FORMAT, PYTORCH},
};
use reshard_model::{DType, SafetensorsDType};
use reshard_strategy::{Refused, Result, StrategyError};
use std::collections::BTreeMap;

pub(crate) fn invalid(place: &str, fault: Refused) -> StrategyError {
    StrategyError::Invalid(format!("{place}: {}", fault.what))
}

/// The metadata of every file.
pub(crate) fn metadata(texts: &BTreeMap<Box<str>, String>) -> BTreeMap<Box<str>, String> {
    let mut out = BTreeMap::from([(FORMAT.into(), PYTORCH.to_owned())]);
    out.extend(texts.clone());
    out
}

/// The entry of a tensor whose `shape` counts elements of `dtype`, as the header counts them.
pub(crate) fn new_entry(key: &str, dtype: DType, shape: &[u64], bytes: u64) -> Result<NewEntry> {
    let no_name = || StrategyError::Internal(format!("{key} is written as {dtype}"));
    let (dtype, shape) = match SafetensorsDType::named(dtype) {
        Some(spelled) => (spelled, spelled.in_header(shape)),
        None => {
            let mut shape = shape.to_vec();
            shape.push(dtype.size());
            (
                SafetensorsDType::named(DType::UInt8).ok_or_else(no_name)?,
                Some(shape),
            )
        }
    };
    Ok(NewEntry {
        key: key.into(),
        dtype,
        shape: shape.ok_or_else(no_name)?,
        bytes,
    })
}

/// Upper bound of the header of a file without entries.
pub(crate) fn header_bytes(texts: &BTreeMap<Box<str>, String>) -> Result<u64> {
    let text = header::text(&metadata(texts), &[]);
    let text = text.map_err(|fault| invalid(header::METADATA, fault))?;
    // Entries move the end of the header to another multiple of the alignment.
    Ok((text.len() + header::ALIGNED) as u64)
}

/// Upper bound of the entry of a tensor, wherever its elements are in the file.
pub(crate) fn entry_bytes(key: &str, dtype: DType, shape: &[u64]) -> Result<u64> {
    let entry = new_entry(key, dtype, shape, 0)?;
    let text = header::entry_text(&entry, [u64::MAX, u64::MAX]);
    Ok(text.map_err(|fault| invalid(key, fault))?.len() as u64)
}
