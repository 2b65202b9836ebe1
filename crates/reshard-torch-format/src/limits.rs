use crate::pickle::{Built, Refusal};
use reshard_model::MemoryLimit;

/// Limits on what a pickle or an archive may ask for. Beyond a limit there is an error with the offset, never a panic.
///
/// The cost of reading the instructions is always bounded by the length of the input. These limits bound what the input may *expand* to,
/// because a pickle of a kilobyte can refer to one list a billion times.
///
/// ```
/// use reshard_torch_format::{Limits, LoadOptions, load_with};
/// let options = LoadOptions::default().with_limits(Limits { nodes: 3, ..Default::default() });
/// assert!(load_with(b"(NNl.".as_slice().into(), &options).is_ok());
/// assert!(load_with(b"(NNNl.".as_slice().into(), &options).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The deepest nesting of a value. The default is 256.
    pub depth: u32,
    /// The most values in a tree, where a shared value counts each time. The default is 10 million.
    pub nodes: u64,
    /// The most bytes of text and byte strings in a tree, where shared ones count each time. The default is 1 GiB.
    pub bytes: u64,
    /// The highest memo index plus one. It is never more than the length of the input in bytes. The default is 2^30.
    pub memo: u64,
    /// The most memory that the parsed form of one input may take, in bytes. Each copy counts with its real size. Data that are not copied,
    /// such as the elements of most tensors, do not count. `None` means 64 times the length of the input plus `slack`, at most 4 GiB, and at
    /// most an eighth of the [`MemoryLimit`] of the process. It is never more than that limit. For a pickle in an archive, the input is the
    /// archive.
    pub memory: Option<u64>,
    /// The most bytes that one compressed record of an archive may unpack to, and the largest size of a tensor whose elements share memory.
    /// The default is 4 GiB.
    pub unpacked: u64,
    /// The most memory that the parsed form of one input may take in addition to 64 times its length, in bytes, if `memory` is `None`. The
    /// default is 64 MiB.
    pub slack: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth: 256,
            nodes: 10_000_000,
            bytes: 1 << 30,
            memo: 1 << 30,
            memory: None,
            unpacked: 4 << 30,
            slack: 64 << 20,
        }
    }
}

impl Limits {
    /// The memory that the parsed form of an input of so many bytes may take.
    pub fn budget(&self, input: u64) -> Budget {
        let usual = input.saturating_mul(64).saturating_add(self.slack);
        Budget::new(MemoryLimit::budget(self.memory, usual))
    }
}

/// The memory that one parse may still take. Everything that is built draws from it, before it is built and each time it is copied.
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
    /// A budget of so many bytes.
    pub fn new(max: u64) -> Self {
        Self { max, left: max }
    }

    /// Draws so many bytes. Fails if fewer are left.
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

    /// Returns bytes that were drawn for something that no longer exists.
    #[inline]
    pub fn give_back(&mut self, bytes: u64) {
        self.left = self.left.saturating_add(bytes).min(self.max);
    }

    /// The number of bytes that are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The number of bytes at the beginning.
    pub fn max(&self) -> u64 {
        self.max
    }
}
