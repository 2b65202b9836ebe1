//! A map applied to the tensors of a checkpoint.

use crate::{Additions, MapError, MappedTensor, Result};
use reshard_model::{Cast, DType, Dims};
use std::collections::BTreeMap;

/// A tensor of the checkpoint to which a map is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its key.
    pub key: Box<str>,
    /// Element type.
    pub dtype: DType,
    /// The number of elements along each axis.
    pub shape: Dims,
}

impl Source {
    /// A tensor of the checkpoint.
    pub fn new(key: &str, dtype: DType, shape: impl Into<Dims>) -> Self {
        Self {
            key: key.into(),
            dtype,
            shape: shape.into(),
        }
    }
}

/// What a checkpoint has under its new names, and where it comes from. Made by [`Map::apply`](crate::Map::apply) from names,
/// types and shapes alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    pub(crate) sources: Vec<Source>,
    pub(crate) tensors: BTreeMap<Box<str>, MappedTensor>,
    pub(crate) objects: BTreeMap<Box<str>, Box<str>>,
    pub(crate) unmapped: Vec<Box<str>>,
    pub(crate) dropped: Vec<Dropped>,
    pub(crate) additions: Additions,
}

/// A tensor or object of the checkpoint that a mapping leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dropped {
    /// Its key in the checkpoint.
    pub key: Box<str>,
    /// The number of the `drop` or `keep` rule that leaves it out. `None` for an unmapped tensor, which [`Unmapped::Drop`](crate::Unmapped)
    /// leaves out.
    pub rule: Option<usize>,
    /// The name of the rule: `drop` or `keep`.
    pub verb: &'static str,
}

impl Mapping {
    /// The tensors of the checkpoint. [`Piece::source`](crate::Piece::source) is the number of one of them.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The tensors by their new keys, in order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &MappedTensor)> {
        self.tensors.iter().map(|(key, t)| (&**key, t))
    }

    /// A tensor, by its new key.
    pub fn tensor(&self, key: &str) -> Option<&MappedTensor> {
        self.tensors.get(key)
    }

    /// The objects: the new key of each and its key in the checkpoint, in order of new keys.
    pub fn objects(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.objects.iter().map(|(key, from)| (&**key, &**from))
    }

    /// The key in the checkpoint of an object, by its new key.
    pub fn object(&self, key: &str) -> Option<&str> {
        self.objects.get(key).map(|from| &**from)
    }

    /// The keys in the checkpoint of all tensors that no rule maps, in order. [`Unmapped`](crate::Unmapped) says what becomes of them.
    pub fn unmapped(&self) -> &[Box<str>] {
        &self.unmapped
    }

    /// The tensors and objects of the checkpoint that are left out.
    pub fn dropped(&self) -> &[Dropped] {
        &self.dropped
    }

    /// The objects and common state that Megatron Core expects beside the tensors and that the source does not have.
    pub fn additions(&self) -> &Additions {
        &self.additions
    }

    /// The mapping that makes the checkpoint from the mapped one, element for element. Its sources are the tensors of this one in order.
    /// Objects that this one dropped are not in it.
    ///
    /// # Errors
    /// [`MapError::Lossy`] if this one leaves out elements of a tensor, or casts them with a loss.
    pub fn inverse(&self) -> Result<Self> {
        let lossy = |source: &Source, why: String| MapError::Lossy {
            key: source.key.to_string(),
            why,
        };
        let empty = |s: &Source| MappedTensor {
            dtype: s.dtype,
            shape: s.shape.clone(),
            pieces: Vec::new(),
        };
        let mut back: Vec<MappedTensor> = self.sources.iter().map(empty).collect();
        for (number, tensor) in self.tensors.values().enumerate() {
            for piece in &tensor.pieces {
                let (Some(to), Some(source)) =
                    (back.get_mut(piece.source), self.sources.get(piece.source))
                else {
                    continue;
                };
                let mut swapped = piece.swapped(number);
                let mut from = source.dtype;
                for next in &piece.casts {
                    if !Cast::Lossless.allows(from, *next) {
                        return Err(lossy(
                            source,
                            format!("a cast from {from} to {next} is not exact"),
                        ));
                    }
                    swapped.casts.insert(0, from);
                    from = *next;
                }
                to.pieces.push(swapped);
            }
        }
        let mut tensors = BTreeMap::new();
        for (source, tensor) in self.sources.iter().zip(back) {
            let whole = source.shape.volume().unwrap_or(u64::MAX);
            let kept = tensor.volume();
            if kept != whole {
                let why = format!(
                    "{} of its {whole} elements are left out",
                    whole.saturating_sub(kept)
                );
                return Err(lossy(source, why));
            }
            tensors.insert(source.key.clone(), tensor);
        }
        let sources = self.tensors.iter().map(|(key, t)| Source {
            key: key.clone(),
            dtype: t.dtype,
            shape: t.shape.clone(),
        });
        Ok(Self {
            sources: sources.collect(),
            tensors,
            objects: self
                .objects
                .iter()
                .map(|(a, b)| (b.clone(), a.clone()))
                .collect(),
            ..Self::default()
        })
    }
}
