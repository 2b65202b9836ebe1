use crate::{Result, StrategyError};
use bytes::Bytes;
use reshard_policy::ByteSize;
use reshard_storage::{Name, Store, StoreExt};
use std::{fmt, sync::Arc};

/// How much a checkpoint may ask for while it is read. Files are hostile until they are trusted: a few hundred bytes can ask
/// for a terabyte. What asks for more is an error, which names the option that allows it.
///
/// ```
/// use reshard_strategy::ReadLimits;
/// let limits = ReadLimits::default().with_max_memory(2 << 30);
/// assert_eq!(limits.max_whole, 4 << 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadLimits {
    /// Most bytes of memory that is made of one file or object when it is parsed. `None` is 64 times its length plus 64 MiB, at
    /// most 4 GiB, and at most an eighth of the address space that the process may have, if that is limited (`ulimit -v`).
    pub max_memory: Option<u64>,
    /// Most bytes of what can only be read as a whole: metadata, common state, an object, a compressed chunk as it is stored and
    /// as it is unpacked. Default 4 GiB.
    pub max_whole: u64,
    /// Whether tensors are read of which many elements lie in the same bytes, when their elements are together more than 1 GiB
    /// and more than 1,024 times what is stored. Default no.
    pub allow_repeated: bool,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { max_memory: None, max_whole: 4 << 30, allow_repeated: false }
    }
}

impl ReadLimits {
    /// With another limit of memory for what is made of one file or object.
    pub fn with_max_memory(mut self, bytes: u64) -> Self {
        self.max_memory = Some(bytes);
        self
    }

    /// With another limit for what is read as a whole.
    pub fn with_max_whole(mut self, bytes: u64) -> Self {
        self.max_whole = bytes;
        self
    }

    /// With tensors read that repeat few stored bytes very often, or not.
    pub fn with_allow_repeated(mut self, allow: bool) -> Self {
        self.allow_repeated = allow;
        self
    }

    /// Refuses to read so many bytes as a whole. `what` says of what, before any of them is read.
    ///
    /// # Errors
    /// [`StrategyError::Limit`].
    pub fn whole(&self, what: impl fmt::Display, bytes: u64) -> Result<()> {
        if bytes <= self.max_whole {
            return Ok(());
        }
        let what = format!("{what} has {bytes} bytes, which is too much to be read as a whole");
        Err(StrategyError::Limit { what, option: LimitOption::MaxWhole, max: self.max_whole })
    }

    /// Refuses to write out tensors of so many bytes in all, of which so many are stored.
    ///
    /// # Errors
    /// [`StrategyError::Limit`].
    pub fn repeated(&self, what: impl fmt::Display, bytes: u64, stored: u64) -> Result<()> {
        if self.allow_repeated || !repeats(bytes, stored) || bytes <= REPEATED {
            return Ok(());
        }
        Err(Self::refused(what, bytes, stored))
    }

    /// What is said of tensors that are not read since few stored bytes are many elements.
    pub fn refused(what: impl fmt::Display, bytes: u64, stored: u64) -> StrategyError {
        let what = format!("{what}: {bytes} bytes of elements share {stored} that are stored");
        StrategyError::Limit { what, option: LimitOption::AllowRepeated, max: REPEATED }
    }

    /// A small or large file, whole; `None` when there is none. Its length is looked at before it is read.
    ///
    /// # Errors
    /// [`StrategyError::Limit`]; what the store says.
    pub async fn read(&self, store: &Arc<dyn Store>, name: &Name) -> Result<Option<Bytes>> {
        read_if(store, name, |len| self.whole(name, len)).await
    }
}

/// A whole file, if its length is permitted; `None` when there is none.
async fn read_if(
    store: &Arc<dyn Store>,
    name: &Name,
    permits: impl FnOnce(u64) -> Result<()>,
) -> Result<Option<Bytes>> {
    let Some(len) = store.len(name).await? else { return Ok(None) };
    permits(len)?;
    Ok(Some(store.read(name, 0..len).await?))
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
    read_if(store, name, is_small).await
}

/// Elements that few stored bytes may become without being asked for, in bytes.
pub const REPEATED: u64 = 1 << 30;

/// Whether elements of so many bytes lie over and over in the same stored bytes: no checksum, and no limit of a file's length,
/// says anything of how much they are.
pub fn repeats(bytes: u64, stored: u64) -> bool {
    bytes / 1024 > stored || (bytes / 1024 == stored && !bytes.is_multiple_of(1024))
}

/// Which of the [`ReadLimits`] it is that stops a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitOption {
    /// [`ReadLimits::max_memory`].
    MaxMemory,
    /// [`ReadLimits::max_whole`].
    MaxWhole,
    /// [`ReadLimits::allow_repeated`].
    AllowRepeated,
}

impl LimitOption {
    /// The name of the field; with hyphens it is the flag of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxMemory => "max_memory",
            Self::MaxWhole => "max_whole",
            Self::AllowRepeated => "allow_repeated",
        }
    }

    /// What to do about an error.
    pub(crate) fn advice(self, max: u64) -> String {
        let max = ByteSize(max);
        match self {
            Self::MaxMemory | Self::MaxWhole => {
                format!("the option {} raises the limit of {max}", self.name())
            }
            Self::AllowRepeated => format!("beyond {max} only the option {} reads that", self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_repeat_beyond_1024_times_what_is_stored() {
        assert!(!repeats(1024 * 7, 7) && repeats(1024 * 7 + 1, 7) && !repeats(0, 0) && repeats(1, 0));
        assert!(repeats(u64::MAX, 1) && !repeats(u64::MAX, u64::MAX));
        let limits = ReadLimits::default();
        assert!(limits.repeated("w", REPEATED, 4).is_ok());
        let e = limits.repeated("w", REPEATED + 4, 4).unwrap_err().to_string();
        assert!(e.contains("1073741828 bytes") && e.contains("allow_repeated"), "{e}");
        assert!(limits.repeated("w", REPEATED + 1024, (1 << 20) + 1).is_ok());
        assert!(limits.with_allow_repeated(true).repeated("w", 1 << 40, 4).is_ok());
    }

    #[test]
    fn what_is_read_whole_has_a_limit_that_the_error_names() {
        let limits = ReadLimits::default().with_max_whole(10 << 20);
        assert!(limits.whole(".metadata", 10 << 20).is_ok());
        let e = limits.whole(".metadata", (10 << 20) + 1).unwrap_err().to_string();
        assert!(
            e.contains(".metadata has 10485761 bytes") && e.contains("max_whole raises the limit of 10 MiB"),
            "{e}"
        );
    }
}
