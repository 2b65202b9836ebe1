//! One file: its header, and the pieces of its tensors.

use super::summed::{Part, Summed};
use crate::{
    header::{self, NewEntry},
    overhead::{invalid, metadata, new_entry},
    place::{Empty, tensor},
    settings::SafetensorsConfig,
};
use bytes::Bytes;
use reshard_model::{DType, Data, Dims, Region, SafetensorsDType};
use reshard_plan::{PieceId, WriteItem};
use reshard_storage::{Extent, FileBody, Name};
use reshard_strategy::{
    Elements, Piece, Resolve, Result, StrategyError, WriteData, mosaic, run_of,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Items of a file, and the extents that make up each.
pub(super) type ItemsOfFile = Vec<(PieceId, Vec<u32>)>;

/// A file that is to be written.
pub(super) struct NewFile<'p> {
    metadata: BTreeMap<Box<str>, String>,
    entries: Vec<NewEntry>,
    tensors: Vec<Pieces<'p>>,
}

/// The pieces of a tensor, or of what of it goes into the file.
struct Pieces<'p> {
    key: &'p str,
    dtype: DType,
    /// What goes into the file.
    whole: Region,
    items: Vec<(&'p WriteItem, Data)>,
}

impl<'p> NewFile<'p> {
    pub(super) fn of(
        tensors: BTreeMap<&'p str, Vec<&'p WriteItem>>,
        (empty, texts): (&'p [Empty], &BTreeMap<Box<str>, String>),
        settings: &SafetensorsConfig,
        resolve: &Resolve<'_>,
    ) -> Result<Self> {
        let mut all = Vec::with_capacity(tensors.len());
        for (key, items) in tensors {
            all.push(Pieces::of(key, items, settings.sharded, resolve)?);
        }
        all.extend(empty.iter().map(Pieces::empty));
        // The elements of every tensor then begin at a multiple of their size.
        all.sort_by(|a, b| (b.dtype.size(), a.key).cmp(&(a.dtype.size(), b.key)));
        let entries = all.iter().map(Pieces::entry).collect::<Result<_>>()?;
        let mut metadata = metadata(texts);
        if settings.sharded {
            metadata.insert("DCP_VERSION".into(), "1.0".into());
            metadata.insert("DCP_SHARDING_INFO".into(), sharding_info(&all)?);
        }
        Ok(Self {
            metadata,
            entries,
            tensors: all,
        })
    }

    /// All before its first tensor.
    pub(super) fn header(&self, name: &str) -> Result<Bytes> {
        let text = header::text(&self.metadata, &self.entries);
        Ok(text.map_err(|fault| invalid(name, fault))?.into())
    }

    /// Its bytes, and which of its extents make up each item. The header belongs to the first item.
    pub(super) fn body(self, name: String) -> Result<(FileBody, ItemsOfFile)> {
        let header = self.header(&name)?;
        let length = header.len() as u64;
        let blocks = Box::new(std::iter::once(Ok(header)));
        let mut extents: Vec<Box<dyn Extent>> =
            vec![Box::new(Summed::new(Part::Header, length, blocks))];
        let mut items = ItemsOfFile::new();
        for pieces in self.tensors {
            pieces.extents(&mut extents, &mut items)?;
        }
        if let Some((_, first)) = items.first_mut() {
            first.push(0);
        }
        Ok((FileBody::new(Name::new(name)?, extents), items))
    }
}

/// Where the pieces of a sharded file lie in their tensors, as PyTorch DCP says it.
fn sharding_info(all: &[Pieces<'_>]) -> Result<String> {
    #[derive(Serialize)]
    struct Saved {
        saved_offsets: Dims,
    }
    let saved = |pieces: &Pieces<'_>| {
        let mut saved_offsets = pieces.whole.offsets.clone();
        match SafetensorsDType::named(pieces.dtype) {
            Some(spelled) => {
                let offsets = spelled.in_header(&saved_offsets).unwrap_or_default();
                saved_offsets = offsets.into_iter().collect();
            }
            None => saved_offsets.push(0),
        }
        Saved { saved_offsets }
    };
    let info: BTreeMap<&str, Saved> = all.iter().map(|p| (p.key, saved(p))).collect();
    serde_json::to_string(&info).map_err(|e| StrategyError::Internal(e.to_string()))
}

impl<'p> Pieces<'p> {
    fn of(
        key: &'p str,
        items: Vec<&'p WriteItem>,
        sharded: bool,
        resolve: &Resolve<'_>,
    ) -> Result<Self> {
        let lost = || StrategyError::Internal(format!("{key} is planned without pieces"));
        let first = tensor(items.first().ok_or_else(lost)?)?;
        let whole = match sharded {
            true => first.region.clone(),
            false => Region::whole(&first.global_shape),
        };
        let mut with_data = Vec::with_capacity(items.len());
        for item in items {
            let WriteData::Tensor(data) = resolve(item)? else {
                let what = format!("{key}: an object was given for a tensor");
                return Err(StrategyError::Invalid(what));
            };
            with_data.push((item, data));
        }
        Ok(Self {
            key,
            dtype: first.dtype,
            whole,
            items: with_data,
        })
    }

