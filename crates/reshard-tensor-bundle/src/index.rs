//! What an index says: tensors, objects, and in which bytes of which data file they lie.

use crate::{
    crc::unmask,
    dtype::{self, Kind},
    entry::{self, Entry, Header},
    ordered_code,
    record::{Form, OfTensor, Record},
    strings::Order,
    table::read::{self, Budget, damaged},
};
use prost::Message as _;
use reshard_model::{Dims, Region};
use reshard_plan::{Metadata, MetadataBuilder};
use reshard_strategy::Refused;
use std::collections::BTreeMap;

/// The version of the format that is read. TensorFlow has never had another one.
const VERSION: i32 = 1;

/// Where the bytes of an entry lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) shard: u32,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// Of the bytes as they are stored.
    pub(crate) crc: u32,
}

impl Place {
    /// It ends below 2^63, as was checked.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset.saturating_add(self.size)
    }
}

/// A tensor that is an object here.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) form: Form,
    pub(crate) dtype: dtype::Enum,
    pub(crate) shape: Dims,
    /// One that has the whole shape, or slices that cover it once.
    pub(crate) parts: Vec<(Region, Place)>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) order: Order,
    /// Number of data files.
    pub(crate) shards: u32,
    pub(crate) metadata: Metadata,
    /// By the number of a chunk.
    pub(crate) chunks: Vec<Place>,
    /// By the number of an object.
    pub(crate) objects: Vec<Stored>,
    /// Keys that can't be read.
    pub(crate) refused: BTreeMap<String, Refused>,
    /// Entries of slices that no tensor has.
    pub(crate) strays: u64,
    /// Keys that are not the names in the index, because these are no UTF-8.
    pub(crate) escaped: u64,
    /// The bytes of all entries in a data file, by its number.
    pub(crate) claimed: BTreeMap<u32, u64>,
}

impl Index {
    /// Reads a table. What is wrong with one tensor is refused for that tensor alone.
    pub(crate) fn parse(table: &[u8], record: Option<Record>, budget: u64) -> read::Result<Self> {
        let mut build = Build {
            record: record.unwrap_or_default(),
            builder: Metadata::builder(),
            has_header: false,
            slices: Vec::new(),
            used: Vec::new(),
            index: Self::default(),
        };
        read::entries(table, Budget(budget), &mut |at, key, value| {
            build.entry(at, key, value)
        })?;
        build.finish()
    }
}

struct Build {
    record: Record,
    builder: MetadataBuilder,
    has_header: bool,
    /// Entries of slices, by their keys, which are sorted.
    slices: Vec<(Vec<u8>, Entry)>,
    /// Which of them a tensor has.
    used: Vec<bool>,
    index: Index,
}

impl Build {
    fn entry(&mut self, at: usize, key: &[u8], value: &[u8]) -> read::Result<()> {
        if !self.has_header {
            return self.header(at, key, value);
        }
        let parsed = Entry::parse(value);
        if key.first() == Some(&0) {
            let name = ordered_code::name_of(key).unwrap_or_default();
            let wrong = || {
                let shown = text(&name);
                damaged(
                    at,
                    format!("the entry of a slice of {shown:?} is no such message"),
                )
            };
            self.slices.push((key.to_vec(), parsed.ok_or_else(wrong)?));
            self.used.push(false);
            return Ok(());
        }
        let mut name = text(key);
        self.index.escaped += u64::from(name.as_bytes() != key);
        if let Some(key) = self.record.names.get(&name) {
            name.clone_from(key);
        }
        let taken = match parsed {
            Some(_)
                if self.builder.tensor(&name).is_some()
                    || self.index.refused.contains_key(&name) =>
            {
                Err(Refused::unknown(
                    "another tensor has the same name, once its bytes that are no UTF-8 are escaped",
                ))
            }
            Some(entry) => self.tensor(key, &name, &entry),
            None => Err(Refused::damaged("its entry is no such message")),
        };
        if let Err(why) = taken {
            self.index.refused.insert(name, why);
        }
        Ok(())
    }

