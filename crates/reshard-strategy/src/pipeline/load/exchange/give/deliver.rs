//! Data that were read, on their way to those that want them, each at its own pace.

use bytes::Bytes;
use reshard_model::Tensor;

/// A part that is not contiguous is copied in pieces of so many bytes.
const PIECE: u64 = 256 << 10;

/// Data that were read, and who gets them.
pub(super) struct Ready {
    bytes: Bytes,
    deliveries: Vec<Delivery>,
}

/// What one peer gets.
pub(super) struct Delivery {
    peer: usize,
    source: Source,
}

enum Source {
    /// All of it, from this byte on.
    Whole { at: u64 },
    /// A part that is not contiguous.
    Part {
        pieces: Box<dyn Iterator<Item = Bytes> + Send>,
        /// The rest of a piece.
        rest: Bytes,
        /// Bytes that are still to come, with the rest.
        left: u64,
    },
}

impl Delivery {
    /// All of it.
    pub(super) fn whole(peer: usize) -> Self {
        let source = Source::Whole { at: 0 };
        Self { peer, source }
    }

    /// A part of it.
    pub(super) fn part(peer: usize, part: &Tensor) -> Self {
        let source = Source::Part {
            pieces: Box::new(part.blocks(PIECE)),
            rest: Bytes::new(),
            left: part.nbytes(),
        };
        Self { peer, source }
    }

    /// The next bytes of it, at most `max`. How many they are, and whether they are the last.
    fn take(&mut self, all: &Bytes, max: u64, out: &mut Vec<Bytes>) -> (u64, bool) {
        match &mut self.source {
            Source::Whole { at } => {
                let n = max.min(all.len() as u64 - *at);
                let block = all.slice(*at as usize..(*at + n) as usize);
                if n > 0 {
                    out.push(block);
                }
                *at += n;
                (n, *at == all.len() as u64)
            }
            Source::Part { pieces, rest, left } => {
                let mut taken = 0;
                while taken < max && *left > 0 {
                    if rest.is_empty() {
                        let Some(piece) = pieces.next() else { break };
                        *rest = piece;
                    }
                    let n = (max - taken).min(rest.len() as u64);
                    out.push(rest.split_to(n as usize));
                    taken += n;
                    *left -= n;
                }
                (taken, *left == 0)
            }
        }
    }
}

impl Ready {
    pub(super) fn new(bytes: Bytes, deliveries: Vec<Delivery>) -> Self {
        Self { bytes, deliveries }
    }

    /// The bytes that it holds in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.deliveries.is_empty()
    }

    /// Gives each peer as much as `left` allows, which becomes `None` for a peer that has not got all.
    pub(super) fn deliver(&mut self, left: &mut [Option<u64>], blocks: &mut [Vec<Bytes>]) {
        let all = &self.bytes;
        self.deliveries.retain_mut(|delivery| {
            let (Some(quota), Some(out)) =
                (left.get_mut(delivery.peer), blocks.get_mut(delivery.peer))
            else {
                return true;
            };
            let Some(max) = *quota else { return true };
            let (taken, done) = delivery.take(all, max, out);
            *quota = done.then_some(max - taken);
            !done
        });
    }
}
