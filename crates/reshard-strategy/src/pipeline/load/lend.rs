//! The template's buffers on loan: they are taken, cut into the places of a plan, and given back whatever happens.

use super::device::Devices;
use crate::{LoadCx, Result, StrategyError};
use indexmap::IndexMap;
use reshard_comm::Timer;
use reshard_model::{
    DType, Data, DeviceTensor, FlatStateDict, FlatView, LentBuffer, LentView, Region, RegionMut,
    Sharded, ShardedTensor, Tensor, View, check_disjoint,
};
use reshard_plan::{ChunkId, Destination, LoadPlan, Metadata, ReadItem, Selection, Stored, Wanted};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// A template whose buffers are on loan, as far as a plan fills them.
pub(super) struct Loan {
    template: FlatStateDict,
    buffers: Vec<Lent>,
    /// Takes what goes to leaves on devices.
    devices: Devices,
}

/// A buffer, and all leaves of the template that are views of it.
struct Lent {
    buffer: Arc<LentBuffer>,
    views: Vec<LentView>,
    leaves: Vec<u32>,
}

/// A leaf on a device, and how regions see its memory.
struct OnDevice<'t> {
    tensor: &'t ShardedTensor,
    data: &'t DeviceTensor,
    view: View,
}

/// Where the elements of an item go.
pub(super) struct Place<'p> {
    pub(super) item: &'p ReadItem,
    /// The leaf's element type.
    pub(super) dtype: DType,
    pub(super) into: RegionMut,
    /// Whether elements go there as they are stored, once that is known.
    straight: Option<bool>,
}

impl Place<'_> {
    /// Whether elements of stored type `stored` go there as they are. Elements that are cast always go through temporary memory, whatever
    /// the planner says. It is asked once.
    pub(super) fn goes_straight(&mut self, stored: DType, cx: &LoadCx<'_>) -> Result<bool> {
        if let Some(straight) = self.straight {
            return Ok(straight);
        }
        let straight =
            stored == self.dtype && cx.planner.lookup_tensor(self.item)? == Destination::Leaf;
        self.straight = Some(straight);
        Ok(straight)
    }
}

/// The bytes of places into which elements of this type come.
pub(super) fn stored(places: &[Place<'_>], dtype: DType) -> u64 {
    let bytes = places
        .iter()
        .map(|place| place.into.bytes() / place.dtype.size() * dtype.size());
    bytes.sum()
}

/// Where the elements of an item come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// This rank reads them for itself.
    Read,
    /// This rank reads them for others too. The number is the position in [`Exchange::serves`](reshard_plan::Exchange).
    Served(usize),
    /// Another rank reads them. The number is the position in [`Exchange::receives`](reshard_plan::Exchange).
    Received(usize),
}

/// A region of a buffer that the plan wants: for an item, or for zeros.
struct Want<'p> {
    view: usize,
    region: Region,
    item: Option<(&'p ReadItem, Route)>,
    dtype: DType,
}

/// All places that a plan fills.
#[derive(Default)]
pub(super) struct Places<'p> {
    pub(super) reads: Vec<Place<'p>>,
    pub(super) zeros: Vec<RegionMut>,
    pub(super) exchanged: Exchanged<'p>,
}

/// The places that an exchange fills.
#[derive(Default)]
pub(super) struct Exchanged<'p> {
    /// By position in what this rank serves.
    pub(super) served: BTreeMap<usize, Vec<Place<'p>>>,
    /// By position in what this rank receives.
    pub(super) received: BTreeMap<usize, Vec<Place<'p>>>,
}

impl Loan {
    /// Takes the buffers of the leaves that a plan fills. A leaf without a buffer gets one. At most `copy_ahead` bytes are on their way to
    /// devices.
    ///
    /// # Errors
    /// The error comes with the template.
    pub(super) fn take(
        template: FlatStateDict,
        plan: &LoadPlan,
        copy_ahead: u64,
    ) -> Result<Self, Box<(StrategyError, FlatStateDict)>> {
        let mut loan = Self {
            template,
            buffers: Vec::new(),
            devices: Devices::new(copy_ahead),
        };
        match loan.allocate(plan).and_then(|()| loan.lend(&filled(plan))) {
            Ok(()) => Ok(loan),
            Err(error) => Err(Box::new((error, loan.give_back().0))),
        }
    }

