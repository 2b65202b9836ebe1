//! Stored tensors, and any region of them.

use super::handle::{ACT, Checkpoint, not_stored};
use crate::{Error, Result, error::Context};
use bytes::Bytes;
use reshard_model::{
    BoxError, DType, Data, Dims, Element, FlatStateDict, Path, Region, Select, Sharded,
    ShardedTensor, SourceError, Tensor, TensorSource, cast::check_fit,
};
use reshard_plan::{Cast, TensorRef, scale_of};
use reshard_strategy::{ElementChecksum, StorageInfo, StrategyError};
use std::sync::Arc;

/// A stored chunk of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredChunk {
    /// The box of the tensor that it holds; of a [flattened](TensorHandle::flattened_shape) one, of its stored shape.
    pub region: Region,
    /// Where the parts of the stored item lie. Empty if the checkpoint does not say.
    pub parts: Vec<StorageInfo>,
}

impl Checkpoint {
    /// A tensor, by key.
    ///
    /// # Errors
    /// There is no tensor of that key.
    pub fn tensor(&self, key: &str) -> Result<TensorHandle> {
        let missing = || {
            let metadata = self.metadata();
            match metadata.object(key) {
                Some(_) => not_stored(format!(
                    "{key:?} is an object, not a tensor; `Checkpoint::object` reads it"
                )),
                None => self.unknown("tensor", key, metadata.tensor_count()),
            }
        };
        let found = self
            .metadata()
            .tensor(key)
            .ok_or_else(missing)
            .during(ACT, &self.url)?;
        Ok(self.handle(&found))
    }

    /// All tensors, by key.
    pub fn tensors(&self) -> impl Iterator<Item = TensorHandle> + '_ {
        self.metadata().tensors().map(|t| self.handle(&t))
    }

    /// The chunks of a tensor, each with the checksum of its elements in row-major order, as the checkpoint says. `None` if it does not say that
    /// of all of them. A tool that reads every element once checks by it what it reads.
    ///
    /// # Errors
    /// There is no tensor of that key, or it is damaged.
    pub async fn element_checksums(
        &self,
        key: &str,
    ) -> Result<Option<Vec<(Region, ElementChecksum)>>> {
        let tensor = self.tensor(key)?;
        let found = self.metadata().tensor(tensor.key());
        let chunks: Vec<_> = found.iter().flat_map(|t| t.chunks()).collect();
        let ids: Vec<_> = chunks.iter().map(|(id, _)| *id).collect();
        let checksums = self.opened.reader.element_checksums(&ids).await;
        let checksums = checksums.during(ACT, &self.url)?;
        let regions = chunks.into_iter().map(|(_, region)| region);
        let all = regions
            .zip(checksums)
            .map(|(region, sum)| Some((region, sum?)));
        Ok(all.collect())
    }

    fn handle(&self, t: &TensorRef<'_>) -> TensorHandle {
        TensorHandle {
            checkpoint: self.clone(),
            key: t.key().into(),
            dtype: t.dtype(),
            shape: t.global_shape(),
        }
    }
}

/// A tensor of a checkpoint as it is stored ([`TensorHandle`]), or as a map shows it ([`MappedTensorHandle`](crate::MappedTensorHandle)). You can
/// read any region of it.
#[derive(Clone, Debug)]
pub struct Handle<C> {
    pub(crate) checkpoint: C,
    pub(crate) key: Box<str>,
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
}

/// A stored tensor.
pub type TensorHandle = Handle<Checkpoint>;

/// `TensorHandle::read_into` reads at most this many bytes at a time.
const READ_BLOCK: u64 = 32 << 20;

impl<C> Handle<C> {
    /// Its key. That of a mapped tensor is the mapped one.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements along each axis.
    pub fn shape(&self) -> &Dims {
        &self.shape
    }

    /// The size of all elements, in bytes.
    pub fn nbytes(&self) -> u64 {
        let elements = self.shape.volume().unwrap_or(u64::MAX);
        elements.saturating_mul(self.dtype.size())
    }

    /// Divides the tensor into regions in row-major order, so that you can process it in bounded memory. Each region
    /// has at most `max` bytes, but at least one element.
    pub fn blocks(&self, max: u64) -> impl Iterator<Item = Region> + Send + use<C> {
        Region::whole(&self.shape).blocks(max / self.dtype.size())
    }
}

