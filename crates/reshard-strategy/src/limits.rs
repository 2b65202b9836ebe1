use crate::{Result, StrategyError};
use bytes::Bytes;
use derive_setters::Setters;
use reshard_model::MemoryLimit;
use reshard_policy::ByteSize;
use reshard_storage::{Name, StorageError, Store};
use std::{fmt, ops::Range, sync::Arc};

/// Limits on what a checkpoint may ask for while it is read. A file of a few hundred bytes can ask for a terabyte of memory. If a
/// checkpoint asks for more than a limit, the error names the option that raises the limit.
///
/// ```
/// use reshard_strategy::ReadLimits;
/// let limits = ReadLimits::default().with_max_memory(2 << 30);
/// assert_eq!(limits.max_whole, 4 << 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Setters)]
#[setters(prefix = "with_", strip_option)]
#[non_exhaustive]
pub struct ReadLimits {
    /// The most memory for the parsed form of one file or object, in bytes. `None` means 64 times its length plus 64 MiB, at most 4 GiB,
    /// and at most an eighth of the [`MemoryLimit`] of the process. It is never more than that limit.
    pub max_memory: Option<u64>,
    /// The most bytes of anything that can only be read as a whole: metadata, common state, an object, a compressed chunk as it is stored
    /// and as it is unpacked. The default is 4 GiB.
    pub max_whole: u64,
    /// Whether to read all tensors that have many elements over few stored bytes (stride 0). The default is no. Then a tensor is refused
    /// if its elements are more than 8 times its stored bytes, and all such tensors of a checkpoint together exceed 256 MiB (2 GiB if they
    /// went through a stream transform). The same bound of 256 MiB holds for all such tensors in one object.
    pub allow_repeated: bool,
    /// The most memory for the parsed form of one file or object in addition to 64 times its length, in bytes, if `max_memory` is `None`.
    /// The default is 64 MiB. A format of many small objects lowers it for each of them, so that all together stay within bounds.
    pub slack: u64,
    /// The most memory for unpacked chunks, and for streams that unpack them, that are kept from one read to the next, in bytes. A read of
    /// a part of a packed chunk unpacks all that comes before it. What is not kept is unpacked again for the next part; reads that
    /// would unpack far more than they want fail. The default is 256 MiB.
    pub max_kept: u64,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            max_memory: None,
            max_whole: 4 << 30,
            allow_repeated: false,
            slack: 64 << 20,
            max_kept: 256 << 20,
        }
    }
}

impl ReadLimits {
    /// The most memory for the parsed form of so many bytes, as [`max_memory`](Self::max_memory) has it.
    pub fn memory(&self, input: u64) -> u64 {
        let usual = input.saturating_mul(64).saturating_add(self.slack);
        MemoryLimit::budget(self.max_memory, usual)
    }

    /// The most memory for what is kept from one read to the next: [`max_kept`](Self::max_kept), and at most an eighth of the [`MemoryLimit`]
    /// of the process.
    pub fn kept(&self) -> u64 {
        self.max_kept.min(MemoryLimit::bytes() / 8)
    }

    /// Fails if so many bytes may not be read as a whole, or exceed the memory of this process. Call it before reading. `what` names the item
    /// for the error.
    ///
    /// # Errors
    /// [`StrategyError::Limit`].
    pub fn whole(&self, what: impl fmt::Display, bytes: u64) -> Result<()> {
        if bytes <= self.max_whole {
            return match MemoryLimit::of_process().filter(|limit| bytes > limit.bytes) {
                None => Ok(()),
                Some(limit) => Err(StrategyError::Limit {
                    what: format!("{what} has {bytes} bytes; {limit}"),
                    option: LimitOption::Process,
                    max: limit.bytes,
                }),
            };
        }
        let what = format!("{what} has {bytes} bytes, which is too much to read as a whole");
        Err(StrategyError::Limit {
            what,
            option: LimitOption::MaxWhole,
            max: self.max_whole,
        })
    }

    /// Fails if tensors with so many bytes of elements, of which so many are stored, may not be read.
    ///
    /// # Errors
    /// [`StrategyError::Limit`].
    pub fn repeated(&self, what: impl fmt::Display, bytes: u64, stored: u64) -> Result<()> {
        if self.allow_repeated || !repeats(bytes, stored) || bytes <= REPEATED {
            return Ok(());
        }
        Err(Self::refused(what, bytes, stored, REPEATED))
    }

    /// The error for tensors that are not read because many elements share few stored bytes. `max` is how many bytes of elements may.
    pub fn refused(what: impl fmt::Display, bytes: u64, stored: u64, max: u64) -> StrategyError {
        let what = format!("{what}: {bytes} bytes of elements share {stored} stored bytes");
        StrategyError::Limit {
            what,
            option: LimitOption::AllowRepeated,
            max,
        }
    }

    /// Reads a file as a whole; `None` if there is no such file. It checks the length before it reads.
    ///
    /// # Errors
    /// [`StrategyError::Limit`]; what the store says.
    pub async fn read(&self, store: &Arc<dyn Store>, name: &Name) -> Result<Option<Bytes>> {
        read_if(store, name, self.max_whole, |len| self.whole(name, len)).await
    }
}