    fn empty(of: &'p Empty) -> Self {
        Self {
            key: &of.key,
            dtype: of.dtype,
            whole: Region::whole(&of.shape),
            items: Vec::new(),
        }
    }

    fn bytes(&self) -> Result<u64> {
        let bytes = self.whole.volume();
        let bytes = bytes.and_then(|n| n.checked_mul(self.dtype.size()));
        let fits = bytes.filter(|n| i64::try_from(*n).is_ok());
        let what = || format!("{}: {} is too large for a file", self.key, self.whole);
        fits.ok_or_else(|| StrategyError::Invalid(what()))
    }

    fn entry(&self) -> Result<NewEntry> {
        new_entry(self.key, self.dtype, &self.whole.lengths, self.bytes()?)
    }

    /// Adds its extents. Pieces that are runs of the tensor follow each other. Otherwise all pieces are one extent, which belongs to the
    /// first of them.
    fn extents(self, extents: &mut Vec<Box<dyn Extent>>, of: &mut ItemsOfFile) -> Result<()> {
        let (bytes, size) = (self.bytes()?, self.dtype.size());
        let mut runs = Vec::with_capacity(self.items.len());
        let mut covered = 0u64;
        for (item, _) in &self.items {
            let region = &tensor(item)?.region;
            if !self.whole.contains(region) {
                let what = format!("{} does not lie in {}", item.id(), self.whole);
                return Err(StrategyError::Internal(what));
            }
            covered = covered.saturating_add(region.volume().unwrap_or(0));
            runs.push(run_of(&region.within(&self.whole), &self.whole.lengths));
        }
        if covered.saturating_mul(size) != bytes {
            let what = format!(
                "{}: its pieces have {covered} elements, but the tensor {} has others; in this format a tensor is stored whole",
                self.key, self.whole.lengths
            );
            return Err(StrategyError::Invalid(what));
        }
        let runs: Option<Vec<_>> = runs.into_iter().collect();
        let in_order = runs.filter(|runs| {
            let starts = std::iter::once(0).chain(runs.iter().map(|run| run.end));
            bytes == 0
                || runs
                    .iter()
                    .zip(starts)
                    .all(|(run, start)| run.start == start)
        });
        let mut push = |length, blocks| {
            extents.push(Box::new(Summed::new(Part::Elements, length, blocks)));
            extents.len() as u32 - 1
        };
        if in_order.is_some() {
            for (item, data) in self.items {
                let t = tensor(item)?;
                let elements = Elements::of(item, t, data)?;
                of.push((item.id(), vec![push(t.bytes(), elements.blocks())]));
            }
            return Ok(());
        }
        let mut pieces = Vec::with_capacity(self.items.len());
        let first = of.len();
        for (item, data) in self.items {
            let t = tensor(item)?;
            pieces.push(Piece::new(t.region.within(&self.whole), size, &data));
            // It checks that the data are as planned.
            drop(Elements::of(item, t, data)?);
            of.push((item.id(), Vec::new()));
        }
        let extent = push(bytes, mosaic(self.whole.lengths.clone(), size, pieces));
        if let Some((_, of_first)) = of.get_mut(first) {
            of_first.push(extent);
        }
        Ok(())
    }
}
