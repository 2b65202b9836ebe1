//! Makes exchanges for plans in which several ranks read the same data, also if their regions only overlap.

use super::{
    Receive, Serve, Wanted,
    cut::{Budget, Wishes},
};
use crate::{LoadPlan, Metadata, PlanError, ReadItem, Result, Selection};
use foldhash::fast::RandomState;
use indexmap::IndexMap;
use reshard_model::{Dims, Region};
use std::collections::{BTreeMap, BTreeSet};

/// Something that is read once for the ranks of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// Their group.
    pub group: u32,
    /// What is read. Each of the ranks wants it, or a part of it.
    pub what: Wanted,
    /// Ranks that want it, in order.
    pub ranks: Vec<u32>,
}

/// If several ranks of a group want to read the same data, lets one rank read them for all. Call it in
/// [`create_global_plan`](crate::LoadPlanner::create_global_plan), on the plans that the base's has made: it looks for what no rank asks for.
///
/// `group` returns the group of each rank. A rank without a group reads for itself. `choose` gets all demands, in the order in which plans
/// first name a chunk or object, and returns a reader for each. The reader may be any rank, even one that does not want the data itself. Equal input
/// must give equal readers.
///
/// # Cuts
/// If ranks want different regions of a chunk that overlap, or that lie in short runs side by side (columns of rows), their items are
/// cut: the reader reads a block, and sends each rank its part of it. No two blocks of a group overlap. Blocks follow each other in row-major order
/// of the chunk, and a large union becomes several, so that bytes can be balanced. A region that no other one disturbs stays whole, so that
/// the checksum of a whole chunk can be checked.
///
/// Cuts are given up for a chunk if it takes too many steps to find blocks, such as for a lattice of thousands of strips. Then only equal regions share a
/// read. Regions of a [flat view](reshard_model::FlatView) are not cut either. If one rank alone wants bytes, and wants them in several leaves, it reads
/// them for each of these leaves.
///
/// ```
/// use reshard_plan::{LoadPlan, Metadata, Result, share_reads};
///
/// /// All ranks are one group, and the lowest rank that wants the data reads them.
/// fn lowest(plans: Vec<LoadPlan>, metadata: &Metadata) -> Result<Vec<LoadPlan>> {
///     share_reads(plans, metadata, |_| Some(0), |all| all.iter().map(|demand| demand.ranks[0]).collect())
/// }
/// # assert_eq!(lowest(vec![LoadPlan::default()], &Metadata::default()).unwrap().len(), 1);
/// ```
///
/// # Errors
/// [`PlanError::Invalid`] if an item wants something that is not stored, or `choose` does not return exactly one rank per demand.
pub fn share_reads(
    plans: Vec<LoadPlan>,
    metadata: &Metadata,
    group: impl Fn(u32) -> Option<u32>,
    choose: impl FnOnce(&[Demand]) -> Vec<u32>,
) -> Result<Vec<LoadPlan>> {
    share(plans, metadata, group, choose, LEAST_BLOCK)
}

/// A block is cut for balance only if its parts have so many bytes.
const LEAST_BLOCK: u64 = 1 << 20;
/// So many blocks for each rank balance their bytes well enough.
const BLOCKS_PER_RANK: u64 = 4;

fn share(
    mut plans: Vec<LoadPlan>,
    metadata: &Metadata,
    group: impl Fn(u32) -> Option<u32>,
    choose: impl FnOnce(&[Demand]) -> Vec<u32>,
    least: u64,
) -> Result<Vec<LoadPlan>> {
    let wants = collect(&mut plans, metadata, group)?;
    let blocks = blocks(wants, metadata, least)?;
    let demand = |block: &Block| Demand {
        group: block.group,
        what: block.what.clone(),
        ranks: block.readers.iter().copied().collect(),
    };
    let demands: Vec<Demand> = blocks.iter().map(demand).collect();
    let readers = choose(&demands);
    if readers.len() != demands.len() {
        let what = format!(
            "{} ranks were chosen for {} reads; choose one rank for each read",
            readers.len(),
            demands.len()
        );
        return Err(PlanError::invalid("an exchange", what));
    }
    drop(demands);

    let mut kept: Vec<Vec<Item>> = vec![Vec::new(); plans.len()];
    for (block, reader) in blocks.into_iter().zip(readers) {
        block.read_by(reader, &mut plans, &mut kept, metadata)?;
    }
    // The reader's items go back to the order that they had in its plan.
    for (plan, mut items) in plans.iter_mut().zip(kept) {
        items.sort_by_key(|(position, _)| *position);
        plan.items.extend(items.into_iter().map(|(_, item)| item));
    }
    Ok(plans)
}

