use crate::pickle::{Built, Refusal};
use std::sync::LazyLock;

/// How much a pickle or an archive may ask for. What lies beyond is an error with the offset, never a panic.
///
/// What it takes to read the instructions is bounded by the length of the input whatever these say; the limits bound what the
/// input may *expand* to, since a pickle of a kilobyte can name one list a billion times.
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
    /// Most bytes of memory that everything made of one input may take, at its real size and as often as it is copied; `None` is
    /// 64 times the input's length plus 64 MiB, at most 4 GiB, and at most an eighth of the address space that the process may have
    /// (`ulimit -v`), if that is limited. What is not copied, such as the elements of most tensors,
    /// takes nothing. Of a pickle in an archive the input is the archive.
    pub memory: Option<u64>,
    /// Most bytes that one compressed record of an archive may unpack to, and that a tensor may have whose elements share
    /// memory. Default 4 GiB.
    pub unpacked: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth: 256, nodes: 10_000_000, bytes: 1 << 30, memo: 1 << 30, memory: None, unpacked: 4 << 30 }
    }
}

impl Limits {
    /// The memory that what is made of an input of so many bytes may take.
    pub fn budget(&self, input: u64) -> Budget {
        let usual = input.saturating_mul(64).saturating_add(64 << 20).min(4 << 30).min(*SHARE);
        Budget::new(self.memory.unwrap_or(usual))
    }
}

/// What of a limited address space one parse takes: what is made of the result is larger than it, and so may be its file.
static SHARE: LazyLock<u64> = LazyLock::new(|| {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As);
    limit.current.map_or(u64::MAX, |bytes| bytes / 8)
});

/// Memory that one parse may still take. Whatever is built draws from it, before it is built and each time it is copied.
///
/// ```
/// use reshard_torch_format::Budget;
/// let mut budget = Budget::new(100);
/// assert!(budget.take(60).is_ok());
/// assert!(budget.take(60).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Budget {
    max: u64,
    left: u64,
}

impl Budget {
    /// So many bytes.
    pub fn new(max: u64) -> Self {
        Self { max, left: max }
    }

    /// Draws so many bytes; refuses what is not left.
    #[inline]
    pub fn take(&mut self, bytes: u64) -> Built<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Refusal::limit("bytes of memory", self.max)),
        }
    }

    /// Puts back what was drawn for something that is gone.
    #[inline]
    pub fn give_back(&mut self, bytes: u64) {
        self.left = self.left.saturating_add(bytes).min(self.max);
    }

    /// All that there was at the beginning.
    pub fn max(&self) -> u64 {
        self.max
    }
}
