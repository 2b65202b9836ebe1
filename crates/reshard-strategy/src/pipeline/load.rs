use crate::{
    BackendVersion, LoadCx, LoadFailure, LoadNotes, LoadShardedStrategy, Loaded, OpenCx, ReadObject,
    ReadTensor, ReadTotals, Result, StorageReader, StrategyError,
    agree::{self, agree},
    decode_object,
};
use async_trait::async_trait;
use reshard_model::{
    Data, FlatStateDict, LentBuffer, LentView, Payload, Region, RegionMut, Sharded, ShardedTensor, Tensor,
    Value,
};
use reshard_plan::{Destination, LoadContext, LoadPlan, PlanError, ReadItem, Selection, Stored, cast};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Instant};

/// How a format opens a checkpoint.
#[async_trait]
pub trait OpenFormat: fmt::Debug + Send + Sync + 'static {
    /// Its name.
    fn key(&self) -> BackendVersion;
    /// Reads what is stored and where.
    ///
    /// # Errors
    /// When it is not a checkpoint of this format, or damaged.
    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>>;
}

/// The load strategy of any format that can be opened.
#[derive(Debug)]
pub struct PlannedLoad<F> {
    format: F,
}

impl<F: OpenFormat> PlannedLoad<F> {
    /// Drives `format`.
    pub fn new(format: F) -> Self {
        Self { format }
    }
}

#[async_trait]
impl<F: OpenFormat> LoadShardedStrategy for PlannedLoad<F> {
    fn key(&self) -> BackendVersion {
        self.format.key()
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        self.format.open(cx).await
    }

    async fn load(
        &self,
        mut template: FlatStateDict,
        from: Arc<dyn StorageReader>,
        cx: &LoadCx<'_>,
    ) -> Result<Loaded, Box<LoadFailure>> {
        let guard = cx.comm.guard("loading");
        let start = Instant::now();
        let plan = match decide(&mut template, &*from, cx).await {
            Ok(plan) => plan,
            Err(error) => {
                guard.done();
                return Err(Box::new(LoadFailure { error, template }));
            }
        };
        let decided = start.elapsed();
        let (template, read) = fill(template, &plan, &*from, cx).await;
        let moved = start.elapsed() - decided;
        let totals = agree(&cx.comm, "read", read).await;
        guard.done();
        match totals {
            Ok(totals) => {
                Ok(Loaded { notes: notes(&plan, &template), totals, state: template, decided, moved })
            }
            Err(error) => Err(Box::new(LoadFailure { error, template })),
        }
    }
}

/// DCP's calls up to `finish_plan`, in its order.
async fn decide(template: &mut FlatStateDict, from: &dyn StorageReader, cx: &LoadCx<'_>) -> Result<LoadPlan> {
    let (rank, is_coordinator) = (cx.comm.rank().0, cx.comm.is_coordinator());
    let context = LoadContext::new(from.metadata(), rank, is_coordinator);
    // What `set_up` changes, a failed load must not keep: the caller gets back what it gave.
    let given = template.clone();
    let local = (|| -> Result<LoadPlan> {
        from.reset(&cx.store.url());
        cx.planner.set_up(template, &context)?;
        from.set_up(rank, is_coordinator)?;
        let plan = cx.planner.create_local_plan(template, &context).map_err(|e| explained(e, from))?;
        not_lacking(&plan, template, from)?;
        let mut tensors = plan.items.iter().filter(|i| matches!(i.stored, Stored::Chunk(_)));
        tensors.try_for_each(|i| from.permits(&i.piece.key))?;
        from.prepare_local_plan(plan)
    })();
    let planned = agree::decide(&cx.comm, "plan", local, |plans| {
        from.prepare_global_plan(cx.planner.create_global_plan(plans, &context)?)
    })
    .await;
    let finished = match planned {
        Ok(plan) => agree(&cx.comm, "plan", cx.planner.finish_plan(plan).map_err(StrategyError::from)).await,
        Err(e) => Err(e),
    };
    if finished.is_err() {
        *template = given;
    }
    finished
}