/// An item, with its position in its plan.
type Item = (usize, ReadItem);

/// A stored thing without a region, and the region that is wanted of it.
fn apart(mut what: Wanted) -> (Wanted, Region) {
    let region = match &mut what {
        Wanted::Chunk(selection) => std::mem::take(&mut selection.region),
        Wanted::Object(_) => Region::default(),
    };
    (what, region)
}

/// A region of a stored thing.
fn wanted(thing: &Wanted, region: Region) -> Wanted {
    let mut what = thing.clone();
    if let Wanted::Chunk(selection) = &mut what {
        selection.region = region;
    }
    what
}

/// An item of rank `rank`, which rank `reader` reads so far.
struct Want {
    reader: u32,
    rank: u32,
    item: Item,
}

/// What the ranks of each group want of each stored thing, by region.
type Wants = IndexMap<(u32, Wanted), IndexMap<Region, Vec<Want>, RandomState>, RandomState>;

/// Takes what ranks with a group read out of the plans, for themselves or for others.
fn collect(
    plans: &mut [LoadPlan],
    metadata: &Metadata,
    group: impl Fn(u32) -> Option<u32>,
) -> Result<Wants> {
    let mut all = Wants::default();
    let mut add = |group: u32, reader: u32, rank: u32, item: Item| -> Result<()> {
        let (target, region) = apart(item.1.wanted(metadata)?);
        let regions = all.entry((group, target)).or_default();
        let want = Want { reader, rank, item };
        regions.entry(region).or_default().push(want);
        Ok(())
    };
    for (rank, plan) in (0u32..).zip(plans) {
        if let Some(group) = group(rank) {
            plan.exchange.serves.clear();
            for item in std::mem::take(&mut plan.items).into_iter().enumerate() {
                add(group, rank, rank, item)?;
            }
        }
        // What another wrapper has shared already is shared once more.
        let mut rest = Vec::new();
        for receive in std::mem::take(&mut plan.exchange.receives) {
            let Some(group) = group(receive.from) else {
                rest.push(receive);
                continue;
            };
            for item in receive.items {
                add(group, receive.from, rank, (usize::MAX, item))?;
            }
        }
        plan.exchange.receives = rest;
    }
    Ok(all)
}

/// What one rank reads, and who takes which part of it.
struct Block {
    group: u32,
    what: Wanted,
    readers: BTreeSet<u32>,
    /// By rank and part. Without parts, all take the whole.
    takers: BTreeMap<(u32, Option<Region>), Vec<Item>>,
}

