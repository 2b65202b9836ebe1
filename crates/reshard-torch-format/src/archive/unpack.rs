//! Unpacks packed records block by block.

use super::{Method, Record, Verify};
use crate::{Error, Result};
use bytes::Bytes;

/// Deflate never packs better than 1032 to 1. A larger claimed size is wrong, and no memory is allocated for it.
const MAX_RATIO: u64 = 1032;
/// The number of bytes that a check unpacks at a time.
const BLOCK: usize = 64 << 10;
/// Memory for a record is allocated in steps of this many bytes, only as they are really unpacked.
const STEP: usize = 1 << 20;

/// Unpacks the content of a record in blocks. It needs the memory of one block, whatever the record unpacks to.
///
/// It never returns more than [`Record::size`] bytes. Records that are not packed are returned as they are.
///
/// ```
/// use reshard_torch_format::archive::{Archive, ArchiveOptions, Inflate, write_archive};
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let file = write_archive(b"\x80\x02N.", &[&[7; 100]], &ArchiveOptions::default())?;
/// let archive = Archive::open(file.into(), &Default::default())?;
/// let record = archive.directory().get("data/0")?;
/// // `stored` are the bytes of `record.data_range(…)`
/// # let stored = archive.read("data/0", Default::default())?;
/// let mut content = Inflate::new(record, stored)?;
/// let mut block = [0; 64];
/// let mut sum = 0u64;
/// loop {
///     match content.next_block(&mut block)? {
///         0 => break,
///         n => sum += block[..n].iter().map(|b| u64::from(*b)).sum::<u64>(),
///     }
/// }
/// content.verify()?;
/// assert_eq!(sum, 700);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Inflate<B> {
    stored: B,
    record: Record,
    /// None for a record that is not packed.
    stream: Option<flate2::Decompress>,
    /// Packed bytes used so far.
    used: usize,
    /// Bytes of the content that were not returned yet.
    left: u64,
    /// Whether the packed bytes were seen to end where the content does.
    ended: bool,
    crc: crc32fast::Hasher,
}

impl<B: AsRef<[u8]>> Inflate<B> {
    /// Starts at the first byte. It needs all stored bytes of the record.
    ///
    /// # Errors
    /// [`Error::Archive`] if their number is not that in the directory, or if they can't unpack to the size in the directory.
    /// [`Error::Unsupported`] for an unknown method.
    pub fn new(record: &Record, stored: B) -> Result<Self> {
        record.is_known()?;
        let len = stored.as_ref().len() as u64;
        if len != record.stored {
            let what = format!(
                "{:?} has {} bytes, but {len} were given",
                record.name, record.stored
            );
            return Err(Error::archive(record.header, what));
        }
        let stream = match record.method {
            Method::Deflated => Some(flate2::Decompress::new(false)),
            Method::Stored | Method::Unknown { .. } => None,
        };
        let inflate = Self {
            stored,
            record: record.clone(),
            stream,
            used: 0,
            left: record.size,
            ended: false,
            crc: crc32fast::Hasher::new(),
        };
        if record.size > len.saturating_mul(MAX_RATIO) {
            return Err(inflate.bad());
        }
        Ok(inflate)
    }

    /// Reads the next bytes of the content. It fills the block, except at the end; after the end it returns 0.
    ///
    /// # Errors
    /// [`Error::Archive`] if the record unpacks to fewer or more bytes than the directory says.
    pub fn next_block(&mut self, block: &mut [u8]) -> Result<usize> {
        let n = self.fill(block)?;
        self.crc.update(block.get(..n).unwrap_or(block));
        Ok(n)
    }

    /// Bytes of the content that were not given yet.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Compares the checksum of the returned bytes with that of the record. Call it when nothing is left.
    ///
    /// # Errors
    /// [`Error::Checksum`].
    pub fn verify(&self) -> Result<()> {
        compare(&self.record, self.crc.clone().finalize())
    }

    /// Unpacks the rest, and compares the checksum.
    ///
    /// # Errors
    /// Those of [`next_block`](Self::next_block) and [`verify`](Self::verify).
    pub fn check(mut self) -> Result<()> {
        let mut block = vec![0; BLOCK];
        while self.next_block(&mut block)? > 0 {}
        self.verify()
    }

