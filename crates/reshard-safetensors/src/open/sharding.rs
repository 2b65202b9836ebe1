//! Where the pieces of a file lie in their tensors, as PyTorch DCP says it.

use crate::header::Header;
use reshard_strategy::{Refused, UniqueMap};
use serde::Deserialize;
use std::collections::BTreeMap;

const SHARDING: &str = "DCP_SHARDING_INFO";

#[derive(Deserialize)]
struct Saved {
    saved_offsets: Vec<u64>,
}

/// The offsets of the piece of each key.
pub(super) type Offsets = BTreeMap<Box<str>, Vec<u64>>;

/// The offsets of each key. `None` if the file is not one of a rank.
pub(super) fn offsets(header: &Header) -> Result<Option<Offsets>, Refused> {
    let Some(text) = header.metadata.get(SHARDING) else {
        return Ok(None);
    };
    let saved: UniqueMap<Saved> = serde_json::from_str(text)
        .map_err(|e| Refused::damaged(format!("its {SHARDING} can't be parsed: {e}")))?;
    let offsets = saved.0.into_iter();
    Ok(Some(
        offsets
            .map(|(key, saved)| (key, saved.saved_offsets))
            .collect(),
    ))
}