    /// Gives a buffer to each leaf without one, including empty leaves, so that every leaf of the result has data. A leaf
    /// that is not stored stays as it is.
    fn allocate(&mut self, plan: &LoadPlan) -> Result<()> {
        let not_stored: BTreeSet<u32> = plan.not_stored.iter().copied().collect();
        for (i, leaf) in self.template.values_mut().enumerate() {
            if let Sharded::Tensor(t) = leaf
                && matches!(t.data, Data::None)
                && !not_stored.contains(&(i as u32))
            {
                t.data = Data::Host(Tensor::zeros(&t.key, t.dtype, &t.data_shape())?);
            }
        }
        Ok(())
    }

    fn lend(&mut self, filled: &BTreeSet<u32>) -> Result<()> {
        // A buffer can be lent only with all handles on it, so leaves that share a buffer are lent together.
        let mut views: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (i, leaf) in self.template.values().enumerate() {
            if let Sharded::Tensor(ShardedTensor {
                data: Data::Host(h),
                ..
            }) = leaf
            {
                views.entry(h.buffer_id()).or_default().push(i as u32);
            }
        }
        views.retain(|_, leaves| leaves.iter().any(|i| filled.contains(i)));
        views
            .into_values()
            .try_for_each(|leaves| self.lend_buffer(leaves))
    }

