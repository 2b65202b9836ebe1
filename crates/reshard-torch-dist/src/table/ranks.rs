//! What the ranks of a rank-local checkpoint declare. Each of them has a file, and the files must agree.

use super::{Contradictions, Item, Place, Table};
use crate::{
    metadata::worth::{Within, Worth},
    table::place::ENTRY,
};
use reshard_model::{DType, Dims, Region};
use reshard_plan::{ChunkId, ObjectId, TensorId};
use std::{
    collections::{BTreeMap, btree_map},
    fmt,
    sync::Arc,
};

/// What is declared so far.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    files: Vec<Arc<str>>,
    /// By key: what the first file says that has it, and the number of this file.
    declared: BTreeMap<Box<str>, (Declared, u32)>,
    chunks: BTreeMap<(TensorId, Region), ChunkId>,
    /// What the last file lists. Each of its items must have a place in it.
    listed: Vec<Item>,
    pub(super) contradictions: Contradictions,
}

/// What a file says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    Object(ObjectId),
    Tensor(TensorId, DType, Dims),
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(_) => f.write_str("an object"),
            Self::Tensor(_, dtype, shape) => write!(f, "a tensor of {dtype} and shape {shape}"),
        }
    }
}

impl Ranks {
    /// The next file begins.
    pub(super) fn begin(&mut self, file: &str, worth: &mut Worth) -> Within<()> {
        worth.take(file.len().saturating_add(ENTRY))?;
        self.files.push(file.into());
        Ok(())
    }

    /// What the last file lists.
    pub(super) fn take_listed(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.listed)
    }

    /// What the first file says of a key.
    pub(super) fn declared(&self, key: &str) -> Option<&Declared> {
        self.declared.get(key).map(|(declared, _)| declared)
    }

    /// The last file is the first that has a key.
    pub(super) fn declare(&mut self, key: &str, says: Declared, worth: &mut Worth) -> Within<()> {
        let axes = match &says {
            Declared::Object(_) => 0,
            Declared::Tensor(.., shape) => shape.len(),
        };
        let bytes = axes.saturating_mul(size_of::<u64>());
        worth.take(bytes.saturating_add(key.len()).saturating_add(ENTRY))?;
        let file = self.files.len().saturating_sub(1) as u32;
        self.declared.insert(key.into(), (says, file));
        Ok(())
    }

    /// The last file says something else of a key than the first file does. The first contradiction of a key is kept.
    pub(super) fn contradict(
        &mut self,
        key: &str,
        says: &Declared,
        worth: &mut Worth,
    ) -> Within<()> {
        let (Some((first, file)), Some(last)) = (self.declared.get(key), self.files.last()) else {
            return Ok(());
        };
        if self.contradictions.contains_key(key) {
            return Ok(());
        }
        let file = self.files.get(*file as usize).map_or("", |f| &**f);
        let what = format!("is {first} in {file}, and {says} in {last}");
        let text = key.len().saturating_add(what.len());
        worth.take(text.saturating_add(2 * ENTRY))?;
        let contradiction = (Arc::clone(last), what);
        self.contradictions.insert(key.into(), contradiction);
        Ok(())
    }

    /// The last file lists an item.
    pub(super) fn list(&mut self, item: Item, worth: &mut Worth) -> Within<()> {
        worth.push(&mut self.listed, item)
    }

    /// The number of a chunk. One that no file had before is added.
    pub(super) fn chunk(
        &mut self,
        tensor: TensorId,
        region: &Region,
        add: impl FnOnce() -> reshard_plan::Result<ChunkId>,
    ) -> reshard_plan::Result<ChunkId> {
        match self.chunks.entry((tensor, region.clone())) {
            btree_map::Entry::Occupied(known) => Ok(*known.get()),
            btree_map::Entry::Vacant(new) => Ok(*new.insert(add()?)),
        }
    }
}