/// Cuts wants into blocks.
fn blocks(wants: Wants, metadata: &Metadata, least: u64) -> Result<Vec<Block>> {
    let items = wants.values().map(IndexMap::len).sum();
    let mut budget = Budget::new(items);
    // First the unions, because the size of a block depends on how much each group reads.
    let mut unions = Vec::with_capacity(wants.len());
    let mut totals: BTreeMap<u32, (u64, BTreeSet<u32>)> = BTreeMap::new();
    for ((group, target), regions) in &wants {
        let union = union(target, regions, metadata, &mut budget);
        let Wanted::Chunk(Selection { dtype, .. }) = target else {
            unions.push(union);
            continue;
        };
        let (bytes, readers) = totals.entry(*group).or_default();
        let mut count = |region: &Region| {
            let elements = region.volume().unwrap_or(u64::MAX);
            *bytes = bytes.saturating_add(elements.saturating_mul(dtype.size()));
        };
        match &union {
            Some(boxes) => boxes.iter().for_each(&mut count),
            None => regions.keys().for_each(&mut count),
        }
        readers.extend(regions.values().flatten().map(|want| want.reader));
        unions.push(union);
    }

    let mut out = Vec::new();
    for (((group, target), regions), union) in wants.into_iter().zip(unions) {
        let whole =
            |(region, wants): (Region, Vec<Want>)| Block::whole(group, &target, region, wants);
        let Some(boxes) = union else {
            out.extend(regions.into_iter().map(whole));
            continue;
        };
        let target_bytes = totals.get(&group).map_or(u64::MAX, |(bytes, readers)| {
            (bytes / (BLOCKS_PER_RANK * readers.len() as u64).max(1)).max(least)
        });
        let (regions, empty): (Vec<_>, Vec<_>) = regions
            .into_iter()
            .partition(|(region, _)| !region.is_empty());
        out.extend(empty.into_iter().map(whole));
        let shape = chunk(&target, metadata).unwrap_or_default();
        let keys = regions.iter().map(|(region, _)| region);
        let wishes = wishes(&target, keys, &shape);
        for whole in boxes {
            for block in wishes.divide(whole, target_bytes, &mut budget) {
                out.push(Block::cut(group, &target, block, &regions));
            }
        }
    }
    Ok(out)
}

fn union(
    target: &Wanted,
    regions: &IndexMap<Region, Vec<Want>, RandomState>,
    metadata: &Metadata,
    budget: &mut Budget,
) -> Option<Vec<Region>> {
    let Wanted::Chunk(Selection { flat: None, .. }) = target else {
        return None;
    };
    let mut ranks = regions.values().flatten().map(|want| want.rank);
    let first = ranks.next();
    let shared = ranks.any(|rank| Some(rank) != first);
    if !shared {
        return None;
    }
    let shape = chunk(target, metadata)?;
    let keys = regions.keys().filter(|region| !region.is_empty());
    wishes(target, keys, &shape).boxes(budget)
}

fn wishes<'r>(
    target: &Wanted,
    regions: impl Iterator<Item = &'r Region>,
    chunk: &'r [u64],
) -> Wishes<'r> {
    let item = match target {
        Wanted::Chunk(selection) => selection.dtype.size(),
        Wanted::Object(_) => 1,
    };
    Wishes {
        regions: regions.collect(),
        chunk,
        item,
    }
}

/// The shape of a chunk.
fn chunk(target: &Wanted, metadata: &Metadata) -> Option<Dims> {
    let Wanted::Chunk(selection) = target else {
        return None;
    };
    let (_, chunk) = metadata.chunk(selection.chunk)?;
    Some(chunk.lengths)
}

impl Block {
    /// A region that all want as a whole.
    fn whole(group: u32, target: &Wanted, region: Region, wants: Vec<Want>) -> Self {
        let mut block = Self {
            group,
            what: wanted(target, region),
            readers: BTreeSet::new(),
            takers: BTreeMap::new(),
        };
        for Want { reader, rank, item } in wants {
            block.readers.insert(reader);
            block.takers.entry((rank, None)).or_default().push(item);
        }
        block
    }

    /// A box, and what each region has of it.
    fn cut(group: u32, target: &Wanted, of: Region, regions: &[(Region, Vec<Want>)]) -> Self {
        let (mut readers, mut takers) = (BTreeSet::new(), BTreeMap::new());
        let mut parts = false;
        for (region, wants) in regions {
            let Some(part) = region.intersect(&of) else {
                continue;
            };
            parts |= part != of;
            for Want { reader, rank, item } in wants {
                readers.insert(*reader);
                let items: &mut Vec<Item> = takers.entry((*rank, Some(part.clone()))).or_default();
                items.push((item.0, cut_item(&item.1, region, &part)));
            }
        }
        if !parts {
            takers = takers
                .into_iter()
                .map(|((rank, _), items)| ((rank, None), items))
                .collect();
        }
        Self {
            group,
            what: wanted(target, of),
            readers,
            takers,
        }
    }