    fn lend_buffer(&mut self, leaves: Vec<u32>) -> Result<()> {
        let (mut key, mut handles) = (String::new(), Vec::with_capacity(leaves.len()));
        for &i in &leaves {
            let Some(t) = tensor_mut(&mut self.template, i) else {
                continue;
            };
            if let Data::Host(h) = std::mem::take(&mut t.data) {
                handles.push(h);
            }
            if key.is_empty() {
                key = t.key.to_string();
            }
        }
        match LentBuffer::new(&key, handles) {
            Ok((buffer, views)) => self.buffers.push(Lent {
                buffer,
                views,
                leaves,
            }),
            Err((e, handles)) => {
                restore(&mut self.template, &leaves, handles);
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Where the items of the plan go, and which regions become zeros. Call it once.
    ///
    /// # Errors
    /// Items that overlap, that don't lie in their leaves, or that go to a leaf without memory.
    pub(super) fn places<'p>(&self, plan: &'p LoadPlan, metadata: &Metadata) -> Result<Places<'p>> {
        // Finds the buffer and the view of each leaf. A leaf on a device is a buffer of its own.
        let mut at = BTreeMap::new();
        for (buffer, lent) in self.buffers.iter().enumerate() {
            at.extend(
                lent.leaves
                    .iter()
                    .enumerate()
                    .map(|(view, &leaf)| (leaf, (buffer, view))),
            );
        }
        let mut on_devices: Vec<OnDevice<'_>> = Vec::new();
        for (i, leaf) in (0u32..).zip(self.template.values()) {
            if let Sharded::Tensor(t) = leaf
                && let Data::Device(d) = &t.data
            {
                at.insert(i, (self.buffers.len() + on_devices.len(), 0));
                let view = View::new(d.layout().clone());
                let view = match flat_of(t) {
                    Some(flat) => view.flat(flat),
                    None => view,
                };
                on_devices.push(OnDevice {
                    tensor: t,
                    data: d,
                    view,
                });
            }
        }
        // A buffer checks that its regions are disjoint, so all regions of a buffer, zeros too, must be collected first.
        let items = routed(plan, metadata)?;
        let reads = items
            .into_iter()
            .map(|(i, route)| (i.dest, &i.dest_region, Some((i, route))));
        let zeros = plan.fills.iter().map(|f| (f.dest, &f.dest_region, None));
        let mut wants: Vec<Vec<Want<'_>>> = Vec::new();
        wants.resize_with(self.buffers.len() + on_devices.len(), Vec::new);
        for (dest, region, item) in reads.chain(zeros) {
            let leaf = self.template.get_index(dest as usize).map(|(_, leaf)| leaf);
            let (Some(Sharded::Tensor(t)), Some(&(buffer, view))) = (leaf, at.get(&dest)) else {
                return Err(no_memory(dest, leaf));
            };
            wants[buffer].push(Want {
                view,
                region: local(t, region),
                item,
                dtype: t.dtype,
            });
        }

        // Now each buffer is cut once, and each region goes to the reader that fills it.
        let mut out = Places::default();
        let mut wants = wants.into_iter();
        for (lent, wants) in self.buffers.iter().zip(&mut wants) {
            let views: Vec<Cow<'_, LentView>> = lent
                .leaves
                .iter()
                .zip(&lent.views)
                .map(|(&leaf, view)| match flat_view(&self.template, leaf) {
                    Some(flat) => Cow::Owned(view.clone().flat(flat)),
                    None => Cow::Borrowed(view),
                })
                .collect();
            let regions: Vec<(&LentView, Region)> = wants
                .iter()
                .map(|want| (&*views[want.view], want.region.clone()))
                .collect();
            out.add(wants, lent.buffer.regions_mut(&regions)?);
        }
        let on_devices: Vec<_> = on_devices.into_iter().zip(wants).collect();
        check_devices(&on_devices)?;
        for (OnDevice { tensor, data, view }, wants) in on_devices {
            let regions: Vec<Region> = wants.iter().map(|want| want.region.clone()).collect();
            let copies = self.devices.leaf(&tensor.key, data);
            let regions = RegionMut::on_device(&tensor.key, &view, &regions, &copies)?;
            out.add(wants, regions);
        }
        Ok(out)
    }

    /// Takes what goes to leaves on devices.
    pub(super) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Waits until nobody fills a buffer any more, for `deadline` at most. Peers that have borrowed regions let go of them when they hear
    /// that the exchange is over.
    pub(super) async fn is_returned(&self, deadline: Duration) {
        const LONGEST: Duration = Duration::from_millis(50);
        let begun = Instant::now();
        let mut pause = Duration::from_micros(50);
        while self
            .buffers
            .iter()
            .any(|b| Arc::strong_count(&b.buffer) > 1)
            && begun.elapsed() < deadline
        {
            if Timer::after(pause).await.is_err() {
                break;
            }
            pause = LONGEST.min(pause * 2);
        }
    }

    /// Returns the template with its own buffers, when the devices have what was read. It says how long copies to devices took.
    pub(super) fn give_back(self) -> (FlatStateDict, Result<Duration>) {
        let Self {
            mut template,
            buffers,
            devices,
        } = self;
        // Every buffer is taken back, even if one of them is lost.
        let mut lost = None;
        for Lent {
            buffer,
            views,
            leaves,
        } in buffers
        {
            match buffer.reclaim(views) {
                Ok(handles) => restore(&mut template, &leaves, handles),
                Err(_) => lost = lost.or(leaves.first().copied()),
            }
        }
        let outcome = match lost.and_then(|i| template.get_index(i as usize)) {
            None => Ok(()),
            Some((_, leaf)) => {
                let what = format!("a store is still reading into the buffer of {}", leaf.key());
                Err(StrategyError::Internal(what))
            }
        };
        let (took, copied) = devices.finish();
        (template, outcome.and(copied).map(|()| took))
    }
}

impl<'p> Places<'p> {
    /// Adds the regions for what is wanted.
    fn add(&mut self, wants: Vec<Want<'p>>, regions: Vec<RegionMut>) {
        for (Want { item, dtype, .. }, into) in wants.into_iter().zip(regions) {
            let Some((item, route)) = item else {
                self.zeros.push(into);
                continue;
            };
            let place = Place {
                item,
                dtype,
                into,
                straight: None,
            };
            match route {
                Route::Read => self.reads.push(place),
                Route::Served(n) => self.exchanged.served.entry(n).or_default().push(place),
                Route::Received(n) => self.exchanged.received.entry(n).or_default().push(place),
            }
        }
    }
}

/// The items that want parts of tensors, whichever rank reads them.
pub(super) fn tensors(plan: &LoadPlan) -> impl Iterator<Item = &ReadItem> {
    plan.all_items().filter(|i| is_tensor(i))
}

fn is_tensor(item: &ReadItem) -> bool {
    matches!(item.stored, Stored::Chunk(_))
}

/// The items that want parts of tensors, and where their elements come from.
fn routed<'p>(plan: &'p LoadPlan, metadata: &Metadata) -> Result<Vec<(&'p ReadItem, Route)>> {
    let own = plan.items.iter().filter(|i| is_tensor(i));
    if plan.exchange.is_empty() {
        return Ok(own.map(|item| (item, Route::Read)).collect());
    }
    // If this rank reads something for others, it does not read it, or a part of it, again for itself.
    let serves = || plan.exchange.serves.iter().enumerate();
    let served: IndexMap<&Wanted, usize> = serves().map(|(n, serve)| (&serve.what, n)).collect();
    let mut cut: BTreeMap<ChunkId, Vec<(usize, &Selection)>> = BTreeMap::new();
    for (n, serve) in serves().filter(|(_, serve)| !serve.parts.is_empty()) {
        if let Wanted::Chunk(of) = &serve.what {
            cut.entry(of.chunk).or_default().push((n, of));
        }
    }
    let mut out = Vec::new();
    for item in own {
        let what = item.wanted(metadata)?;
        let part = |what: &Wanted| {
            let Wanted::Chunk(part) = what else {
                return None;
            };
            let whole = |of: &Selection| of.flat == part.flat && of.region.contains(&part.region);
            let all = cut.get(&part.chunk)?;
            all.iter().find(|(_, of)| whole(of)).map(|(n, _)| *n)
        };
        let n = served.get(&what).copied().or_else(|| part(&what));
        out.push((item, n.map_or(Route::Read, Route::Served)));
    }
    for (n, receive) in plan.exchange.receives.iter().enumerate() {
        out.extend(
            receive
                .items
                .iter()
                .filter(|i| is_tensor(i))
                .map(|item| (item, Route::Received(n))),
        );
    }
    Ok(out)
}