    fn header(&mut self, at: usize, key: &[u8], value: &[u8]) -> read::Result<()> {
        let damaged = |what: String| damaged(at, what);
        if !key.is_empty() {
            return Err(damaged(
                "it has no header, so it is no index of a checkpoint".into(),
            ));
        }
        let header =
            Header::decode(value).map_err(|_| damaged("the header is no such message".into()))?;
        let version = header.version.unwrap_or_default();
        if version.producer < 0 {
            return Err(damaged(format!(
                "its version is {}, which no program writes",
                version.producer
            )));
        }
        if version.min_consumer > VERSION {
            let what = format!(
                "the program that wrote it says that version {VERSION} of the format can't read it (it needs {})",
                version.min_consumer
            );
            return Err(Refused::unknown(what));
        }
        if version.bad_consumers.contains(&VERSION) {
            let what = format!(
                "the program that wrote it says that version {VERSION} of the format must not read it"
            );
            return Err(Refused::unknown(what));
        }
        self.index.order = match header.endianness {
            0 => Order::Little,
            1 => Order::Big,
            other => {
                return Err(damaged(format!(
                    "the header says that bytes have the order {other}, and there are 0 and 1"
                )));
            }
        };
        let shards = u32::try_from(header.shards);
        self.index.shards = shards.map_err(|_| {
            damaged(format!(
                "the header says that there are {} data files",
                header.shards
            ))
        })?;
        self.has_header = true;
        Ok(())
    }

    fn tensor(&mut self, key: &[u8], name: &str, entry: &Entry) -> Result<(), Refused> {
        let kind = Kind::of(entry.dtype).ok_or_else(|| {
            let name = dtype::name(entry.dtype);
            Refused::unknown(format!("it has elements of {name}, which are not stored, or which this version does not know"))
        })?;
        let shape = entry.dims().map_err(Refused::damaged)?;
        let parts = self.parts(key, entry, &shape)?;
        let form = self.record.objects.get(name).copied();
        let Kind::Tensor(dtype) = kind else {
            return self.object(name, entry, shape, parts, form.unwrap_or_default());
        };
        if let Some(Form::Number) = form {
            return self.object(name, entry, shape, parts, Form::Number);
        }
        let OfTensor {
            properties,
            original_shape,
        } = self.record.tensors.get(name).cloned().unwrap_or_default();
        let refused = |e: reshard_plan::PlanError| Refused::damaged(e.to_string());
        let id = self
            .builder
            .add_tensor(name, dtype, &shape, properties)
            .map_err(refused)?;
        if let Some(original) = original_shape {
            self.builder.set_original_shape(id, original);
        }
        for (region, place) in parts {
            self.builder.add_chunk(id, &region).map_err(refused)?;
            self.add(place);
            self.index.chunks.push(place);
        }
        Ok(())
    }

    fn add(&mut self, place: Place) {
        let claimed = self.index.claimed.entry(place.shard).or_default();
        *claimed = claimed.saturating_add(place.size);
    }

    fn object(
        &mut self,
        name: &str,
        entry: &Entry,
        shape: Dims,
        parts: Vec<(Region, Place)>,
        form: Form,
    ) -> Result<(), Refused> {
        // An object is read as a whole, so all of it has to be there.
        let regions: Vec<&Region> = parts.iter().map(|(region, _)| region).collect();
        let covered = regions.iter().map(|r| r.volume().unwrap_or(u64::MAX));
        let covered = covered.fold(0, u64::saturating_add);
        let range = |i: usize, axis: usize| regions[i].offsets[axis]..regions[i].end(axis);
        if reshard_model::first_overlap(regions.len(), shape.len(), range).is_some() {
            return Err(Refused::damaged("its slices overlap"));
        }
        if Some(covered) != shape.volume() {
            return Err(Refused::damaged("its slices do not cover it"));
        }
        if parts.len() > 1 && Kind::of(entry.dtype) == Some(Kind::Variant) {
            return Err(Refused::unknown(
                "it has variants in slices, which nobody can join",
            ));
        }
        let refused = |e: reshard_plan::PlanError| Refused::damaged(e.to_string());
        self.builder.add_object(name).map_err(refused)?;
        parts.iter().for_each(|(_, place)| self.add(*place));
        self.index.objects.push(Stored {
            form,
            dtype: entry.dtype,
            shape,
            parts,
        });
        Ok(())
    }

