//! What TensorFlow's MaxShardSizePolicy does, cut by cut. It sees one task at a time, fills the last shard only, and keeps what
//! is left of a tensor as one box, of which it cuts one axis at a time.

use super::{MaxShardSize, warn_too_large};
use crate::{Content, Piece, PolicyError, Result, Shards};
use reshard_model::Region;

/// Its size is taken to be 0, because TensorFlow can't always know it.
const OBJECT_GRAPH: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";

pub(super) fn fill(
    policy: &MaxShardSize,
    pieces: &[Piece<'_>],
    task: &[usize],
    out: &mut Shards,
) -> Result<()> {
    let limit = policy.max_shard_size.0;
    let (mut room, mut too_large) = (limit, Vec::new());
    for &number in task {
        let piece = &pieces[number];
        let tensor = Tensor::of(piece)?;
        if piece.region.ndim() > 0 && !policy.keeps_whole(piece) {
            room = tensor.cut(number, limit, room, out)?;
        } else if tensor.bytes > limit {
            warn_too_large(piece, tensor.bytes, limit);
            too_large.push(number);
        } else {
            if tensor.bytes > room {
                out.start();
                room = limit;
            }
            out.push(number, piece.region.clone())?;
            room -= tensor.bytes;
        }
    }
    for number in too_large {
        out.start();
        out.push(number, pieces[number].region.clone())?;
    }
    Ok(())
}

struct Tensor<'p> {
    piece: &'p Piece<'p>,
    bytes: u64,
    /// Bytes of an element; of strings, the longest one's.
    item: u64,
}

impl<'p> Tensor<'p> {
    fn of(piece: &'p Piece<'p>) -> Result<Self> {
        let (bytes, item) = match piece.content {
            _ if piece.key == OBJECT_GRAPH => (0, 0),
            Content::Object => (piece.bytes, piece.bytes),
            Content::Tensor(dtype) => (piece.bytes, dtype.size()),
            Content::Strings(lengths) => {
                let (rows, inner) = piece
                    .region
                    .lengths
                    .split_first()
                    .map_or((1, &[][..]), |(&n, inner)| (n, inner));
                if rows == 0 || inner.iter().any(|&n| n != 1) {
                    return Err(raises(
                        piece,
                        "gives no size to vectors of no strings and to arrays of strings",
                    ));
                }
                (piece.bytes, lengths.iter().copied().max().unwrap_or(0))
            }
        };
        Ok(Self { piece, bytes, item })
    }

    /// Gives the room that is left.
    fn cut(&self, number: usize, limit: u64, mut room: u64, out: &mut Shards) -> Result<u64> {
        let mut rest = self.piece.region.clone();
        let mut left = self.bytes;
        while left > room {
            if let Some((axis, length)) = self.next_cut(&rest, room)? {
                let mut part = rest.clone();
                part.lengths[axis] = length;
                rest.offsets[axis] += length;
                rest.lengths[axis] -= length;
                room -= self.size(&part);
                left = self.size(&rest);
                out.push(number, part)?;
                if room > 0 {
                    continue;
                }
            } else if room == limit {
                return Err(raises(
                    self.piece,
                    "never returns: no slice of one index fits into an empty shard",
                ));
            }
            out.start();
            room = limit;
        }
        if !rest.is_empty() {
            out.push(number, rest)?;
        }
        Ok(room - left)
    }

    /// The axis along which fewest parts are needed, and the length of the first of them, all parts being nearly equal.
    fn next_cut(&self, rest: &Region, room: u64) -> Result<Option<(usize, u64)>> {
        let mut best: Option<(usize, u64)> = None;
        for (axis, &length) in rest.lengths.iter().enumerate() {
            let fits = room.checked_div(self.size(rest) / length).unwrap_or(0);
            if fits > 0 && best.is_none_or(|(_, fewest)| length.div_ceil(fits) < fewest) {
                best = Some((axis, length.div_ceil(fits)));
            }
        }
        if best.is_some() && rest.ndim() > 1 && matches!(self.piece.content, Content::Strings(_)) {
            return Err(raises(self.piece, "cuts no array of strings"));
        }
        Ok(best.map(|(axis, parts)| (axis, rest.lengths[axis].div_ceil(parts))))
    }

    fn size(&self, part: &Region) -> u64 {
        part.volume().unwrap_or(u64::MAX).saturating_mul(self.item)
    }
}

fn raises(piece: &Piece<'_>, what: &str) -> PolicyError {
    PolicyError::invalid(format!(
        "{} {}: TensorFlow's policy {what}; raise the limit, or leave out the mode \"tensorflow\"",
        piece.key, piece.region
    ))
}

#[cfg(test)]
mod tests {
    use crate::{
        MaxShardSize, PolicyError,
        testing::{Owned, decided, told},
    };
    use reshard_model::DType;

    fn cut(limit: u64, owned: &[Owned]) -> Vec<String> {
        told(&MaxShardSize::tensorflow(limit), owned)
    }

    fn fails(limit: u64, owned: Owned) -> String {
        match decided(&MaxShardSize::tensorflow(limit), &[owned]).unwrap_err() {
            PolicyError::Failed { source, .. } => source.to_string(),
            other => other.to_string(),
        }
    }

    #[test]
    fn parts_are_balanced_and_the_gap_is_filled_by_more_of_the_same_tensor() {
        assert_eq!(
            cut(39, &[Owned::f32("t", &[10])]),
            ["t[0:5] t[5:8] t[8:9]", "t[9:10]"]
        );
        let wanted = [
            "t[0:6, 0:1, 0:2]",
            "t[0:2, 1:4, 0:2]",
            "t[2:4, 1:4, 0:2]",
            "t[4:6, 1:4, 0:2]",
        ];
        assert_eq!(cut(48, &[Owned::f32("t", &[6, 4, 2])]), wanted);
    }

    #[test]
    fn scalars_above_the_limit_go_last_and_the_object_graph_counts_nothing() {
        let state = [
            Owned::tensor("z", DType::Complex128, &[]),
            Owned::f32("t", &[2]),
            Owned::object(super::OBJECT_GRAPH, 99),
        ];
        assert_eq!(cut(8, &state), ["t _CHECKPOINTABLE_OBJECT_GRAPH", "z"]);
    }

    #[test]
    fn each_task_begins_anew() {
        let state = [Owned::f32("a", &[1]), Owned::f32("b", &[2]).task(1)];
        assert_eq!(cut(8, &state), ["a", "b"]);
    }

    #[test]
    fn where_tensorflow_never_returns_is_an_error() {
        for (limit, owned) in [
            (399, Owned::f32("t", &[100, 100])),
            (95, Owned::tensor("t", DType::Float64, &[3, 4, 5])),
            (3, Owned::f32("t", &[1])),
            (4, Owned::strings("t", &[2], &[1, 5])),
            (0, Owned::f32("t", &[2])),
        ] {
            let message = fails(limit, owned);
            assert!(
                message.contains("t [0:") && message.contains("never returns"),
                "{message}"
            );
        }
    }

    #[test]
    fn where_tensorflow_raises_or_loses_a_tensor_is_an_error() {
        assert!(fails(100, Owned::strings("s", &[2, 2], &[1; 4])).contains("arrays of strings"));
        assert!(fails(100, Owned::strings("s", &[0], &[])).contains("vectors of no strings"));
        assert!(
            fails(4, Owned::strings("s", &[3, 1], &[1, 2, 3])).contains("cuts no array of strings")
        );
        assert!(fails(9, Owned::f32("none", &[3, 0])).contains("none [0:3, 0:0] is in no shard"));
    }
}
