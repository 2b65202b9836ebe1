//! Zip archives, ordinary ones and such that lie.

use anyhow::Result;
use crc32fast::Hasher;
use flate2::{Compression, write::DeflateEncoder};
use std::io::Write;

/// A record, and what headers say of it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Full name.
    pub name: String,
    /// Bytes as they lie in the file.
    pub stored: Vec<u8>,
    /// 0 as they are, 8 deflated.
    pub method: u16,
    /// Length when unpacked.
    pub size: u64,
    /// Checksum when unpacked.
    pub crc: u32,
}

impl Record {
    /// Stored as it is.
    pub fn plain(name: impl Into<String>, bytes: &[u8]) -> Self {
        let (size, crc) = (bytes.len() as u64, crc32fast::hash(bytes));
        Self {
            name: name.into(),
            stored: bytes.to_vec(),
            method: 0,
            size,
            crc,
        }
    }

    /// Deflated.
    ///
    /// # Errors
    /// Never, in practice.
    pub fn deflated(name: impl Into<String>, bytes: &[u8]) -> Result<Self> {
        let mut packer = DeflateEncoder::new(Vec::new(), Compression::best());
        packer.write_all(bytes)?;
        Ok(Self {
            stored: packer.finish()?,
            method: 8,
            ..Self::plain(name, bytes)
        })
    }

    /// So many MiB of one byte, deflated: about a thousandth of them lies in the file.
    ///
    /// # Errors
    /// Never, in practice.
    pub fn blown_up(
        name: impl Into<String>,
        before: &[u8],
        byte: u8,
        mebibytes: usize,
        behind: &[u8],
    ) -> Result<Self> {
        let mut stored = Vec::new();
        let mut crc = Hasher::new();
        let mut size = 0;
        let part = |bytes: &[u8]| -> Result<(Vec<u8>, Hasher)> {
            // What is flushed ends at a byte and refers to nothing before it, so that it can be repeated.
            let mut packer = DeflateEncoder::new(Vec::new(), Compression::best());
            packer.write_all(bytes)?;
            packer.flush()?;
            let mut hasher = Hasher::new();
            hasher.update(bytes);
            Ok((packer.get_ref().clone(), hasher))
        };
        let block = vec![byte; 1 << 20];
        for (bytes, times) in [(before, 1), (&block, mebibytes), (behind, 1)] {
            let (packed, hasher) = part(bytes)?;
            for _ in 0..times {
                stored.extend_from_slice(&packed);
                crc.combine(&hasher);
                size += bytes.len() as u64;
            }
        }
        stored.extend_from_slice(b"\x01\0\0\xff\xff");
        Ok(Self {
            name: name.into(),
            stored,
            method: 8,
            size,
            crc: crc.finalize(),
        })
    }
}

/// An archive that grows.
#[derive(Clone, Debug, Default)]
pub struct Zip {
    body: Vec<u8>,
    directory: Vec<u8>,
    listed: u64,
}

fn low(n: u64) -> [u8; 4] {
    u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes()
}

impl Zip {
    /// Writes a record, and lists it.
    pub fn add(&mut self, r: &Record) -> &mut Self {
        let at = self.body.len() as u64;
        let flags = 0u16;
        self.body.extend_from_slice(b"PK\x03\x04\x14\0");
        self.body.extend_from_slice(&flags.to_le_bytes());
        self.body.extend_from_slice(&r.method.to_le_bytes());
        self.body.extend_from_slice(&[0; 4]);
        self.body.extend_from_slice(&r.crc.to_le_bytes());
        self.body.extend_from_slice(&low(r.stored.len() as u64));
        self.body.extend_from_slice(&low(r.size));
        self.body
            .extend_from_slice(&(r.name.len() as u16).to_le_bytes());
        self.body.extend_from_slice(&0u16.to_le_bytes());
        self.body.extend_from_slice(r.name.as_bytes());
        self.body.extend_from_slice(&r.stored);
        self.list(r, at, r.stored.len() as u64)
    }

    /// Lists a record that lies, or does not, at a position.
    pub fn list(&mut self, r: &Record, at: u64, stored: u64) -> &mut Self {
        let mut wide = Vec::new();
        for n in [r.size, stored, at] {
            if n >= u64::from(u32::MAX) {
                wide.extend_from_slice(&n.to_le_bytes());
            }
        }
        let d = &mut self.directory;
        d.extend_from_slice(b"PK\x01\x02\x14\0\x14\0\0\0");
        d.extend_from_slice(&r.method.to_le_bytes());
        d.extend_from_slice(&[0; 4]);
        d.extend_from_slice(&r.crc.to_le_bytes());
        d.extend_from_slice(&low(stored));
        d.extend_from_slice(&low(r.size));
        d.extend_from_slice(&(r.name.len() as u16).to_le_bytes());
        let extra = if wide.is_empty() {
            0
        } else {
            wide.len() as u16 + 4
        };
        d.extend_from_slice(&extra.to_le_bytes());
        d.extend_from_slice(&[0; 10]);
        d.extend_from_slice(&low(at));
        d.extend_from_slice(r.name.as_bytes());
        if !wide.is_empty() {
            d.extend_from_slice(&1u16.to_le_bytes());
            d.extend_from_slice(&(wide.len() as u16).to_le_bytes());
            d.extend_from_slice(&wide);
        }
        self.listed += 1;
        self
    }

    /// The archive, with a comment.
    pub fn end(&self, comment: &[u8]) -> Vec<u8> {
        self.end_as(
            self.listed,
            self.body.len() as u64,
            self.directory.len() as u64,
            comment,
        )
    }

    /// The archive, whose end says where its directory lies.
    pub fn end_as(&self, listed: u64, at: u64, length: u64, comment: &[u8]) -> Vec<u8> {
        let mut out = [&self.body[..], &self.directory].concat();
        let end = out.len() as u64;
        out.extend_from_slice(b"PK\x06\x06");
        out.extend_from_slice(&44u64.to_le_bytes());
        out.extend_from_slice(b"\x2d\0\x2d\0\0\0\0\0\0\0\0\0");
        for n in [listed, listed, length, at] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(b"PK\x06\x07\0\0\0\0");
        out.extend_from_slice(&end.to_le_bytes());
        out.extend_from_slice(&1u32.to_le_bytes());
        out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
        let short = u16::try_from(listed).unwrap_or(u16::MAX).to_le_bytes();
        out.extend_from_slice(&[short, short].concat());
        out.extend_from_slice(&low(length));
        out.extend_from_slice(&low(at));
        out.extend_from_slice(&(comment.len() as u16).to_le_bytes());
        out.extend_from_slice(comment);
        out
    }
}

/// An archive as `torch.save` makes them: a pickle, and storages by name.
pub fn torch(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    let storages: Vec<Record> = storages
        .iter()
        .map(|(name, bytes)| Record::plain(format!("archive/data/{name}"), bytes))
        .collect();
    torch_of(&Record::plain("archive/data.pkl", pickle), &storages)
}

/// The same of records.
pub fn torch_of(pickle: &Record, storages: &[Record]) -> Vec<u8> {
    let mut zip = Zip::default();
    zip.add(pickle)
        .add(&Record::plain("archive/byteorder", b"little"));
    for r in storages {
        zip.add(r);
    }
    zip.add(&Record::plain("archive/version", b"3\n")).end(b"")
}