    /// The regions of a tensor that are stored, and where.
    fn parts(
        &mut self,
        key: &[u8],
        entry: &Entry,
        shape: &Dims,
    ) -> Result<Vec<(Region, Place)>, Refused> {
        if entry.slices.is_empty() {
            let place = self.place(entry, shape).map_err(Refused::damaged)?;
            return Ok(vec![(Region::whole(shape), place)]);
        }
        let mut out = Vec::with_capacity(entry.slices.len());
        for slice in &entry.slices {
            let slice = &slice.extents;
            let region = entry::region(slice, shape).ok_or_else(|| {
                Refused::damaged(format!(
                    "a slice {slice:?} does not lie in its shape {shape}"
                ))
            })?;
            let extents = slice
                .iter()
                .map(|extent| (extent.start, extent.length.unwrap_or(-1)));
            let key = ordered_code::slice_key(key, extents);
            let missing = || Refused::damaged(format!("its slice {region} has no entry"));
            let at = self
                .slices
                .binary_search_by(|(k, _)| k.as_slice().cmp(&key))
                .map_err(|_| missing())?;
            let (_, of_slice) = self.slices.get(at).ok_or_else(missing)?;
            let damaged = |what: String| Refused::damaged(format!("its slice {region}: {what}"));
            if of_slice.dtype != entry.dtype {
                let (is, of) = (dtype::name(of_slice.dtype), dtype::name(entry.dtype));
                return Err(damaged(format!(
                    "it has elements of {is}, and the tensor of {of}"
                )));
            }
            match of_slice.dims() {
                Ok(dims) if dims == region.lengths => {}
                Ok(dims) => {
                    return Err(damaged(format!(
                        "its entry says that it has the shape {dims}"
                    )));
                }
                Err(what) => return Err(damaged(what)),
            }
            let place = self.place(of_slice, &region.lengths).map_err(damaged)?;
            self.used[at] = true;
            // Nobody reads a slice without elements.
            if !region.is_empty() {
                out.push((region, place));
            }
        }
        Ok(out)
    }

    /// Where an entry of this shape lies. The error says what is wrong with it.
    fn place(&self, entry: &Entry, shape: &Dims) -> Result<Place, String> {
        let number =
            |n: i64, what: &str| u64::try_from(n).map_err(|_| format!("its {what} is {n}"));
        let (offset, size) = (number(entry.offset, "offset")?, number(entry.size, "size")?);
        if offset
            .checked_add(size)
            .is_none_or(|end| i64::try_from(end).is_err())
        {
            return Err(format!("its {size} bytes at byte {offset} end beyond 2^63"));
        }
        let elements = shape.volume().unwrap_or(u64::MAX);
        if Kind::of(entry.dtype).and_then(Kind::item).is_some()
            && entry::bytes_of(entry.dtype, elements) != Some(size)
        {
            let name = dtype::name(entry.dtype);
            return Err(format!(
                "its entry has {size} bytes, which is not what {elements} elements of {name} take"
            ));
        }
        let shard = u32::try_from(entry.shard)
            .ok()
            .filter(|n| *n < self.index.shards);
        let shard = shard.ok_or_else(|| {
            format!(
                "it lies in data file {}, and the header says that there are {}",
                entry.shard, self.index.shards
            )
        })?;
        Ok(Place {
            shard,
            offset,
            size,
            crc: unmask(entry.crc),
        })
    }

    fn finish(mut self) -> read::Result<Index> {
        if !self.has_header {
            return Err(damaged(
                0,
                "it has no header, so it is no index of a checkpoint",
            ));
        }
        self.index.strays = self.used.iter().filter(|used| !**used).count() as u64;
        let finished = self.builder.finish(self.record.planner_data.take());
        self.index.metadata = finished.map_err(|e| Refused::damaged(e.to_string()))?;
        Ok(self.index)
    }
}

/// A name as text. Bytes that are no UTF-8 become `\xff`.
fn text(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        out.push_str(chunk.valid());
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}
