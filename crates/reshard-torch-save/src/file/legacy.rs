//! Files that torch wrote before 1.6.

use super::{Container, LEGACY};
use crate::error::{lost, unreadable};
use bytes::Bytes;
use reshard_storage::{Name, Store};
use reshard_strategy::{ReadLimits, Result, torch::parsing};
use reshard_torch_format::LegacyHead;
use std::sync::Arc;

/// Reads the beginning. How long it is, only its pickles tell: what does not parse may be cut off, so more is read.
pub(super) async fn open(
    store: &Arc<dyn Store>,
    name: &Name,
    bytes: u64,
    first: Bytes,
    limits: &ReadLimits,
) -> Result<(Bytes, Container)> {
    let parsing = parsing(limits);
    let (mut head, mut next) = (first, LEGACY);
    loop {
        match LegacyHead::parse(&head, bytes, &parsing) {
            Ok(found) => {
                let pickle = head.slice(found.pickle.clone());
                return Ok((pickle, Container::Legacy(found)));
            }
            Err(e) if head.len() as u64 >= bytes => {
                return Err(unreadable(e, "the file", name.as_str()));
            }
            Err(_) => {}
        }
        let to = bytes.min(next);
        limits.whole(format_args!("the description in {name}"), to)?;
        let read = store.read(name, 0..to).await;
        head = read.map_err(|e| lost(e, name.as_str()))?;
        next = next.saturating_mul(8);
    }
}
