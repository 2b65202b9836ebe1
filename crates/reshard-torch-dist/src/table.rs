//! An opened `.metadata`: the logical table, and where each chunk and object lies.

mod build;
mod place;
mod ranks;

use crate::metadata::StorageMeta;
use bytes::Bytes;
use reshard_model::Region;
use reshard_plan::{ChunkId, Metadata, ObjectId, TensorId, TensorRef};
use reshard_storage::Name;
use reshard_strategy::{Result, StrategyError};
use reshard_torch_format::Limits;
use std::{collections::BTreeMap, sync::Arc};

pub(crate) use build::TableBuilder;

/// Where a stored item lies: an index into the files, offset and length in bytes, and an index into the transforms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) transforms: u32,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A chunk or an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Item {
    Chunk(ChunkId),
    Object(ObjectId),
}

/// The signs by which the generations of writers are told apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signs {
    pub(crate) old_module: bool,
    pub(crate) arity: u8,
    pub(crate) has_tensors: bool,
    pub(crate) storage_meta: bool,
    /// What it says, if it is there.
    pub(crate) meta: StorageMeta,
    pub(crate) version: Option<String>,
    pub(crate) mcore_class: bool,
    pub(crate) mcore_data: bool,
    pub(crate) all_local_plans: bool,
    pub(crate) planner_data: bool,
}

/// Keys of which two files say different things: the second file, and what both say.
pub(crate) type Contradictions = BTreeMap<Box<str>, (Arc<str>, String)>;

/// One `.metadata`, or all `__{rank}.metadata` of a rank-local checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) metadata: Arc<Metadata>,
    pub(crate) chunks: Vec<Place>,
    pub(crate) objects: Vec<Place>,
    /// Other copies of these, which other ranks have of a rank-local checkpoint, each place of an item once. Nobody reads them here.
    pub(crate) copies: Vec<(Item, Place)>,
    /// Items that a rank lists without a place for its copy, with the file of that rank.
    pub(crate) lost: Vec<(Item, Arc<str>)>,
    /// Keys of which two ranks say different things.
    pub(crate) contradictions: Contradictions,
    /// The file names. A refused name has an error text instead.
    pub(crate) files: Vec<std::result::Result<Name, String>>,
    /// Descriptors in the order of decoding; the first is "none".
    pub(crate) transforms: Vec<Vec<String>>,
    pub(crate) signs: Signs,
    /// Keys whose description is not understood, and why. The logical table lacks them.
    pub(crate) unknown: BTreeMap<String, String>,
}

/// Bytes of a chunk's elements, if its lengths can be counted.
pub(crate) fn chunk_bytes(tensor: &TensorRef<'_>, region: &Region) -> Option<u64> {
    let elements = region.volume()?;
    Some(elements.saturating_mul(tensor.dtype().size()))
}

impl Table {
    /// What a key of a file stands for.
    fn stored(&self, key: &str) -> Stored {
        if self.unknown.contains_key(key) {
            return Stored::Unknown;
        }
        let tensor = || self.metadata.tensor(key).map(|t| Stored::Tensor(t.id()));
        let object = self.metadata.object(key).map(Stored::Object);
        object.or_else(tensor).unwrap_or(Stored::Nothing)
    }

    pub(crate) fn chunk(&self, id: ChunkId) -> Option<Place> {
        let place = self.chunks.get(id.0 as usize).copied();
        place.filter(|place| place.file != u32::MAX)
    }

    pub(crate) fn object(&self, id: ObjectId) -> Option<Place> {
        let place = self.objects.get(id.0 as usize).copied();
        place.filter(|place| place.file != u32::MAX)
    }
}

/// What a key of a file stands for.
#[derive(Clone, Copy)]
enum Stored {
    /// Not looked up yet.
    Unasked,
    Nothing,
    /// Not understood.
    Unknown,
    Object(ObjectId),
    Tensor(TensorId),
}

/// Items that say of themselves where they lie, made ranges of files.
impl Table {
    /// The file of an item.
    pub(crate) fn file(&self, place: Place) -> Result<Name> {
        let what = match self.files.get(place.file as usize) {
            Some(Ok(name)) => return Ok(name.clone()),
            Some(Err(e)) => format!("the name of a file is refused: {e}"),
            None => "an item has no file".into(),
        };
        Err(StrategyError::corrupt(crate::METADATA, None, what))
    }

    /// The bytes of an item in its file.
    pub(crate) fn range(&self, place: Place) -> Result<std::ops::Range<u64>> {
        let end = place.offset.checked_add(place.length);
        let end = end.filter(|end| *end <= i64::MAX as u64);
        let what = "an item ends beyond 2^63 bytes";
        let beyond = || StrategyError::corrupt(crate::METADATA, None, what);
        Ok(place.offset..end.ok_or_else(beyond)?)
    }

    /// What was done to an item's archive, in the order of undoing it.
    pub(crate) fn descriptors(&self, place: Place) -> &[String] {
        self.transforms
            .get(place.transforms as usize)
            .map_or(&[], Vec::as_slice)
    }