/// The leaves that the plan fills, by position in the template.
fn filled(plan: &LoadPlan) -> BTreeSet<u32> {
    tensors(plan)
        .map(|i| i.dest)
        .chain(plan.fills.iter().map(|f| f.dest))
        .collect()
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

/// Fails if leaves that are views of one device memory want the same bytes of it.
fn check_devices(leaves: &[(OnDevice<'_>, Vec<Want<'_>>)]) -> Result<()> {
    let mut by_memory: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, (leaf, _)) in leaves.iter().enumerate() {
        let memory = Arc::as_ptr(leaf.data.buffer()).cast::<()>().addr();
        by_memory.entry(memory).or_default().push(i);
    }
    for views in by_memory.into_values() {
        let mut key = "";
        let mut regions = Vec::new();
        for (leaf, wants) in views.iter().map(|i| &leaves[*i]) {
            key = &leaf.tensor.key;
            regions.extend(wants.iter().map(|want| (&leaf.view, &want.region)));
        }
        check_disjoint(key, &regions)?;
    }
    Ok(())
}

/// The tensor of which the memory of a leaf has a range, if the leaf is flattened: its local chunk.
fn flat_of(leaf: &ShardedTensor) -> Option<FlatView> {
    let start = leaf.flattened_range.as_ref()?.start;
    let shape = leaf.local_shape.clone();
    Some(FlatView { shape, start })
}

fn flat_view(template: &FlatStateDict, leaf: u32) -> Option<FlatView> {
    match template.get_index(leaf as usize) {
        Some((_, Sharded::Tensor(t))) => flat_of(t),
        _ => None,
    }
}

/// The region of a leaf's local tensor for a region of the plan. The local tensor lacks the prepended axes, whose length is 1.
fn local(leaf: &ShardedTensor, region: &Region) -> Region {
    let cut = |d: &[u64]| d.get(leaf.prepend_axis_num..).unwrap_or(&[]).into();
    Region {
        offsets: cut(&region.offsets),
        lengths: cut(&region.lengths),
    }
}

fn no_memory(dest: u32, leaf: Option<&Sharded>) -> StrategyError {
    let why = match leaf {
        None => format!("leaf {dest} of the template, because it has no such leaf"),
        Some(Sharded::Object(o)) => format!("{}, because it is an object in the template", o.key),
        Some(Sharded::Tensor(t)) => format!(
            "{}, because its buffer in the template can't be lent",
            t.key
        ),
    };
    StrategyError::Invalid(format!("elements can't be read into {why}"))
}