/// A plan's error, with what the format knows of the keys.
fn explained(e: PlanError, from: &dyn StorageReader) -> StrategyError {
    let why = match &e {
        PlanError::Load(problems) => problems.0.iter().find_map(|p| from.why_not(p.key())),
        _ => None,
    };
    why.map_or_else(|| e.into(), |what| unsupported(what, from))
}

/// A partial load leaves alone what is not stored; what is stored, and can't be loaded, is not that.
fn not_lacking(plan: &LoadPlan, template: &FlatStateDict, from: &dyn StorageReader) -> Result<()> {
    let missing = plan.missing.iter().filter_map(|i| template.get_index(*i as usize));
    let mut whys = missing.filter_map(|(_, leaf)| match leaf {
        Sharded::Tensor(t) => from.why_not(&t.key),
        Sharded::Object(o) => from.why_not(&o.unique_key()),
    });
    whys.next().map_or(Ok(()), |what| Err(unsupported(what, from)))
}

fn unsupported(what: String, from: &dyn StorageReader) -> StrategyError {
    StrategyError::Unsupported { strategy: from.key().to_string(), what }
}

fn notes(plan: &LoadPlan, template: &FlatStateDict) -> LoadNotes {
    let key = |i: &u32| template.get_index(*i as usize).map_or_else(String::new, |(_, s)| s.key().into());
    LoadNotes {
        unexpected: plan.unexpected.iter().map(|k| k.to_string()).collect(),
        missing: plan.missing.iter().map(&key).collect(),
        casts: plan.recasts.iter().map(|r| (key(&r.dest), r.from, r.to)).collect(),
    }
}

/// Most bytes that wait for a cast or a planner's transform at once.
const SCRATCH: u64 = 64 << 20;

