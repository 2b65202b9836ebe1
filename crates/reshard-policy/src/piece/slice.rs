use super::{Content, Piece, runs};
use reshard_model::Region;
use std::borrow::Cow;

/// A part of a piece. It owns the data that a [`Piece`] borrows.
///
/// ```
/// use reshard_model::{DType, Region};
/// use reshard_policy::{Content, Overhead, Piece};
/// let whole = Region::whole(&[4, 2]);
/// let piece = Piece {
///     key: "w", name: "model.w", content: Content::Tensor(DType::Float32), global_shape: &[4, 2], region: &whole,
///     task: 0, device: "cpu", owner: "model", tag: None, bytes: 32, whole: false,
///     overhead: Overhead::default(),
/// };
/// let rows = piece.slice(Region::new([1, 0], [2, 2]))?;
/// assert_eq!(rows.piece().bytes, 16);
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Slice<'a> {
    of: Piece<'a>,
    region: Region,
    lengths: Cow<'a, [u64]>,
    bytes: u64,
}

impl<'a> Slice<'a> {
    /// Of a part that lies in the piece.
    pub(crate) fn new(of: Piece<'a>, region: Region, bytes: u64) -> Self {
        let lengths = match of.content {
            Content::Strings(lengths) if region == *of.region => lengths.into(),
            Content::Strings(lengths) => runs(of.region, &region)
                .flat_map(|run| lengths.get(run).unwrap_or_default())
                .copied()
                .collect(),
            _ => Cow::default(),
        };
        Self {
            of,
            region,
            lengths,
            bytes,
        }
    }

    /// The part as a piece. It has its own region, bytes and lengths of strings; everything else is the whole piece's.
    pub fn piece(&self) -> Piece<'_> {
        let content = match self.of.content {
            Content::Strings(_) => Content::Strings(&self.lengths),
            other => other,
        };
        Piece {
            region: &self.region,
            bytes: self.bytes,
            content,
            ..self.of
        }
    }
}
