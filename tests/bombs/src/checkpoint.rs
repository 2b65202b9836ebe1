//! What lies in a checkpoint's directory.

use crate::pickle::{Pickle, Type, done};
use anyhow::Result;
use std::{fs, path::Path};

/// Module of DCP's metadata classes.
pub const MD: &str = "torch.distributed.checkpoint.metadata";
const FS: &str = "torch.distributed.checkpoint.filesystem";
/// The file in which items lie.
pub const DATA: &str = "__0_0.distcp";
/// A `metadata.json` of Megatron Core.
pub const MEGATRON: &str = r#"{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}"#;

impl Pickle {
    /// `TensorProperties`, with fields that are written after the five.
    pub fn properties_with(&mut self, of: &str, more: impl FnOnce(&mut Self)) -> &mut Self {
        self.object((MD, "TensorProperties"), |p| {
            p.tuple(|p| {
                p.global(("torch", of));
                p.call(("torch.serialization", "_get_layout"), |p| {
                    done(p.text("torch.strided"))
                });
                p.raw(b"\x89")
                    .call((MD, "_MEM_FORMAT_ENCODING"), |p| done(p.int(0)))
                    .raw(b"\x89")
                    .with(more);
            });
        })
    }

    /// `TensorProperties`.
    pub fn properties(&mut self, of: &str) -> &mut Self {
        self.properties_with(of, |_| ())
    }

    /// `ChunkStorageMetadata`, of what is written.
    pub fn chunk_of(
        &mut self,
        offsets: impl FnOnce(&mut Self),
        sizes: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.object((MD, "ChunkStorageMetadata"), |p| {
            p.dict(|p| done(p.text("offsets").with(offsets).text("sizes").with(sizes)));
        })
    }

    /// `ChunkStorageMetadata`.
    pub fn chunk(&mut self, offsets: &[i64], sizes: &[i64]) -> &mut Self {
        self.chunk_of(|p| done(p.size(offsets)), |p| done(p.size(sizes)))
    }

    /// `TensorStorageMetadata`, of what is written.
    pub fn tensor_entry_of(
        &mut self,
        properties: impl FnOnce(&mut Self),
        size: impl FnOnce(&mut Self),
        chunks: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.object((MD, "TensorStorageMetadata"), |p| {
            p.dict(|p| {
                p.text("properties")
                    .with(properties)
                    .text("size")
                    .with(size)
                    .text("chunks")
                    .with(chunks);
            });
        })
    }

    /// A tensor that is stored in one chunk.
    pub fn tensor_entry(&mut self, of: Type, shape: &[i64]) -> &mut Self {
        self.tensor_entry_of(
            |p| done(p.properties(of.name())),
            |p| done(p.size(shape)),
            |p| done(p.list(|p| done(p.chunk(&vec![0; shape.len()], shape)))),
        )
    }

    /// `BytesStorageMetadata`.
    pub fn object_entry(&mut self) -> &mut Self {
        self.global((MD, "BytesStorageMetadata")).raw(b")\x81")
    }

    /// `MetadataIndex`, of a key that is written.
    pub fn index_of(
        &mut self,
        key: impl FnOnce(&mut Self),
        chunk: Option<(&[i64], i64)>,
    ) -> &mut Self {
        self.object((MD, "MetadataIndex"), |p| {
            p.dict(|p| {
                p.text("fqn").with(key).text("offset");
                match chunk {
                    None => p.none().text("index").none(),
                    Some((offset, index)) => p.size(offset).text("index").int(index),
                };
            });
        })
    }

    /// `MetadataIndex`.
    pub fn index(&mut self, key: &str, chunk: Option<(&[i64], i64)>) -> &mut Self {
        self.index_of(|p| done(p.text(key)), chunk)
    }

    /// `_StorageInfo`, with a file and further fields that are written.
    pub fn place_of(
        &mut self,
        file: impl FnOnce(&mut Self),
        offset: i64,
        length: i64,
        more: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.object((FS, "_StorageInfo"), |p| {
            p.dict(|p| {
                p.text("relative_path")
                    .with(file)
                    .text("offset")
                    .int(offset)
                    .text("length")
                    .int(length)
                    .with(more);
            });
        })
    }

