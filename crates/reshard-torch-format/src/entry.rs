use crate::{
    Budget, Error, LegacyHead, Limits, Outline, Result, StorageRef,
    archive::{Archive, ArchiveOptions, Verify},
    legacy,
    pickle::{Graph, run},
    value::{Decoder, encode},
};
use bytes::Bytes;
use reshard_model::{BoxError, ObjectCodec, Value};

/// Options for reading.
///
/// ```
/// use reshard_torch_format::{LoadOptions, archive::Verify};
/// let options = LoadOptions::default().with_verify(Verify::No);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, derive_setters::Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct LoadOptions {
    /// Limits on what the file may ask for.
    pub limits: Limits,
    /// Whether checksums are compared.
    pub verify: Verify,
}

/// Reads a file of `torch.save` or `pickle.dump`: a zip archive, an older torch file, or a bare pickle. It executes nothing.
///
/// Dense tensors and parameters become tensors over the given bytes, without a copy. Objects of any other class become
/// [`Opaque`](reshard_model::Opaque). [`save`] writes these back so that Python recreates them.
///
/// # Errors
/// The error says what is wrong with the bytes, and where. Limits and checksums are the defaults of [`LoadOptions`].
///
/// ```
/// use reshard_torch_format::{load, save};
/// use reshard_model::{Tensor, Value};
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let state = Value::Dict(vec![
///     ("step".into(), 1000.into()),
///     ("weight".into(), Tensor::from_vec(&[2], vec![0.5f32, 1.5])?.into()),
/// ]);
/// let file = save(&state)?; // `torch.load` reads it
/// assert_eq!(load(file.into())?, state);
/// # Ok(())
/// # }
/// ```
pub fn load(bytes: Bytes) -> Result<Value> {
    load_with(bytes, &LoadOptions::default())
}

/// As [`load`], with options.
///
/// # Errors
/// As [`load`].
pub fn load_with(bytes: Bytes, options: &LoadOptions) -> Result<Value> {
    if bytes.is_empty() {
        Err(Error::archive(0, "it is empty"))
    } else if bytes.starts_with(b"PK\x03\x04") {
        load_archive(&Archive::open(bytes, &options.limits)?, options)
    } else if LegacyHead::is_legacy(&bytes) {
        legacy::load(&bytes, &options.limits)
    } else {
        load_pickle(&bytes, &options.limits)
    }
}

/// Reads the value of an archive.
fn load_archive(archive: &Archive, options: &LoadOptions) -> Result<Value> {
    let len = archive.bytes().len() as u64;
    let mut budget = options.limits.budget(len);
    let pickle = archive.directory().get("data.pkl")?;
    let pickle = archive.content_within(pickle, options.verify, &mut budget)?;
    let order = archive.byte_order()?;
    let mut graph = Graph::within(budget);
    let (root, _) = run(&pickle, &mut graph, &options.limits)?;
    let fetch = |s: &StorageRef, budget: &mut Budget| {
        let record = archive.directory().get(&s.record())?;
        // Before it is unpacked.
        s.check(record.size)?;
        archive.content_within(record, options.verify, budget)
    };
    Decoder::new(&graph, &pickle, &options.limits, fetch)
        .of_file(order, len)
        .value(root)
}

fn load_pickle(bytes: &Bytes, limits: &Limits) -> Result<Value> {
    let mut graph = Graph::default();
    let (root, end) = run(bytes, &mut graph, limits)?;
    if end < bytes.len() {
        let what = "bytes follow the pickle: it is an old torch file without its magic number, or has elements behind the pickle";
        return Err(Error::pickle(end, what));
    }
    let fetch = |s: &StorageRef, _: &mut Budget| {
        Err(Error::tensor(&s.key, "a bare pickle has no storages"))
    };
    Decoder::new(&graph, bytes, limits, fetch).value(root)
}

/// Writes a value as `torch.save` does, in the layout of torch 2.7 and later.
///
/// # Errors
/// [`Error::Encode`] as in [`encode`](crate::encode).
pub fn save(value: &Value) -> Result<Vec<u8>> {
    save_with(value, &ArchiveOptions::default())
}

/// As [`save`], with options for prefix and layout.
///
/// # Errors
/// As [`save`].
pub fn save_with(value: &Value, options: &ArchiveOptions) -> Result<Vec<u8>> {
    encode(value)?.archive(options)
}

/// The codec of stored objects: `torch.save` archives.
///
/// ```
/// use reshard_model::{ObjectCodec, Value};
/// use reshard_torch_format::TorchSave;
/// let codec = TorchSave::default();
/// let bytes = codec.encode(&Value::Int(7)).unwrap();
/// assert_eq!(codec.decode(&bytes).unwrap(), Value::Int(7));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TorchSave {
    /// How to read.
    pub load: LoadOptions,
    /// How to write.
    pub archive: ArchiveOptions,
}

impl TorchSave {
    /// What the value of an object doesn't say, in words, as [`Outline::unsaid`].
    ///
    /// # Errors
    /// As [`load`], if the pickle can't be read.
    pub fn unsaid(&self, bytes: &Bytes) -> Result<Option<String>> {
        let limits = &self.load.limits;
        let len = bytes.len() as u64;
        let pickle = if bytes.starts_with(b"PK\x03\x04") {
            let archive = Archive::open(bytes.clone(), limits)?;
            let pickle = archive.directory().get("data.pkl")?;
            archive.content_within(pickle, self.load.verify, &mut limits.budget(len))?
        } else if LegacyHead::is_legacy(bytes) {
            bytes.slice(LegacyHead::parse(bytes, len, limits)?.pickle)
        } else {
            bytes.clone()
        };
        Outline::parse(&pickle, len, limits)?.unsaid()
    }

    /// Its name.
    pub const NAME: &'static str = "torch.save";

    /// A codec with these options.
    pub fn new(load: LoadOptions, archive: ArchiveOptions) -> Self {
        Self { load, archive }
    }
}

impl ObjectCodec for TorchSave {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn decode(&self, bytes: &Bytes) -> Result<Value, BoxError> {
        Ok(load_with(bytes.clone(), &self.load)?)
    }

    fn encode(&self, value: &Value) -> Result<Bytes, BoxError> {
        Ok(save_with(value, &self.archive)?.into())
    }
}