impl Handle<Checkpoint> {
    /// The stored shape of a tensor that Megatron Core has stored flattened: the number of cells into which it is cut along each axis, then
    /// the elements of a cell. It is read as if it were not flattened.
    pub fn flattened_shape(&self) -> Option<Dims> {
        let tensor = self.checkpoint.metadata().tensor(&self.key)?;
        tensor.original_shape().map(|_| tensor.shape())
    }

    /// Its chunks, in stored order.
    pub fn chunks(&self) -> Vec<StoredChunk> {
        let reader = &self.checkpoint.opened.reader;
        let tensor = self.checkpoint.metadata().tensor(&self.key);
        tensor.map_or_else(Vec::new, |t| {
            t.chunks()
                .map(|(id, region)| StoredChunk {
                    region,
                    parts: reader.locate_chunk(id),
                })
                .collect()
        })
    }

    /// Reads a region: a [`Region`], some rows (`Region::rows(0..128)`) or everything (`..`). It reads only the bytes
    /// of the region, however the tensor is cut into chunks.
    ///
    /// # Errors
    /// A region outside the shape, a hole, damage, no memory.
    pub async fn read(&self, what: impl Select) -> Result<Tensor> {
        self.read_with(what, self.dtype).await
    }

    /// Reads the elements of a region as numbers of this type, in row-major order, whatever the stored type: bfloat16 as `f32`, for example.
    /// They are converted as [`Tensor::cast`] does, but no int wraps around: if a value does not fit an int type, that is an error. A float loses its
    /// fraction when it becomes an int, and is rounded to a shorter float.
    ///
    /// ```
    /// # use reshard::{DType, ShardedTensor, StateDict, Tensor, blocking};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let mut state = StateDict::new();
    /// # let weight = Tensor::from_vec(&[2, 2], vec![1f32, 2., 3., 4.])?.cast(DType::BFloat16)?;
    /// # state.insert_piece(ShardedTensor::full("weight", weight));
    /// # blocking::save(&state, dir.path().join("a"))?;
    /// let checkpoint = blocking::Checkpoint::open(dir.path().join("a"))?;
    /// let row = checkpoint.tensor("weight")?.read_as::<f32>(reshard::Region::rows(1..2))?;
    /// assert_eq!(row, [3., 4.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`read`](Self::read); also for a quantised tensor, whose scale is another one; for a float4, which can't be converted; and for a value that `T` can't hold: the error has its index in the region
    /// ([`check_fit`](reshard_model::cast::check_fit)).
    pub async fn read_as<T: Element>(&self, what: impl Select) -> Result<Vec<T>> {
        self.numbers(&self.key, what).await
    }

    /// Reads the elements of a region into memory of yours, in row-major order, as [`read_as`](Self::read_as) does. It reads blocks of at most
    /// 32 MiB and copies them into `out`, so it needs no more memory than a block.
    ///
    /// ```
    /// # use reshard::{Region, ShardedTensor, StateDict, Tensor, blocking};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let mut state = StateDict::new();
    /// # let weight = Tensor::from_vec(&[2, 2], vec![1f32, 2., 3., 4.])?;
    /// # state.insert_piece(ShardedTensor::full("weight", weight));
    /// # blocking::save(&state, dir.path().join("a"))?;
    /// let checkpoint = blocking::Checkpoint::open(dir.path().join("a"))?;
    /// let mut memory = [0f32; 3];
    /// checkpoint.tensor("weight")?.read_into(Region::rows(1..2), &mut memory[1..])?;
    /// assert_eq!(memory, [0., 3., 4.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`read_as`](Self::read_as); the region has another number of elements than `out`, which is then unchanged. After another error `out` may have a part of the
    /// elements.
    pub async fn read_into<T: Element>(&self, what: impl Select, out: &mut [T]) -> Result<()> {
        let url = &self.checkpoint.url;
        let region = what.resolve(&self.key, &self.shape).during(ACT, url)?;
        if region.lengths.volume() != Some(out.len() as u64) {
            let what = format!(
                "the region {region} of {} does not have the {} elements of the memory to read into",
                self.key,
                out.len()
            );
            return Err(Error::new(ACT, url, StrategyError::Invalid(what)));
        }
        let mut rest = out;
        for block in region.blocks(READ_BLOCK / self.dtype.size().max(T::DTYPE.size())) {
            // An index in an error is one in the block.
            let name = format!("{} {block}", self.key);
            let read: Vec<T> = self.numbers(&name, block).await?;
            let (these, others) = rest.split_at_mut(read.len().min(rest.len()));
            these.copy_from_slice(&read);
            rest = others;
        }
        Ok(())
    }

