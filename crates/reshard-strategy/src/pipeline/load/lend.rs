//! The template's buffers on loan: taken, cut into the places of a plan, given back whatever happens.

use crate::{LoadFailure, Result, StrategyError};
use indexmap::IndexMap;
use reshard_model::{
    DType, Data, FlatStateDict, LentBuffer, LentView, Region, RegionMut, Sharded, ShardedTensor, Tensor,
};
use reshard_plan::{LoadPlan, Metadata, ReadItem, Stored, Wanted};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A template, of which the buffers that a plan fills are on loan.
pub(super) struct Loan {
    template: FlatStateDict,
    /// What lies on devices, by position of the leaf. Meanwhile a copy in host memory is filled.
    devices: BTreeMap<u32, Data>,
    buffers: Vec<Lent>,
}

/// A buffer, and all leaves of the template that are views of it.
struct Lent {
    buffer: Arc<LentBuffer>,
    views: Vec<LentView>,
    leaves: Vec<u32>,
}

/// Where the elements of an item go.
pub(super) struct Place<'p> {
    pub(super) item: &'p ReadItem,
    /// The leaf's element type.
    pub(super) dtype: DType,
    pub(super) into: RegionMut,
}

/// By which way elements come to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// This rank reads them for itself.
    Read,
    /// It reads them for others, too: the number of [`Exchange::serves`](reshard_plan::Exchange).
    Served(usize),
    /// Another rank reads them: the number of [`Exchange::receives`](reshard_plan::Exchange).
    Received(usize),
}

/// A region of a buffer that is asked for: for an item, or for zeros.
struct Want<'p> {
    view: usize,
    region: Region,
    item: Option<(&'p ReadItem, Route)>,
    dtype: DType,
}

/// All that a plan fills.
#[derive(Default)]
pub(super) struct Places<'p> {
    pub(super) reads: Vec<Place<'p>>,
    pub(super) zeros: Vec<RegionMut>,
    pub(super) exchanged: Exchanged<'p>,
}

/// What an exchange fills.
#[derive(Default)]
pub(super) struct Exchanged<'p> {
    /// By number of what this rank hands out.
    pub(super) served: BTreeMap<usize, Vec<Place<'p>>>,
    /// By number of what it receives.
    pub(super) received: BTreeMap<usize, Vec<Place<'p>>>,
}

impl Loan {
    /// Takes the buffers of the leaves that a plan fills. Leaves without one get one.
    ///
    /// # Errors
    /// The template comes back.
    pub(super) fn take(template: FlatStateDict, plan: &LoadPlan) -> Result<Self, Box<LoadFailure>> {
        let mut loan = Self { template, devices: BTreeMap::new(), buffers: Vec::new() };
        match loan.allocate(plan).and_then(|()| loan.lend(&filled(plan))) {
            Ok(()) => Ok(loan),
            Err(error) => Err(Box::new(LoadFailure { error, template: loan.give_back(false).0 })),
        }
    }

    /// Leaves without a buffer get one; those that are empty too, so that every leaf of the result has data. What is not stored stays
    /// as it is.
    fn allocate(&mut self, plan: &LoadPlan) -> Result<()> {
        let missing: BTreeSet<u32> = plan.missing.iter().copied().collect();
        for (i, leaf) in self.template.values_mut().enumerate() {
            if let Sharded::Tensor(t) = leaf
                && matches!(t.data, Data::None)
                && !missing.contains(&(i as u32))
            {
                t.data = Data::Host(Tensor::zeros(&t.key, t.dtype, &t.local_shape)?);
            }
        }
        Ok(())
    }

    fn lend(&mut self, filled: &BTreeSet<u32>) -> Result<()> {
        for &i in filled {
            let Some(t) = tensor_mut(&mut self.template, i) else { continue };
            if let Data::Device(d) = &t.data {
                // What no read covers (a partial fill) must stay as it was.
                let host = d.to_host(&t.key)?;
                self.devices.insert(i, std::mem::replace(&mut t.data, Data::Host(host)));
            }
        }
        // All handles on a buffer have to come together.
        let mut views: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (i, leaf) in self.template.values().enumerate() {
            if let Sharded::Tensor(ShardedTensor { data: Data::Host(h), .. }) = leaf {
                views.entry(h.buffer_id()).or_default().push(i as u32);
            }
        }
        views.retain(|_, leaves| leaves.iter().any(|i| filled.contains(i)));
        views.into_values().try_for_each(|leaves| self.lend_buffer(leaves))
    }