    fn bad(&self) -> Error {
        let what = format!(
            "{:?} does not unpack to {} bytes",
            self.record.name, self.record.size
        );
        Error::archive(self.record.header, what)
    }

    fn fill(&mut self, block: &mut [u8]) -> Result<usize> {
        let wanted = block
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let mut block = block.get_mut(..wanted).unwrap_or_default();
        while !block.is_empty() {
            let (n, end) = self.step(block)?;
            block = block.get_mut(n..).unwrap_or_default();
            if end && !block.is_empty() {
                return Err(self.bad());
            }
        }
        self.left -= wanted as u64;
        if self.left == 0 && !self.ended {
            let (more, end) = self.step(&mut [0])?;
            if more > 0 || !end {
                return Err(self.bad());
            }
        }
        Ok(wanted)
    }

    /// Unpacks some bytes, and says whether they were the last. Either at least one byte is given, or it was the end.
    fn step(&mut self, block: &mut [u8]) -> Result<(usize, bool)> {
        let rest = self.stored.as_ref().get(self.used..).unwrap_or(&[]);
        let Some(stream) = &mut self.stream else {
            let n = rest.len().min(block.len());
            if let (Some(to), Some(from)) = (block.get_mut(..n), rest.get(..n)) {
                to.copy_from_slice(from);
            }
            self.used += n;
            self.ended = self.used as u64 == self.record.stored;
            return Ok((n, self.ended));
        };
        if self.ended {
            return Ok((0, true));
        }
        loop {
            let rest = self.stored.as_ref().get(self.used..).unwrap_or(&[]);
            let (used, given) = (stream.total_in(), stream.total_out());
            let status = stream.decompress(rest, block, flate2::FlushDecompress::None);
            let (used, given) = (stream.total_in() - used, stream.total_out() - given);
            self.used += used as usize;
            match status {
                Ok(flate2::Status::StreamEnd) => {
                    self.ended = true;
                    return Ok((given as usize, true));
                }
                Ok(_) if given > 0 => return Ok((given as usize, false)),
                Ok(_) if used > 0 => {}
                _ => return Err(self.bad()),
            }
        }
    }
}

/// Compares the checksum of the content of a record with that in the archive, if it has one.
fn compare(record: &Record, found: u32) -> Result<()> {
    if record.checksum().is_none_or(|stored| stored == found) {
        return Ok(());
    }
    Err(Error::Checksum {
        name: record.name.clone(),
        stored: record.crc32,
        found,
    })
}

/// The content of a record, given its bytes as they lie in the archive; at most `max` bytes are unpacked.
///
/// # Errors
/// [`Error::Archive`] when they do not unpack to the size that the directory says; [`Error::Limit`]; [`Error::Checksum`].
pub fn unpack(record: &Record, stored: Bytes, max: u64, verify: Verify) -> Result<Bytes> {
    let content = content(record, stored, max)?;
    if verify == Verify::Crc {
        compare(record, crc32fast::hash(&content))?;
    }
    Ok(content)
}

fn content(record: &Record, stored: Bytes, max: u64) -> Result<Bytes> {
    let mut stream = Inflate::new(record, stored)?;
    if record.method == Method::Stored {
        return Ok(stream.stored);
    }
    if record.size > max {
        return Err(Error::Limit {
            offset: record.header,
            limit: "unpacked bytes",
            max,
        });
    }
    let no_memory = || {
        let what = format!(
            "holding the {} bytes of {:?}, for which there is no memory,",
            record.size, record.name
        );
        Error::unsupported(record.header, what)
    };
    let size = usize::try_from(record.size).map_err(|_| no_memory())?;
    let mut out = Vec::new();
    out.try_reserve_exact(size).map_err(|_| no_memory())?;
    loop {
        let from = out.len();
        out.resize(size.min(from + STEP), 0);
        stream.fill(out.get_mut(from..).unwrap_or_default())?;
        if out.len() == size {
            return Ok(out.into());
        }
    }
}
