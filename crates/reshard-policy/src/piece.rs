use reshard_model::{DType, Region};

/// What a piece is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Elements of one size.
    Tensor(DType),
    /// Strings: the byte length of each element of the piece, row-major.
    Strings(&'a [u64]),
    /// An object, which can't be cut. Its shape and region have no axes.
    Object,
}

/// What one task writes of one key, before a policy cuts it. A policy calls it by its position in the list.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Key in the checkpoint.
    pub key: &'a str,
    /// Its name in the state dict, from the top, joined by dots; the key where there is no other.
    pub name: &'a str,
    /// What it is made of.
    pub content: Content<'a>,
    /// Shape of the whole tensor.
    pub global_shape: &'a [u64],
    /// The part of it.
    pub region: &'a Region,
    /// The rank that writes it.
    pub task: u32,
    /// Where its data lies: `cpu`, or what the device calls itself.
    pub device: &'a str,
    /// Path of its parent in the state dict, joined by dots; empty at the top.
    pub owner: &'a str,
    /// What the caller tagged it with.
    pub tag: Option<&'a str>,
    /// Bytes of the payload; for an object about as many as it has, where that is known.
    pub bytes: u64,
}