    fn lend_buffer(&mut self, leaves: Vec<u32>) -> Result<()> {
        let (mut key, mut handles) = (String::new(), Vec::with_capacity(leaves.len()));
        for &i in &leaves {
            let Some(t) = tensor_mut(&mut self.template, i) else { continue };
            if let Data::Host(h) = std::mem::take(&mut t.data) {
                handles.push(h);
            }
            if key.is_empty() {
                key = t.key.to_string();
            }
        }
        match LentBuffer::new(&key, handles) {
            Ok((buffer, views)) => self.buffers.push(Lent { buffer, views, leaves }),
            Err((e, handles)) => {
                restore(&mut self.template, &leaves, handles);
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Where the items of the plan go, and what becomes zeros. May be called once.
    ///
    /// # Errors
    /// Items that meet, that don't lie in their leaves, or that go to a leaf without memory.
    pub(super) fn places<'p>(&self, plan: &'p LoadPlan, metadata: &Metadata) -> Result<Places<'p>> {
        let mut at = BTreeMap::new();
        for (buffer, lent) in self.buffers.iter().enumerate() {
            at.extend(lent.leaves.iter().enumerate().map(|(view, &leaf)| (leaf, (buffer, view))));
        }
        // All regions of a buffer are asked for at once, zeros too, so that no two of them meet.
        let items = routed(plan, metadata)?;
        let reads = items.into_iter().map(|(i, route)| (i.dest, &i.dest_region, Some((i, route))));
        let zeros = plan.fills.iter().map(|f| (f.dest, &f.dest_region, None));
        let mut wants: Vec<Vec<Want<'_>>> = Vec::new();
        wants.resize_with(self.buffers.len(), Vec::new);
        for (dest, region, item) in reads.chain(zeros) {
            let leaf = self.template.get_index(dest as usize).map(|(_, leaf)| leaf);
            let (Some(Sharded::Tensor(t)), Some(&(buffer, view))) = (leaf, at.get(&dest)) else {
                return Err(no_memory(dest, leaf));
            };
            wants[buffer].push(Want { view, region: local(t, region), item, dtype: t.dtype });
        }

        let mut out = Places::default();
        for (lent, wants) in self.buffers.iter().zip(wants) {
            let regions: Vec<(&LentView, Region)> =
                wants.iter().map(|want| (&lent.views[want.view], want.region.clone())).collect();
            let regions = lent.buffer.regions_mut(&regions)?;
            for (Want { item, dtype, .. }, into) in wants.into_iter().zip(regions) {
                let Some((item, route)) = item else {
                    out.zeros.push(into);
                    continue;
                };
                let place = Place { item, dtype, into };
                match route {
                    Route::Read => out.reads.push(place),
                    Route::Served(n) => out.exchanged.served.entry(n).or_default().push(place),
                    Route::Received(n) => out.exchanged.received.entry(n).or_default().push(place),
                }
            }
        }
        Ok(out)
    }

    /// The template with its own buffers. When `filled`, devices get what was read for them; else they stay as they were.
    pub(super) fn give_back(self, filled: bool) -> (FlatStateDict, Result<()>) {
        let Self { mut template, devices, buffers } = self;
        let mut lost = None;
        for Lent { buffer, views, leaves } in buffers {
            match buffer.reclaim(views) {
                Ok(handles) => restore(&mut template, &leaves, handles),
                Err(_) => lost = lost.or(leaves.first().copied()),
            }
        }
        let mut outcome = match lost.and_then(|i| template.get_index(i as usize)) {
            None => Ok(()),
            Some((_, leaf)) => {
                let what = format!("the buffer of {} is still being read into by a store", leaf.key());
                Err(StrategyError::Invalid(what))
            }
        };
        for (i, device) in devices {
            let Some(t) = tensor_mut(&mut template, i) else { continue };
            let host = std::mem::replace(&mut t.data, device);
            if let (Data::Device(d), Data::Host(h)) = (&t.data, host)
                && filled
                && outcome.is_ok()
            {
                outcome = d.fill(&t.key, &h).map_err(StrategyError::from);
            }
        }
        (template, outcome)
    }
}

/// Items that want parts of tensors, whoever reads them.
pub(super) fn tensors(plan: &LoadPlan) -> impl Iterator<Item = &ReadItem> {
    plan.all_items().filter(|i| is_tensor(i))
}

fn is_tensor(item: &ReadItem) -> bool {
    matches!(item.stored, Stored::Chunk(_))
}

/// Items that want parts of tensors, and by which way they come.
fn routed<'p>(plan: &'p LoadPlan, metadata: &Metadata) -> Result<Vec<(&'p ReadItem, Route)>> {
    let own = plan.items.iter().filter(|i| is_tensor(i));
    if plan.exchange.is_empty() {
        return Ok(own.map(|item| (item, Route::Read)).collect());
    }
    // What this rank reads for others, it does not read a second time for itself.
    let served: IndexMap<&Wanted, usize> =
        plan.exchange.serves.iter().enumerate().map(|(n, serve)| (&serve.what, n)).collect();
    let mut out = Vec::new();
    for item in own {
        let route = served.get(&item.wanted(metadata)?).map_or(Route::Read, |n| Route::Served(*n));
        out.push((item, route));
    }
    for (n, receive) in plan.exchange.receives.iter().enumerate() {
        out.extend(receive.items.iter().filter(|i| is_tensor(i)).map(|item| (item, Route::Received(n))));
    }
    Ok(out)
}

/// Leaves that something is put into, by position in the template.
fn filled(plan: &LoadPlan) -> BTreeSet<u32> {
    tensors(plan).map(|i| i.dest).chain(plan.fills.iter().map(|f| f.dest)).collect()
}

fn tensor_mut(template: &mut FlatStateDict, i: u32) -> Option<&mut ShardedTensor> {
    match template.get_index_mut(i as usize) {
        Some((_, Sharded::Tensor(t))) => Some(t),
        _ => None,
    }
}

fn restore(template: &mut FlatStateDict, leaves: &[u32], handles: Vec<Tensor>) {
    for (&i, h) in leaves.iter().zip(handles) {
        if let Some(t) = tensor_mut(template, i) {
            t.data = Data::Host(h);
        }
    }
}

/// The part of a leaf's local tensor that a region of the plan means: prepended axes are of extent 1 and not in it.
fn local(leaf: &ShardedTensor, region: &Region) -> Region {
    let cut = |d: &[u64]| d.get(leaf.prepend_axis_num..).unwrap_or(&[]).into();
    Region { offsets: cut(&region.offsets), lengths: cut(&region.lengths) }
}

fn no_memory(dest: u32, leaf: Option<&Sharded>) -> StrategyError {
    let why = match leaf {
        None => format!("leaf {dest} of the template, which has no such leaf"),
        Some(Sharded::Object(o)) => format!("{}, which is an object in the template", o.key),
        Some(Sharded::Tensor(t)) => format!("{}, whose elements the template has elsewhere", t.key),
    };
    StrategyError::Invalid(format!("elements can't be read into {why}"))
}