/// Those of the items that a file lists for which it has no place.
pub(super) fn without_place(mut listed: Vec<Item>, mut placed: Vec<Item>) -> Vec<Item> {
    placed.sort_unstable();
    listed.sort_unstable();
    listed.dedup();
    listed.retain(|item| placed.binary_search(item).is_err());
    listed
}

impl Table {
    /// For each file the first number of its name. Every rank of a rank-local checkpoint numbers the files anew.
    pub(crate) fn same_files(&self) -> Vec<u32> {
        let (mut first, mut same) = (BTreeMap::new(), Vec::with_capacity(self.files.len()));
        for (file, n) in self.files.iter().zip(0u32..) {
            same.push(match file {
                Ok(name) => *first.entry(name).or_insert(n),
                Err(_) => n,
            });
        }
        same
    }

    /// Gives each file one number, and drops copies that are no copies: a save gives each rank a file of its own, so two ranks that name
    /// the very same bytes for an item are not what it writes. But nothing is wrong with these bytes, and they are read once.
    pub(super) fn unite_copies(&mut self) {
        let same = self.same_files();
        let all = self.chunks.iter_mut().chain(&mut self.objects);
        for place in all.chain(self.copies.iter_mut().map(|(_, place)| place)) {
            if let Some(file) = same.get(place.file as usize) {
                place.file = *file;
            }
        }
        let by = |(item, p): &(Item, Place)| (p.file, p.offset, p.length, p.transforms, *item);
        self.copies.sort_unstable_by_key(by);
        self.copies.dedup();
        let mut copies = std::mem::take(&mut self.copies);
        copies.retain(|(item, place)| self.place(*item) != Some(*place));
        self.copies = copies;
    }

    pub(crate) fn key(&self, item: Item) -> Option<&str> {
        match item {
            Item::Chunk(chunk) => self.metadata.chunk(chunk).map(|(tensor, _)| tensor.key()),
            Item::Object(object) => self.metadata.object_key(object),
        }
    }