    pub(crate) fn is_transformed(&self, place: Place) -> bool {
        place.transforms != 0
    }
}

/// Reads the pickle of a `.metadata` file, for fuzzing and measuring: the number of tensors, chunks and objects. The file's bytes
/// are given back before the table is made, if nobody else has them.
///
/// # Errors
/// What is wrong with it, and at which byte.
pub fn parse_metadata(pickle: impl Into<Bytes>) -> Result<(usize, usize, usize)> {
    let table = Table::parse(crate::METADATA, pickle.into(), &Limits::default())?;
    let m = &table.metadata;
    Ok((m.tensor_count(), m.chunk_count(), m.object_count()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Flavour, metadata::write};
    use reshard_model::{DType, Path, Region, Step};
    use reshard_plan::{MemoryFormat, PieceId, PlannerData, TensorProperties};
    use reshard_strategy::{StorageInfo, WriteResult};

    /// A `.metadata` of objects of these keys and lengths.
    fn objects(items: &[(&str, u64)], planner_data: Option<PlannerData>) -> Bytes {
        let mut b = Metadata::builder();
        let mut results = Vec::new();
        for &(key, length) in items {
            b.add_object(key).unwrap();
            let id = PieceId {
                key: key.into(),
                offset: None,
            };
            let part = StorageInfo::new(
                Name::new("__0_0.distcp").unwrap(),
                7..length.saturating_add(7),
            );
            results.push(WriteResult {
                id,
                parts: vec![part],
            });
        }
        write(
            &b.finish(planner_data).unwrap(),
            &[results],
            Flavour::Universal,
            &StorageMeta::default(),
            false,
        )
        .unwrap()
        .into()
    }

    /// Of tensors of these bytes, in archives of these, one behind the other.
    pub(crate) fn of_tensors(tensors: &[(u64, u64)]) -> Table {
        let (mut b, mut results, mut at) = (Metadata::builder(), Vec::new(), 0);
        for (i, (bytes, stored)) in tensors.iter().enumerate() {
            let key = i.to_string();
            let id = b.add_tensor(&key, DType::UInt8, &[*bytes], Default::default());
            b.add_chunk(id.unwrap(), &Region::new([0], [*bytes]))
                .unwrap();
            let id = PieceId {
                key: key.into(),
                offset: Some([0].into()),
            };
            let part = StorageInfo::new(Name::new("a").unwrap(), at..at + stored);
            at += stored;
            results.push(WriteResult {
                id,
                parts: vec![part],
            });
        }
        let metadata = b.finish(None).unwrap();
        let meta = StorageMeta::default();
        let pickle = write(&metadata, &[results], Flavour::Universal, &meta, false).unwrap();
        Table::parse("m", pickle.into(), &Limits::default()).unwrap()
    }

    #[test]
    fn what_is_said_of_a_tensor_is_read_as_it_was_written() {
        let properties = |memory_format, requires_grad, strides: Option<&[u64]>| TensorProperties {
            memory_format,
            requires_grad,
            pin_memory: !requires_grad,
            strides: strides.map(Into::into),
        };
        let all = [
            properties(MemoryFormat::Contiguous, true, None),
            properties(MemoryFormat::ChannelsLast, false, Some(&[1, 5])),
            properties(MemoryFormat::Preserve, true, Some(&[5, 1])),
        ];
        let mut b = Metadata::builder();
        for (i, properties) in all.iter().enumerate() {
            let id = b
                .add_tensor(&i.to_string(), DType::Float32, &[5, 5], properties.clone())
                .unwrap();
            b.add_chunk(id, &Region::whole(&[5, 5])).unwrap();
        }
        let meta = StorageMeta::default();
        let pickle = write(
            &b.finish(None).unwrap(),
            &[],
            Flavour::Torch215,
            &meta,
            false,
        )
        .unwrap();
        let table = Table::parse("m", pickle.into(), &Default::default()).unwrap();
        assert!(table.metadata.tensors().map(|t| t.properties()).eq(all));
    }

    #[test]
    fn what_is_said_of_the_storage_is_read_as_it_was_written() {
        let full = StorageMeta {
            checkpoint_id: Some("/a/step-1".into()),
            save_id: Some("94da3970-5ead-4124-bbdf-4463d73560d8".into()),
            load_id: Some("é".into()),
            modules: vec!["one".into(), "two".into(), "one".into()],
        };
        for meta in [full, StorageMeta::of_save("url"), StorageMeta::default()] {
            let metadata = Metadata::builder().finish(None).unwrap();
            let pickle = write(&metadata, &[], Flavour::Torch24, &meta, false).unwrap();
            let table = Table::parse("m", pickle.into(), &Default::default()).unwrap();
            assert!(table.signs.storage_meta);
            assert_eq!(table.signs.meta, meta);
        }
    }

    /// A list may name one long text as often as it likes: a copy of each is drawn from the budget.
    #[test]
    fn what_is_copied_of_the_storage_is_bounded() {
        let meta = StorageMeta {
            modules: vec!["m".repeat(1 << 16); 64],
            ..StorageMeta::default()
        };
        let metadata = Metadata::builder().finish(None).unwrap();
        let pickle = write(&metadata, &[], Flavour::Torch24, &meta, false).unwrap();
        let limits = Limits {
            memory: Some(pickle.len() as u64),
            ..Limits::default()
        };
        assert!(Table::parse("m", pickle.into(), &limits).is_err());
    }

    #[test]
    fn lengths_of_all_sizes_are_kept() {
        let lengths = [0, 1, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, i64::MAX as u64];
        let keys: Vec<String> = (0..lengths.len()).map(|i| i.to_string()).collect();
        let items: Vec<(&str, u64)> = keys.iter().map(String::as_str).zip(lengths).collect();
        let table = Table::parse("m", objects(&items, None), &Limits::default()).unwrap();
        assert_eq!(
            table
                .objects
                .iter()
                .map(|p| (p.offset, p.length))
                .collect::<Vec<_>>(),
            lengths.map(|l| (7, l))
        );
    }

    #[test]
    fn lone_surrogates_are_spelled_when_read_and_surrogates_when_written() {
        let keys = ["a\\ud800b", "a\\\\ud800b", "\\\\\\udfff", "plain\\x"];
        let python: [&[u8]; 4] = [
            b"a\xed\xa0\x80b",
            b"a\\ud800b",
            b"\\\xed\xbf\xbf",
            b"plain\\x",
        ];
        let paths = keys.iter().map(|k| {
            (
                (*k).into(),
                Path(vec![Step::Key((*k).into()), Step::Index(1)]),
            )
        });
        let paths = PlannerData::Paths(paths.collect());
        let pickle = objects(&keys.map(|k| (k, 1)), Some(paths.clone()));
        for key in python {
            assert!(
                pickle
                    .windows(key.len() + 1)
                    .any(|w| w[0] == key.len() as u8 && &w[1..] == key),
                "{key:?}"
            );
        }
        let table = Table::parse("m", pickle, &Limits::default()).unwrap();
        for (i, key) in keys.into_iter().enumerate() {
            assert_eq!(
                table.metadata.object(key),
                Some(ObjectId(i as u32)),
                "{key}"
            );
        }
        assert_eq!(table.metadata.planner_data(), Some(&paths));
        assert!(table.objects.iter().all(|p| p.length == 1));
    }

    #[test]
    fn a_path_with_a_step_that_is_none_is_no_path_and_never_a_shorter_one() {
        let path = |steps: &[Step]| Path(steps.to_vec());
        let (odd, sound) = (
            path(&[Step::Key("a".into()), Step::Index(5)]),
            path(&[Step::Key("a".into()), Step::Index(6)]),
        );
        let paths = [("odd".into(), odd), ("sound".into(), sound)].into();
        let pickle = objects(&[("odd", 1), ("sound", 1)], Some(PlannerData::Paths(paths)));
        let at = pickle.windows(2).position(|w| w == b"K\x05").unwrap();
        // A negative int, one of more than 64 bits, and None.
        let beyond = [&b"\x8a\x0a"[..], &[0; 8], &[1, 0]].concat();
        for step in [&b"J\xff\xff\xff\xff"[..], &beyond, b"N"] {
            let pickle = [&pickle[..at], step, &pickle[at + 2..]].concat();
            let table = Table::parse("m", pickle.into(), &Limits::default()).unwrap();
            let paths = table.metadata.planner_data().unwrap();
            assert_eq!(paths.path("odd"), None, "{step:?}");
            assert!(paths.path("sound").is_some());
        }
    }

    fn limits(memory: u64) -> Limits {
        Limits {
            memory: Some(memory),
            ..Limits::default()
        }
    }

    #[test]
    fn copies_of_a_key_are_drawn_from_the_budget() {
        let file = objects(&[(&"x".repeat(100_000), 1)], None);
        let read = |memory| Table::parse("m", file.clone(), &limits(memory)).map(drop);
        assert!(read(700_000).is_ok());
        // The columns have its text once, in twice the room. The table has more copies of it while it is built.
        assert_eq!(
            read(400_000).unwrap_err().kind(),
            reshard_model::ErrorKind::Limit
        );
    }

    #[test]
    fn ranks_together_have_one_budget() {
        let long = "x".repeat(100_000);
        let file = objects(&[(&long, 1)], None);
        let merge = |ranks: usize, memory| {
            let mut table = TableBuilder::new(ranks, (ranks * file.len()) as u64, &limits(memory));
            (0..ranks).try_for_each(|r| table.add(&format!("__{r}.metadata"), file.clone()))?;
            table.finish()
        };
        assert!(merge(1, 700_000).is_ok());
        assert!(merge(3, 7_000_000).is_ok());
        let e = merge(3, 700_000).unwrap_err();
        assert_eq!(e.kind(), reshard_model::ErrorKind::Limit);
        assert!(
            e.to_string().contains("asks for more memory") && e.to_string().contains("max_memory"),
            "{e}"
        );
    }
}
