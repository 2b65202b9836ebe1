//! What one rank sends to another in one round of a save: what it asks for, and then bytes that the other has asked for.

use crate::{Result, StrategyError, pipeline::exchange::unplanned};
use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};

/// What a rank wants to get from another one in the next round.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Ask {
    /// The most bytes, with the heads of the pieces.
    pub(super) credit: u64,
    /// The items, in the order in which they are needed.
    pub(super) items: Vec<Stream>,
}

/// The bytes of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stream {
    /// The position among the items that the one rank gives to the other.
    pub(super) item: u32,
    /// How often the item was begun before. An item begins again if its reader does.
    pub(super) attempt: u32,
}

/// Some bytes of an item.
pub(super) struct Piece {
    pub(super) stream: Stream,
    /// Whether these are the last bytes of the item.
    pub(super) last: bool,
    pub(super) bytes: Bytes,
}

/// The bytes in front of a piece.
pub(super) const HEAD: u64 = 13;
/// An upper bound for the bytes of one item in an [`Ask`], and for the rest of it.
pub(super) const ASKED: u64 = 10;
pub(super) const ASK: u64 = 24;

impl Piece {
    /// As blocks of a part.
    pub(super) fn push(self, part: &mut Vec<Bytes>) {
        let Self {
            stream,
            last,
            bytes,
        } = self;
        let mut head = Vec::with_capacity(HEAD as usize);
        head.extend(stream.item.to_le_bytes());
        head.extend(stream.attempt.to_le_bytes());
        head.push(last.into());
        head.extend((bytes.len() as u32).to_le_bytes());
        part.push(head.into());
        if !bytes.is_empty() {
            part.push(bytes);
        }
    }

    /// The next piece of a part.
    pub(super) fn next(part: &mut Bytes) -> Result<Self> {
        let cut = |_| unplanned();
        let item = part.try_get_u32_le().map_err(cut)?;
        let attempt = part.try_get_u32_le().map_err(cut)?;
        let last = part.try_get_u8().map_err(cut)? != 0;
        let n = part.try_get_u32_le().map_err(cut)? as usize;
        if n > part.len() {
            return Err(unplanned());
        }
        Ok(Self {
            stream: Stream { item, attempt },
            last,
            bytes: part.split_to(n),
        })
    }
}

/// A part: the length of the ask, the ask, pieces.
pub(super) fn part(ask: &Ask, given: Vec<Bytes>) -> Result<Vec<Bytes>> {
    let encoded = postcard::to_allocvec(ask)
        .map_err(|e| StrategyError::Internal(format!("an exchange can't send its request: {e}")))?;
    let length = (encoded.len() as u32).to_le_bytes();
    let mut blocks = vec![Bytes::from([&length[..], &encoded].concat())];
    blocks.extend(given);
    Ok(blocks)
}

/// The ask and the pieces of a part.
pub(super) fn parted(mut part: Bytes) -> Result<(Ask, Bytes)> {
    let n = part.try_get_u32_le().map_err(|_| unplanned())? as usize;
    if n > part.len() {
        return Err(unplanned());
    }
    let ask = postcard::from_bytes(&part.split_to(n)).map_err(|e| {
        StrategyError::Internal(format!(
            "an exchange has received a request that can't be read: {e}"
        ))
    })?;
    Ok((ask, part))
}
