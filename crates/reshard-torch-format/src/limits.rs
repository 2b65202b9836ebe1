/// How much a pickle or an archive may ask for. What lies beyond is an error with the offset, never a panic.
///
/// Working memory is bounded by the length of the input whatever these say; the limits bound what the input
/// may *expand* to, since a pickle of a kilobyte can name one list a billion times.
///
/// ```
/// use reshard_torch_format::{Limits, LoadOptions, load_with};
/// let options = LoadOptions::default().with_limits(Limits { nodes: 3, ..Default::default() });
/// assert!(load_with(b"(NNl.".as_slice().into(), &options).is_ok());
/// assert!(load_with(b"(NNNl.".as_slice().into(), &options).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Deepest nesting of a value. Default 256.
    pub depth: u32,
    /// Most values in a tree, after shared ones have been written out. Default 10 million.
    pub nodes: u64,
    /// Most bytes of text and of byte strings in a tree, after shared ones have been written out. Default 1 GiB.
    pub bytes: u64,
    /// Highest memo index plus one; never more than the input has bytes. Default 2^30.
    pub memo: u64,
    /// Most bytes that one compressed record of an archive may unpack to, and that a tensor may have whose elements share
    /// memory. Default 4 GiB.
    pub unpacked: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth: 256, nodes: 10_000_000, bytes: 1 << 30, memo: 1 << 30, unpacked: 4 << 30 }
    }
}
