//! The zip archive that `torch.save` writes: a `data.pkl`, one record per storage, and a few small ones.
//!
//! There are two ways to read. [`Archive`] holds all bytes. [`Tail`] needs only about the last kilobyte of an archive to find its
//! [`Directory`]. Then you fetch exactly the ranges that you want:
//!
//! ```
//! use reshard_torch_format::archive::{ArchiveOptions, Record, Tail, write_archive};
//!
//! # fn main() -> Result<(), reshard_torch_format::Error> {
//! let file = write_archive(b"\x80\x02N.", &[&[7; 100]], &ArchiveOptions::default())?;
//! let fetch = |r: std::ops::Range<u64>| &file[r.start as usize..r.end as usize];
//!
//! let len = file.len() as u64;
//! let mut range = Tail::first_range(len);
//! let directory = loop {
//!     match Tail::parse(len, fetch(range.clone()))? {
//!         Tail::Done(directory) => break directory,
//!         Tail::Need(more) => range = more,
//!     }
//! };
//! let storage: &Record = directory.get("data/0")?;
//! let header = fetch(storage.header_range());
//! let data = storage.data_range(header)?;
//! assert_eq!(fetch(data.clone()), [7; 100]);
//! assert_eq!(data.start % 64, 0);
//! # Ok(())
//! # }
//! ```
//!
//! To write, the whole [layout](ArchiveLayout) is computed before the first byte. So data can go straight from your buffers to their
//! positions in a file.

mod directory;
mod form;
mod framing;
mod id;
mod layout;
mod read;
mod salvage;
mod unpack;

pub use directory::{Directory, Method, Record, Tail};
pub use form::Form;
pub use framing::{Framing, Unconfirmed};
pub use layout::{ArchiveLayout, ArchiveOptions, Era, RECORDS, write_archive};
pub use read::{Archive, ByteOrder, Verify, check_version};
pub use salvage::scan_records;
pub use unpack::{Inflate, unpack};

/// Data of a record starts at a multiple of this many bytes from the start of the archive.
pub const ALIGNMENT: u64 = 64;

/// The flag of a record whose checksum and sizes follow its data.
const HAS_DESCRIPTOR: u16 = 1 << 3;
const LOCAL_HEADER: u32 = 0x0403_4B50;
const DESCRIPTOR: u32 = 0x0807_4B50;
const CENTRAL_HEADER: u32 = 0x0201_4B50;
const END: u32 = 0x0605_4B50;
const END64: u32 = 0x0606_4B50;
const LOCATOR64: u32 = 0x0706_4B50;
/// Sizes and positions from here on go to the zip64 fields.
const MAX32: u64 = 0xFFFF_FFFF;