    /// Where an item lies that is read.
    pub(crate) fn place(&self, item: Item) -> Option<Place> {
        match item {
            Item::Chunk(chunk) => self.chunk(chunk),
            Item::Object(object) => self.object(object),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Flavour, METADATA,
        metadata::{StorageMeta, write},
        table::TableBuilder,
    };
    use reshard_plan::{Metadata, PieceId};
    use reshard_storage::Name;
    use reshard_strategy::{StorageInfo, WriteResult};
    use reshard_torch_format::Limits;

    /// A tensor `w` of a type and shape, with one chunk; or an object.
    enum What {
        Tensor(DType, u64, std::ops::Range<u64>),
        Object,
    }
    use What::{Object, Tensor};

    /// The file of a rank that lists `w`, which lies there, if it lies anywhere.
    fn file(what: &What, place: Option<(&str, std::ops::Range<u64>)>) -> Vec<u8> {
        let mut b = Metadata::builder();
        let offset = match what {
            Object => {
                b.add_object("w").unwrap();
                None
            }
            Tensor(dtype, rows, chunk) => {
                let id = b.add_tensor("w", *dtype, &[*rows], Default::default());
                let region = Region::new([chunk.start], [chunk.end - chunk.start]);
                b.add_chunk(id.unwrap(), &region).unwrap();
                Some([chunk.start].into())
            }
        };
        let results = place.map(|(file, range)| WriteResult {
            id: PieceId {
                key: "w".into(),
                offset,
            },
            parts: vec![StorageInfo::new(Name::new(file).unwrap(), range)],
        });
        let results = [results.into_iter().collect()];
        let (metadata, meta) = (b.finish(None).unwrap(), StorageMeta::default());
        write(&metadata, &results, Flavour::Universal, &meta, false).unwrap()
    }

    fn merged(files: &[Vec<u8>]) -> Table {
        let bytes = files.iter().map(Vec::len).sum::<usize>() as u64;
        let mut table = TableBuilder::new(files.len(), bytes, &Limits::default());
        for (rank, file) in files.iter().enumerate() {
            let name = format!("__{rank}{METADATA}");
            table.add(&name, file.clone().into()).unwrap();
        }
        table.finish().unwrap()
    }

    /// What is said of `w` if two ranks have these.
    fn said(first: &What, second: &What) -> Option<(Arc<str>, String)> {
        let files = [
            file(first, Some(("a", 0..9))),
            file(second, Some(("b", 0..9))),
        ];
        let mut table = merged(&files);
        table.contradictions.remove("w")
    }

    #[test]
    fn ranks_that_say_different_things_of_a_key_are_told_with_their_files() {
        let (f32, half) = (DType::Float32, 0..2);
        let tensor = Tensor(f32, 4, half.clone());
        assert_eq!(said(&tensor, &Tensor(f32, 4, 2..4)), None);
        assert_eq!(said(&tensor, &tensor), None, "two copies");
        assert_eq!(said(&Object, &Object), None);
        for (second, is) in [
            (Tensor(f32, 6, 2..4), "a tensor of float32 and shape [6]"),
            (
                Tensor(DType::Int64, 4, 2..4),
                "a tensor of int64 and shape [4]",
            ),
            (
                Tensor(DType::Int64, 4, half),
                "a tensor of int64 and shape [4]",
            ),
            (Object, "an object"),
        ] {
            let first = "a tensor of float32 and shape [4]";
            let want = format!("is {first} in __0.metadata, and {is} in __1.metadata");
            assert_eq!(said(&tensor, &second), Some(("__1.metadata".into(), want)));
            let want = format!("is {is} in __0.metadata, and {first} in __1.metadata");
            assert_eq!(said(&second, &tensor), Some(("__1.metadata".into(), want)));
        }
    }

    #[test]
    fn a_copy_without_a_place_is_lost() {
        let tensor = Tensor(DType::Float32, 4, 0..4);
        for what in [&tensor, &Object] {
            let lost = |first, second| {
                let table = merged(&[file(what, first), file(what, second)]);
                let lost = table.lost.into_iter();
                lost.map(|(_, file)| file.to_string()).collect::<Vec<_>>()
            };
            let there = || Some(("a", 0..9));
            assert_eq!(lost(there(), Some(("b", 0..9))), [""; 0]);
            assert_eq!(lost(there(), None), ["__1.metadata"]);
            assert_eq!(lost(None, there()), ["__0.metadata"]);
            assert_eq!(lost(None, None), [""; 0], "told as an item without a place");
        }
        // Nothing need be stored of no elements.
        let none = Tensor(DType::Float32, 0, 0..0);
        let table = merged(&[file(&none, Some(("a", 0..9))), file(&none, None)]);
        assert!(table.lost.is_empty());
    }

    #[test]
    fn each_place_of_an_item_is_one_copy() {
        for what in [Tensor(DType::Float32, 4, 0..4), Object] {
            let at = |name, range| file(&what, Some((name, range)));
            let table = merged(&[
                at("a", 0..9),
                at("a", 0..9),
                at("b", 0..9),
                at("b", 0..9),
                at("b", 9..18),
                at("a", 0..9),
            ]);
            let of = |(_, p): &(Item, Place)| (p.file, p.offset);
            let copies: Vec<_> = table.copies.iter().map(of).collect();
            assert_eq!(copies, [(2, 0), (2, 9)]);
        }
    }

    #[test]
    fn very_many_ranks_take_little_memory_each() {
        let files = vec![file(&Object, Some(("a", 0..9))); 2_000];
        let limits = Limits {
            memory: Some(3_000 * files.len() as u64),
            ..Limits::default()
        };
        let bytes = (files.len() * files[0].len()) as u64;
        let mut table = TableBuilder::new(files.len(), bytes, &limits);
        for file in files {
            table.add("m", file.into()).unwrap();
        }
        assert_eq!(table.finish().unwrap().copies.len(), 0);
    }
}