/// Moves bytes; the template comes back whatever happens.
async fn fill(
    mut template: FlatStateDict,
    plan: &LoadPlan,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> (FlatStateDict, Result<ReadTotals>) {
    if let Err(e) = allocate(&mut template, plan) {
        return (template, Err(e));
    }
    let devices = match to_host(&mut template, plan) {
        Ok(devices) => devices,
        Err(e) => return (template, Err(e)),
    };
    let mut lent = match Lent::take(&mut template, plan) {
        Ok(lent) => lent,
        Err(e) => {
            back_to_devices(&mut template, devices);
            return (template, Err(e));
        }
    };
    let mut moved = read_all(&mut lent, plan, &template, from, cx).await;
    if let Err(e) = lent.give_back(&mut template) {
        moved = moved.and(Err(e));
    }
    let moved = match moved {
        Ok(totals) => copy_to_devices(&mut template, devices).map(|()| totals),
        Err(e) => {
            back_to_devices(&mut template, devices);
            Err(e)
        }
    };
    let moved = match moved {
        Ok(totals) => objects(&mut template, plan, from, cx).await.map(|()| totals),
        Err(e) => Err(e),
    };
    let committed = moved.and_then(|totals| {
        let mut tensors = plan.items.iter().filter(|i| matches!(i.stored, Stored::Chunk(_)));
        tensors.try_for_each(|i| cx.planner.commit_tensor(i))?;
        Ok(totals)
    });
    (template, committed)
}

/// Leaves that something is loaded into, by position in the template.
fn wanted(plan: &LoadPlan) -> std::collections::BTreeSet<u32> {
    let read = plan.items.iter().filter(|i| matches!(i.stored, Stored::Chunk(_))).map(|i| i.dest);
    read.chain(plan.fills.iter().map(|f| f.dest)).collect()
}

fn tensor_mut(template: &mut FlatStateDict, i: u32) -> Option<&mut ShardedTensor> {
    match template.get_index_mut(i as usize) {
        Some((_, Sharded::Tensor(t))) => Some(t),
        _ => None,
    }
}

/// Leaves without a buffer get one; those that are empty or missing too, so that every leaf of the result has data.
fn allocate(template: &mut FlatStateDict, plan: &LoadPlan) -> Result<()> {
    let missing: std::collections::BTreeSet<u32> = plan.missing.iter().copied().collect();
    for (i, leaf) in template.values_mut().enumerate() {
        if let Sharded::Tensor(t) = leaf
            && matches!(t.data, Data::None)
            && !missing.contains(&(i as u32))
        {
            t.data = Data::Host(Tensor::zeros(&t.key, t.dtype, &t.local_shape)?);
        }
    }
    Ok(())
}

type Devices = BTreeMap<u32, Data>;

/// Device leaves are filled through a host copy.
fn to_host(template: &mut FlatStateDict, plan: &LoadPlan) -> Result<Devices> {
    let mut out = Devices::new();
    for i in wanted(plan) {
        let Some(t) = tensor_mut(template, i) else { continue };
        if let Data::Device(d) = &t.data {
            // What no read covers (a partial fill) must stay as it was.
            let host = d.to_host(&t.key)?;
            out.insert(i, std::mem::replace(&mut t.data, Data::Host(host)));
        }
    }
    Ok(out)
}

fn copy_to_devices(template: &mut FlatStateDict, devices: Devices) -> Result<()> {
    let mut first = Ok(());
    for (i, device) in devices {
        let Some(t) = tensor_mut(template, i) else { continue };
        let host = std::mem::replace(&mut t.data, device);
        if let (Data::Device(d), Data::Host(h)) = (&t.data, host)
            && first.is_ok()
        {
            first = d.fill(&t.key, &h);
        }
    }
    Ok(first?)
}

fn back_to_devices(template: &mut FlatStateDict, devices: Devices) {
    for (i, device) in devices {
        if let Some(t) = tensor_mut(template, i) {
            t.data = device;
        }
    }
}

/// The template's buffers, on loan. Leaves that are views of one buffer lie in one [`LentBuffer`].
struct Lent {
    buffers: Vec<(Arc<LentBuffer>, Vec<LentView>, Vec<u32>)>,
}

impl Lent {
    fn take(template: &mut FlatStateDict, plan: &LoadPlan) -> Result<Self> {
        let mut groups: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (i, leaf) in template.values().enumerate() {
            if let Sharded::Tensor(ShardedTensor { data: Data::Host(h), .. }) = leaf {
                groups.entry(h.buffer_id()).or_default().push(i as u32);
            }
        }
        let wanted = wanted(plan);
        let mut out = Self { buffers: Vec::new() };
        for (_, leaves) in groups {
            if !leaves.iter().any(|i| wanted.contains(i)) {
                continue;
            }
            let mut key = String::new();
            let mut handles = Vec::new();
            for &i in &leaves {
                let Some(t) = tensor_mut(template, i) else { continue };
                if let Data::Host(h) = std::mem::take(&mut t.data) {
                    handles.push(h);
                }
                if key.is_empty() {
                    key = t.key.to_string();
                }
            }
            match LentBuffer::new(&key, handles) {
                Ok((lent, views)) => out.buffers.push((lent, views, leaves)),
                Err((e, handles)) => {
                    restore(template, &leaves, handles);
                    out.give_back(template)?;
                    return Err(e.into());
                }
            }
        }
        Ok(out)
    }

    fn give_back(&mut self, template: &mut FlatStateDict) -> Result<()> {
        let mut lost = Vec::new();
        for (lent, views, leaves) in self.buffers.drain(..) {
            match lent.reclaim(views) {
                Ok(handles) => restore(template, &leaves, handles),
                Err(_) => lost.extend(leaves),
            }
        }
        match lost.first().and_then(|&i| template.get_index(i as usize)) {
            None => Ok(()),
            Some((_, leaf)) => {
                let what = format!("the buffer of {} is still being read into by a store", leaf.key());
                Err(StrategyError::Invalid(what))
            }
        }
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
fn local(template: &FlatStateDict, item: u32, region: &Region) -> Region {
    let prepended = match template.get_index(item as usize) {
        Some((_, Sharded::Tensor(t))) => t.prepend_axis_num,
        _ => 0,
    };
    let cut = |d: &[u64]| d.get(prepended..).unwrap_or(&[]).into();
    Region { offsets: cut(&region.offsets), lengths: cut(&region.lengths) }
}

async fn read_all(
    lent: &mut Lent,
    plan: &LoadPlan,
    template: &FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<ReadTotals> {
    let mut direct: Vec<ReadTensor> = Vec::new();
    let mut scratch: Vec<(&ReadItem, Selection, RegionMut)> = Vec::new();
    let place: BTreeMap<u32, (usize, usize)> = lent
        .buffers
        .iter()
        .enumerate()
        .flat_map(|(l, (_, _, leaves))| leaves.iter().enumerate().map(move |(v, &leaf)| (leaf, (l, v))))
        .collect();
    // All regions of a buffer are asked for at once, those of fills too, so that a fill and a read never meet.
    enum Want<'p> {
        Read(&'p ReadItem),
        Fill,
    }
    let mut wants: Vec<Vec<(usize, Region, Want<'_>)>> = lent.buffers.iter().map(|_| Vec::new()).collect();
    for item in plan.items.iter().filter(|i| matches!(i.stored, Stored::Chunk(_))) {
        if let Some(&(l, v)) = place.get(&item.dest) {
            wants[l].push((v, local(template, item.dest, &item.dest_region), Want::Read(item)));
        }
    }
    for f in &plan.fills {
        if let Some(&(l, v)) = place.get(&f.dest) {
            wants[l].push((v, local(template, f.dest, &f.dest_region), Want::Fill));
        }
    }
    let metadata = from.metadata();
    for ((lent, views, _), wants) in lent.buffers.iter().zip(wants) {
        let regions: Vec<(&LentView, Region)> =
            wants.iter().map(|(v, r, _)| (&views[*v], r.clone())).collect();
        let lent_regions = lent.regions_mut(&regions)?;
        for ((_, _, want), into) in wants.into_iter().zip(lent_regions) {
            let Want::Read(item) = want else {
                let zeros = vec![0; into.bytes() as usize];
                into.fill(&zeros)?;
                continue;
            };
            let Some(selection) = item.selection(metadata)? else { continue };
            let dtype = match template.get_index(item.dest as usize) {
                Some((_, Sharded::Tensor(t))) => t.dtype,
                _ => continue,
            };
            let same = selection.dtype == dtype;
            if same && cx.planner.lookup_tensor(item)? == Destination::Leaf {
                direct.push(ReadTensor::new(selection, into));
            } else {
                scratch.push((item, selection, into));
            }
        }
    }
    let mut totals = from.read_tensors(direct, cx.verify, &cx.progress).await?;
    while !scratch.is_empty() {
        let mut bytes = 0;
        let n = scratch
            .iter()
            .take_while(|(.., c)| (bytes == 0, bytes += c.bytes()).0 || bytes <= SCRATCH)
            .count();
        let part = scratch.drain(..n.max(1)).collect();
        add(&mut totals, &through_scratch(part, template, from, cx).await?);
    }
    Ok(totals)
}

fn add(a: &mut ReadTotals, b: &ReadTotals) {
    a.needed += b.needed;
    a.read += b.read;
    a.headers += b.headers;
    a.requests += b.requests;
    a.verified += b.verified;
}

/// Reads into memory of its own, lets the planner transform and casts, then fills the regions.
async fn through_scratch(
    part: Vec<(&ReadItem, Selection, RegionMut)>,
    template: &FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<ReadTotals> {
    let (mut reads, mut waiting) = (Vec::new(), Vec::new());
    for (item, selection, into) in part {
        let scratch = Tensor::zeros(&item.piece.key, selection.dtype, into.shape())?;
        let (lent, views) = LentBuffer::new(&item.piece.key, vec![scratch]).map_err(|(e, _)| e)?;
        let whole = Region::whole(into.shape());
        let inner = lent.regions_mut(&[(&views[0], whole)])?;
        reads.extend(inner.into_iter().map(|inner| ReadTensor::new(selection.clone(), inner)));
        waiting.push((item, into, lent, views));
    }
    let totals = from.read_tensors(reads, cx.verify, &cx.progress).await?;
    for (item, into, lent, views) in waiting {
        let mut got =
            lent.reclaim(views).map_err(|_| StrategyError::Invalid("a store kept a buffer".into()))?;
        let Some(tensor) = got.pop() else { continue };
        let tensor = cx.planner.transform_tensor(item, tensor)?;
        let dtype = match template.get_index(item.dest as usize) {
            Some((_, Sharded::Tensor(t))) => t.dtype,
            _ => tensor.dtype(),
        };
        let elements = if tensor.dtype() == dtype {
            tensor.to_bytes().to_vec()
        } else {
            let mut out = vec![0; into.bytes() as usize];
            cast::convert(tensor.dtype(), &tensor.to_bytes(), dtype, &mut out)?;
            out
        };
        into.fill(&elements)?;
    }
    Ok(totals)
}

/// Reads the objects of the plan, each once, and puts the decoded values into their leaves.
async fn objects(
    template: &mut FlatStateDict,
    plan: &LoadPlan,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<()> {
    let mut leaves: BTreeMap<_, Vec<&ReadItem>> = BTreeMap::new();
    for item in &plan.items {
        if let Stored::Object(id) = item.stored {
            leaves.entry(id).or_default().push(item);
        }
    }
    let reads: Vec<ReadObject> = leaves.keys().map(|&object| ReadObject { object }).collect();
    let payloads = from.read_objects(&reads, cx.verify).await?;
    let codec = from.codec();
    for (items, payload) in leaves.into_values().zip(payloads) {
        let mut parts = None;
        for (n, item) in items.iter().enumerate() {
            let cell = matches!(template.get_index(item.dest as usize), Some((_, Sharded::Object(o))) if !o.is_item());
            let payload = if cell && from.object_lists() {
                if parts.is_none() {
                    parts = Some(elements(
                        decode_object(&*codec, &item.piece.key, payload.clone())?,
                        items.len(),
                        item,
                    )?);
                }
                Payload::Value(
                    parts.as_ref().and_then(|p: &Vec<Value>| p.get(n)).cloned().unwrap_or(Value::None),
                )
            } else {
                payload.clone()
            };
            let value = decode_object(&*codec, &item.piece.key, cx.planner.load_object(item, payload)?)?;
            if let Some((_, leaf)) = template.get_index_mut(item.dest as usize) {
                match leaf {
                    Sharded::Object(o) => o.data = Payload::Value(value),
                    Sharded::Tensor(t) => {
                        let what = format!("{} is stored as an object, not as a tensor", t.key);
                        return Err(StrategyError::Invalid(what));
                    }
                }
            }
        }
    }
    Ok(())
}

/// A cell's payload is a list with an element for each leaf of it on one rank.
fn elements(value: Value, leaves: usize, item: &ReadItem) -> Result<Vec<Value>> {
    match value {
        Value::List(v) if v.len() == leaves => Ok(v),
        Value::List(v) => {
            let (key, n) = (&item.piece.key, v.len());
            Err(StrategyError::Invalid(format!(
                "object {key} is stored as {n} values, {leaves} leaves ask for it"
            )))
        }
        _ => Err(StrategyError::corrupt(
            &item.piece.key,
            None,
            "the cell of an object array is stored without its list",
        )),
    }
}
