//! Checkpoints byte by byte, of kinds that no program writes.

use std::{fs, io::Write, ops::Range, path::Path};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

const MD: &str = "torch.distributed.checkpoint.metadata";

fn text(s: &str) -> Vec<u8> {
    [b"X", &(s.len() as u32).to_le_bytes()[..], s.as_bytes()].concat()
}

fn int(n: u64) -> Vec<u8> {
    [&[0x8a, 9][..], &n.to_le_bytes(), &[0]].concat()
}

pub(crate) fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [&b"("[..], &items.concat(), b"t"].concat()
}

fn dict(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let fields: Vec<u8> = fields
        .iter()
        .flat_map(|(k, v)| [text(k), v.clone()].concat())
        .collect();
    [&b"}("[..], &fields, b"u"].concat()
}

fn object(module: &str, name: &str, state: Vec<u8>) -> Vec<u8> {
    [
        global(module, name),
        b")\x81".to_vec(),
        state,
        b"b".to_vec(),
    ]
    .concat()
}

fn ints(dims: &[u64]) -> Vec<u8> {
    tuple(&dims.iter().map(|d| int(*d)).collect::<Vec<_>>())
}

fn size(dims: &[u64]) -> Vec<u8> {
    [global("torch", "Size"), ints(dims), b"\x85R".to_vec()].concat()
}

/// An item and the bytes that are stored of it.
pub(crate) struct Item {
    pub(crate) key: String,
    /// None for an object.
    pub(crate) shape: Option<Vec<u64>>,
    pub(crate) stored: Vec<u8>,
    pub(crate) transform: Option<&'static str>,
    /// Whether the metadata say where it lies.
    pub(crate) placed: bool,
}

impl Item {
    pub(crate) fn tensor(key: &str, shape: &[u64], stored: Vec<u8>) -> Self {
        Self {
            key: key.into(),
            shape: Some(shape.into()),
            ..Self::object(key, stored)
        }
    }

    pub(crate) fn object(key: &str, stored: Vec<u8>) -> Self {
        Self {
            key: key.into(),
            shape: None,
            stored,
            transform: None,
            placed: true,
        }
    }

    pub(crate) fn without_place(self) -> Self {
        Self {
            placed: false,
            ..self
        }
    }

    pub(crate) fn transformed(self, by: &'static str) -> Self {
        Self {
            transform: Some(by),
            ..self
        }
    }

    fn described(&self) -> Vec<u8> {
        let Some(shape) = &self.shape else {
            return [global(MD, "BytesStorageMetadata"), b")\x81".to_vec()].concat();
        };
        let properties = tuple(&[
            global("torch", "float32"),
            b"N".to_vec(),
            b"\x89".to_vec(),
            b"N".to_vec(),
            b"\x89".to_vec(),
        ]);
        let chunk = object(
            MD,
            "ChunkStorageMetadata",
            dict(&[
                ("offsets", size(&vec![0; shape.len()])),
                ("sizes", size(shape)),
            ]),
        );
        object(
            MD,
            "TensorStorageMetadata",
            dict(&[
                ("properties", object(MD, "TensorProperties", properties)),
                ("size", size(shape)),
                ("chunks", [&b"]("[..], &chunk, b"e"].concat()),
            ]),
        )
    }

    fn index(&self) -> Vec<u8> {
        let offset = self
            .shape
            .as_ref()
            .map_or_else(|| b"N".to_vec(), |s| size(&vec![0; s.len()]));
        object(
            MD,
            "MetadataIndex",
            dict(&[
                ("fqn", text(&self.key)),
                ("offset", offset),
                ("index", b"N".to_vec()),
            ]),
        )
    }

    fn place(&self, file: &str, at: &Range<u64>) -> Vec<u8> {
        let mut fields = vec![
            ("relative_path", text(file)),
            ("offset", int(at.start)),
            ("length", int(at.end - at.start)),
        ];
        if let Some(by) = self.transform {
            fields.push((
                "transform_descriptors",
                [&b"]("[..], &text(by), b"e"].concat(),
            ));
        }
        object(
            "torch.distributed.checkpoint.filesystem",
            "_StorageInfo",
            dict(&fields),
        )
    }
}