    /// `_StorageInfo`.
    pub fn place(&mut self, offset: i64, length: i64) -> &mut Self {
        self.place_of(|p| done(p.text(DATA)), offset, length, |_| ())
    }

    /// `Metadata`, of entries, places and further fields that are written.
    pub fn metadata(
        &mut self,
        entries: impl FnOnce(&mut Self),
        places: impl FnOnce(&mut Self),
        more: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.object((MD, "Metadata"), |p| {
            p.dict(|p| {
                p.text("state_dict_metadata")
                    .dict(entries)
                    .text("storage_data")
                    .dict(places)
                    .with(more);
            });
        })
    }
}

/// A `.metadata` that says nothing but what is written before.
pub fn empty_metadata(mut before: Pickle) -> Vec<u8> {
    before.metadata(|_| (), |_| (), |_| ());
    before.end()
}

/// An item: an archive under a key.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its key.
    pub key: String,
    /// Of a tensor, its type and shape.
    pub tensor: Option<(Type, Vec<i64>)>,
    /// Bytes as they lie in the file.
    pub stored: Vec<u8>,
    /// Stream transforms.
    pub transforms: Vec<&'static str>,
}

impl Item {
    /// An object.
    pub fn object(key: &str, stored: Vec<u8>) -> Self {
        Self {
            key: key.into(),
            tensor: None,
            stored,
            transforms: Vec::new(),
        }
    }

    /// A tensor.
    pub fn tensor(key: &str, of: Type, shape: &[i64], stored: Vec<u8>) -> Self {
        Self {
            tensor: Some((of, shape.to_vec())),
            ..Self::object(key, stored)
        }
    }
}

/// Writes a file of a checkpoint.
///
/// # Errors
/// I/O.
pub fn put(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    Ok(fs::write(dir.join(name), bytes)?)
}

/// Writes a file that is longer than the disk, of which nothing but the beginning is there.
///
/// # Errors
/// I/O; file systems without sparse files.
pub fn put_sparse(dir: &Path, name: &str, bytes: &[u8], length: u64) -> Result<()> {
    put(dir, name, bytes)?;
    Ok(fs::File::options()
        .write(true)
        .open(dir.join(name))?
        .set_len(length)?)
}

/// Writes items, one behind the other, and the `.metadata` that lists them.
///
/// # Errors
/// I/O.
pub fn put_items(dir: &Path, items: &[Item]) -> Result<()> {
    let mut p = Pickle::new();
    let entries = |p: &mut Pickle| {
        for i in items {
            p.text(&i.key);
            match &i.tensor {
                None => p.object_entry(),
                Some((of, shape)) => p.tensor_entry(*of, shape),
            };
        }
    };
    let mut at = 0;
    let places = |p: &mut Pickle| {
        for i in items {
            let zeros = i.tensor.as_ref().map(|(_, shape)| vec![0; shape.len()]);
            p.index(&i.key, zeros.as_deref().map(|offset| (offset, 0)));
            let length = i.stored.len() as i64;
            let more = |p: &mut Pickle| {
                if !i.transforms.is_empty() {
                    p.text("transform_descriptors");
                    p.list(|p| i.transforms.iter().for_each(|t| done(p.text(t))));
                }
            };
            p.place_of(|p| done(p.text(DATA)), at, length, more);
            at += length;
        }
    };
    p.metadata(entries, places, |_| ());
    put(dir, ".metadata", &p.end())?;
    put(
        dir,
        DATA,
        &items
            .iter()
            .flat_map(|i| &i.stored)
            .copied()
            .collect::<Vec<u8>>(),
    )
}

/// Writes a checkpoint in Megatron's dialect, with nothing but common state.
///
/// # Errors
/// I/O.
pub fn put_common(dir: &Path, common: &[u8]) -> Result<()> {
    put(dir, ".metadata", &empty_metadata(Pickle::new()))?;
    put(dir, "common.pt", common)?;
    put(dir, "metadata.json", MEGATRON.as_bytes())
}