    /// Puts it into the plans: `reader` reads it, and hands it to the others.
    fn read_by(
        self,
        reader: u32,
        plans: &mut [LoadPlan],
        kept: &mut [Vec<Item>],
        metadata: &Metadata,
    ) -> Result<()> {
        let Self { what, takers, .. } = self;
        let (_, of) = apart(what.clone());
        let (mut to, mut parts) = (Vec::new(), Vec::new());
        for ((rank, part), items) in takers {
            if rank == reader {
                kept[rank as usize].extend(items);
                continue;
            }
            let items = items.into_iter().map(|(_, item)| item).collect();
            let mut receive = Receive::new(reader, items);
            to.push(rank);
            if let Some(part) = part {
                parts.push(part);
                receive = receive.part_of(of.clone());
            }
            plans[rank as usize].exchange.receives.push(receive);
        }
        // A demand of the reader alone needs no exchange.
        if to.is_empty() {
            return Ok(());
        }
        let ranks = plans.len();
        let Some(plan) = plans.get_mut(reader as usize) else {
            let key = what.key(metadata).unwrap_or_default();
            return Err(PlanError::invalid(
                key,
                format!("rank {reader} was chosen to read it, but there are only {ranks} ranks"),
            ));
        };
        plan.exchange.serves.push(Serve {
            what,
            to: to.into(),
            parts: parts.into(),
        });
        Ok(())
    }
}

/// The part of an item that reads `part` of its `region`.
fn cut_item(item: &ReadItem, region: &Region, part: &Region) -> ReadItem {
    let mut item = item.clone();
    for axis in 0..region.ndim() {
        item.dest_region.offsets[axis] += part.offsets[axis] - region.offsets[axis];
    }
    item.dest_region.lengths.clone_from(&part.lengths);
    item.stored_region = part.clone();
    item
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PieceId, Stored, exchange_groups};
    use reshard_model::DType;
    use std::sync::Arc;

    /// A chunk of 8 x 8 elements, of which each of four ranks wants two columns: each reads two rows, and sends the others their columns.
    #[test]
    fn rows_become_columns_by_long_reads() {
        let mut builder = Metadata::builder();
        let w = builder
            .add_tensor("w", DType::Float32, &[8, 8], Default::default())
            .unwrap();
        let chunk = builder.add_chunk(w, &Region::whole(&[8, 8])).unwrap();
        let metadata = builder.finish(None).unwrap();
        let plan = |rank: u64| {
            let item = ReadItem {
                dest: 0,
                dest_region: Region::whole(&[8, 2]),
                piece: PieceId {
                    key: Arc::from("w"),
                    offset: Some([0, 0].into()),
                },
                stored: Stored::Chunk(chunk),
                stored_region: Region::new([0, 2 * rank], [8, 2]),
                flat: None,
            };
            LoadPlan::new(vec![item])
        };
        let choose = |all: &[Demand]| {
            assert!(all.iter().all(|demand| demand.ranks == [0, 1, 2, 3]));
            (0..all.len() as u32).map(|i| i % 4).collect()
        };
        // 4 blocks for each rank would be half rows. Parts have at least 64 bytes.
        let plans = (0..4).map(plan).collect();
        let shared = share(plans, &metadata, |_| Some(0), choose, 64).unwrap();
        assert!(exchange_groups(&shared, &metadata).unwrap()[0].is_some());
        for (rank, plan) in (0u64..).zip(&shared) {
            let [serve] = &plan.exchange.serves[..] else {
                panic!("{plan:?}")
            };
            let rows = Region::new([2 * rank, 0], [2, 8]);
            let others = (0..4).filter(|other| *other != rank);
            let to: Vec<u32> = others.clone().map(|other| other as u32).collect();
            let parts = others.map(|other| Region::new([2 * rank, 2 * other], [2, 2]));
            let selection = Selection::new(chunk, DType::Float32, rows);
            assert_eq!(*serve, Serve::parts(selection, to.into_iter().zip(parts)));
            let [own] = &plan.items[..] else {
                panic!("{plan:?}")
            };
            assert_eq!(own.dest_region, Region::new([2 * rank, 0], [2, 2]));
        }
    }
}