    /// The elements of a region as numbers. `name` is for an error about one of them.
    async fn numbers<T: Element>(&self, name: &str, what: impl Select) -> Result<Vec<T>> {
        let metadata = self.checkpoint.metadata();
        let stored = metadata.tensor(&self.key);
        let is_quantized = || stored.is_some_and(|t| scale_of(metadata, &t).is_some());
        // The planner refuses to cast what is quantised.
        let read = match Cast::Lossless.allows(self.dtype, T::DTYPE) || is_quantized() {
            true => self.read_with(what, T::DTYPE).await?,
            false => {
                let read = self.read(what).await?;
                let url = &self.checkpoint.url;
                check_fit(name, &read, T::DTYPE).during(ACT, url)?;
                read.cast(T::DTYPE).during(ACT, url)?
            }
        };
        match read.into_vec() {
            Ok(all) => Ok(all),
            Err(tensor) => tensor.to_vec().during(ACT, &self.checkpoint.url),
        }
    }

    async fn read_with(&self, what: impl Select, dtype: DType) -> Result<Tensor> {
        let url = &self.checkpoint.url;
        let region = what.resolve(&self.key, &self.shape).during(ACT, url)?;
        let mut template = FlatStateDict::new();
        let leaf = ShardedTensor::region_of(&self.key, dtype, &self.shape, region);
        template.insert(Path(vec![(&*self.key).into()]), Sharded::Tensor(leaf));
        let state = self.checkpoint.fill(template, Cast::Any).await?;
        match state.into_values().next() {
            Some(Sharded::Tensor(ShardedTensor {
                data: Data::Host(t),
                ..
            })) => Ok(t),
            _ => Err(Error::new(
                ACT,
                url,
                StrategyError::Internal(format!("{} was not loaded", self.key)),
            )),
        }
    }

    /// A region as a source that is read only when it is written. With it you can copy a checkpoint in bounded memory.
    ///
    /// # Errors
    /// A region outside the shape, or a tensor that the limits don't allow.
    pub fn source(&self, what: impl Select) -> Result<Arc<dyn TensorSource>> {
        let region = what
            .resolve(&self.key, &self.shape)
            .during(ACT, &self.checkpoint.url)?;
        self.checkpoint
            .opened
            .reader
            .permits(&self.key)
            .during(ACT, &self.checkpoint.url)?;
        Ok(Arc::new(Lazy {
            tensor: self.clone(),
            region,
        }))
    }
}

/// So many bytes for each chunk of a tensor are read at a time.
const BYTES_PER_CHUNK: u64 = 512;

/// Part of a stored tensor.
struct Lazy {
    tensor: TensorHandle,
    region: Region,
}

impl TensorSource for Lazy {
    fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    fn shape(&self) -> Dims {
        self.region.lengths.clone()
    }

    /// A block may have a part of each chunk, as with chunks of columns. So the more chunks there are, the larger it is. Where a request is dear, it is as
    /// much as fits into one.
    fn block(&self) -> Option<u64> {
        let metadata = self.tensor.checkpoint.metadata();
        let tensor = metadata.tensor(&self.tensor.key)?;
        let bytes = (tensor.chunk_count() as u64).saturating_mul(BYTES_PER_CHUNK);
        let hints = self.tensor.checkpoint.store().hints();
        Some(match hints.requests_are_dear() {
            true => bytes.max(hints.part_size),
            false => bytes,
        })
    }

    /// Of a tensor that is one chunk.
    fn identity(&self) -> Option<String> {
        let checkpoint = &self.tensor.checkpoint;
        let tensor = checkpoint.metadata().tensor(&self.tensor.key)?;
        let mut chunks = tensor.chunks();
        let (Some((chunk, _)), None) = (chunks.next(), chunks.next()) else {
            return None;
        };
        let elements = checkpoint.opened.reader.shared_elements(chunk)?;
        let all = self.region == Region::whole(&self.tensor.shape);
        all.then(|| format!("{}: {elements}", checkpoint.url))
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let region = region.shifted(&self.region.offsets);
        // On an I/O thread, local reads run on this same thread, so blocking here can't deadlock.
        let got: Bytes = reshard_storage::wait(self.tensor.read(region))
            .map_err(|e| SourceError::new(e.kind(), e))?
            .to_bytes();
        if got.len() != out.len() {
            return Err(format!(
                "{} bytes were read, but {} are needed",
                got.len(),
                out.len()
            )
            .into());
        }
        out.copy_from_slice(&got);
        Ok(())
    }
}