/// Writes a checkpoint of one file.
pub(crate) fn write(dir: &Path, items: &[Item]) {
    write_as(dir, items, ".metadata", "__0_0.distcp");
}

/// Writes what a rank of a rank-local checkpoint saves, into a data file of this name.
pub(crate) fn write_rank(dir: &Path, rank: usize, file: &str, items: &[Item]) {
    write_as(dir, items, &format!("__{rank}.metadata"), file);
}

fn write_as(dir: &Path, items: &[Item], metadata: &str, file: &str) {
    let (mut described, mut places, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        let at = data.len() as u64..(data.len() + item.stored.len()) as u64;
        data.extend(&item.stored);
        described.extend([text(&item.key), item.described()].concat());
        if item.placed {
            places.extend([item.index(), item.place(file, &at)].concat());
        }
    }
    let filled = |pairs: Vec<u8>| [&b"}("[..], &pairs, b"u"].concat();
    let root = dict(&[
        ("state_dict_metadata", filled(described)),
        ("storage_data", filled(places)),
        ("planner_data", b"N".to_vec()),
    ]);
    fs::create_dir_all(dir).unwrap();
    fs::write(
        dir.join(metadata),
        [&b"\x80\x04"[..], &object(MD, "Metadata", root), b"."].concat(),
    )
    .unwrap();
    fs::write(dir.join(file), data).unwrap();
}

/// The call that makes a tensor of a float32 storage of so many elements.
pub(crate) fn view(shape: &[u64], strides: &[u64], storage: u64) -> Vec<u8> {
    let id = tuple(&[
        text("storage"),
        global("torch", "FloatStorage"),
        text("0"),
        text("cpu"),
        int(storage),
    ]);
    let hooks = [global("collections", "OrderedDict"), b")R".to_vec()].concat();
    let storage = [id, b"Q".to_vec()].concat();
    let args = tuple(&[
        storage,
        int(0),
        ints(shape),
        ints(strides),
        b"\x89".to_vec(),
        hooks,
    ]);
    [
        global("torch._utils", "_rebuild_tensor_v2"),
        args,
        b"R".to_vec(),
    ]
    .concat()
}

/// A whole pickle.
pub(crate) fn pickle(value: Vec<u8>) -> Vec<u8> {
    [&b"\x80\x02"[..], &value, b"."].concat()
}

/// An archive as `torch.save` lays it out, its storage packed or not.
pub(crate) fn archive(pickle: &[u8], storage: &[u8], packed: bool) -> Vec<u8> {
    zip(&[
        ("data.pkl", pickle, false),
        ("version", b"3\n", false),
        ("data/0", storage, packed),
    ])
}

/// An archive of records, each of them packed or not.
pub(crate) fn zip<N: AsRef<str>>(records: &[(N, &[u8], bool)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes, packed) in records {
        let method = if *packed {
            CompressionMethod::Deflated
        } else {
            CompressionMethod::Stored
        };
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(format!("archive/{}", name.as_ref()), options)
            .unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A zstd frame of these bytes as they are, and of so many blocks of 128 KiB of zeros behind them.
pub(crate) fn zstd(bytes: &[u8], zeros: usize) -> Vec<u8> {
    const BLOCK: usize = 128 << 10;
    // No checksum, no content size, a window of 128 KiB.
    let mut out = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    let header =
        |kind: usize, len: usize| ((len << 3 | kind << 1) as u32).to_le_bytes()[..3].to_vec();
    for block in bytes.chunks(BLOCK) {
        out.extend(header(0, block.len()));
        out.extend(block);
    }
    for _ in 0..zeros {
        out.extend(header(1, BLOCK));
        out.push(0);
    }
    out.extend([1, 0, 0]);
    out
}

/// Puts an array of Zarr v2, of two float32, into a folder.
pub(crate) fn zarr2(folder: &Path) {
    let array = serde_json::json!({
        "zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<f4", "compressor": null,
        "fill_value": 0.0, "filters": null, "order": "C",
    });
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join(".zarray"), array.to_string()).unwrap();
    let elements = [1f32, 2.].map(f32::to_le_bytes).concat();
    fs::write(folder.join("0"), elements).unwrap();
}
