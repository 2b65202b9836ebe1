//! DTensor's way to say which rank holds what: a mesh of devices and a placement per mesh axis.

use crate::Dims;

/// Ranks arranged in named axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMesh {
    /// Ranks per axis.
    pub shape: Dims,
}

/// How a tensor lies along one axis of a [`DeviceMesh`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Every rank holds all of it.
    Replicate,
    /// Cut along a tensor axis, by torch.chunk's rule.
    Shard(usize),
}