/// A whole file, if it is no longer than permitted; `None` when there is none. `refuses` says why a longer one is not read.
async fn read_if(
    store: &Arc<dyn Store>,
    name: &Name,
    max: u64,
    refuses: impl FnOnce(u64) -> Result<()>,
) -> Result<Option<Bytes>> {
    match store.read_all(name, max).await {
        Err(e @ StorageError::Longer { size, .. }) => {
            refuses(size)?;
            Err(e.into())
        }
        read => Ok(read?),
    }
}

/// What a check reads of a range, one after the other: usually so many bytes at a time, but where a request is dear as many as fit into one.
pub fn check_steps(
    store: &dyn Store,
    range: Range<u64>,
    usual: u64,
) -> impl Iterator<Item = Range<u64>> + Send + use<> {
    let hints = store.hints();
    let step = match hints.requests_are_dear() {
        true => hints.part_size.max(usual),
        false => usual,
    };
    let mut at = range.start;
    std::iter::from_fn(move || {
        let from = at;
        at = range.end.min(from.saturating_add(step));
        (from < at).then_some(from..at)
    })
}

/// Most bytes of a JSON file of a checkpoint. A file with holes may say that it is as long as it likes.
pub const SMALL: u64 = 64 << 20;

/// The bytes of a JSON file; `None` when there is none.
///
/// # Errors
/// [`StrategyError::Corrupt`] when it is longer than [`SMALL`]; what the store says.
pub async fn read_small(store: &Arc<dyn Store>, name: &Name) -> Result<Option<Bytes>> {
    let is_small = |len| match len {
        ..=SMALL => Ok(()),
        _ => {
            let what = format!("it has {len} bytes, and no such file has more than {SMALL}");
            Err(StrategyError::corrupt(name, None, what))
        }
    };
    read_if(store, name, SMALL, is_small).await
}

/// The most bytes of elements that few stored bytes may expand to by default.
pub const REPEATED: u64 = 256 << 20;

/// Elements may always be so many times what is stored of them.
const TIMES: u64 = 8;

/// Whether elements of so many bytes repeat the same `stored` bytes very often. Neither a checksum nor the length of a file bounds the
/// size of such elements.
pub fn repeats(bytes: u64, stored: u64) -> bool {
    bytes.div_ceil(TIMES) > stored
}

/// Which of the [`ReadLimits`] stops a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitOption {
    /// [`ReadLimits::max_memory`].
    MaxMemory,
    /// [`ReadLimits::max_whole`].
    MaxWhole,
    /// [`ReadLimits::allow_repeated`].
    AllowRepeated,
    /// [`ReadLimits::max_kept`].
    MaxKept,
    /// The [`MemoryLimit`] of the process.
    Process,
}

impl LimitOption {
    /// The name of the field; with hyphens it is the flag of the program. For the limit of the process, the command that shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxMemory => "max_memory",
            Self::MaxWhole => "max_whole",
            Self::AllowRepeated => "allow_repeated",
            Self::MaxKept => "max_kept",
            Self::Process => "ulimit -v",
        }
    }

    /// What to do about an error.
    pub(crate) fn advice(self, max: u64) -> String {
        let max = ByteSize(max);
        match self {
            Self::MaxMemory | Self::MaxWhole | Self::MaxKept => {
                format!("the option {} raises the limit of {max}", self.name())
            }
            Self::Process => format!("raise `ulimit -v`, or the limit of its cgroup, beyond {max}"),
            Self::AllowRepeated => {
                format!("beyond {max} only the option {} reads that", self.name())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_repeat_beyond_8_times_what_is_stored() {
        assert!(!repeats(8 * 7, 7) && repeats(8 * 7 + 1, 7) && !repeats(0, 0) && repeats(1, 0));
        assert!(repeats(u64::MAX, 1) && !repeats(u64::MAX, u64::MAX));
        let limits = ReadLimits::default();
        assert!(limits.repeated("w", REPEATED, 4).is_ok());
        let e = limits
            .repeated("w", REPEATED + 4, 4)
            .unwrap_err()
            .to_string();
        assert!(
            e.contains("268435460 bytes") && e.contains("allow_repeated"),
            "{e}"
        );
        assert!(limits.repeated("w", REPEATED + 8, (32 << 20) + 1).is_ok());
        assert!(
            limits
                .with_allow_repeated(true)
                .repeated("w", 1 << 40, 4)
                .is_ok()
        );
    }

    #[test]
    fn what_is_read_whole_has_a_limit_that_the_error_names() {
        let limits = ReadLimits::default().with_max_whole(10 << 20);
        assert!(limits.whole(".metadata", 10 << 20).is_ok());
        let e = limits
            .whole(".metadata", (10 << 20) + 1)
            .unwrap_err()
            .to_string();
        assert!(
            e.contains(".metadata has 10485761 bytes")
                && e.contains("max_whole raises the limit of 10 MiB"),
            "{e}"
        );
    }
}
