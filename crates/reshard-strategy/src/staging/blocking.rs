//! The stager that copies everything to host memory before it returns.

use super::{
    AsyncStager, Described, described,
    memory::{Memory, Pool},
};
use crate::{Result, StrategyError};
use async_trait::async_trait;
use indexmap::IndexMap;
use reshard_model::{Data, DeviceBuffer, DeviceTensor, Layout, ModelError, RegionMut, Tensor};
use reshard_storage::run_blocking;
use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// DCP's stager of the same name. When [`stage`](AsyncStager::stage) returns, all data are copied to host memory. The stager keeps its
/// memory, so a second save with the same structure allocates nothing.
///
/// For each leaf it copies the bytes of the buffer from the first to the last byte of the leaf, each byte once. So for a column of a large
/// matrix it copies nearly the whole matrix. It frees memory that four calls in a row did not use. A save that is still being written
/// keeps its copies, and the next save gets other memory.
///
/// Each I/O thread has one copy of at most 8 MiB from a device under way. If the device has memory from which it copies faster
/// ([`DeviceBuffer::staging`](reshard_model::DeviceBuffer::staging)), the copies lie there.
///
/// ```
/// use reshard_model::{Data, Tensor};
/// use reshard_strategy::{AsyncStager, BlockingAsyncStager};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stager = BlockingAsyncStager::new();
/// let weight = Tensor::from_vec(&[2], vec![1f32, 2.])?;
/// let staged = futures::executor::block_on(stager.stage(vec![Data::Host(weight.clone())]))?;
/// // Nobody else holds the caller's vector: it can be changed.
/// weight.into_vec::<f32>().unwrap().fill(0.);
/// assert_eq!(staged[0].host().unwrap().to_vec::<f32>().unwrap(), [1., 2.]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BlockingAsyncStager {
    cache: bool,
    type_check: bool,
    pool: Mutex<Pool>,
    /// What the last call staged, if types are checked.
    last: Mutex<Option<Vec<Described>>>,
    allocations: AtomicU64,
}

impl Default for BlockingAsyncStager {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockingAsyncStager {
    /// Makes a stager without memory, which keeps what it allocates and does not compare structures.
    pub fn new() -> Self {
        Self {
            cache: true,
            type_check: false,
            pool: Mutex::default(),
            last: Mutex::default(),
            allocations: AtomicU64::new(0),
        }
    }

    /// Whether it keeps its memory for the next save (DCP's `cache_staged_state_dict`). The default is that it does.
    #[must_use]
    pub fn with_cache(mut self, cache: bool) -> Self {
        self.cache = cache;
        self
    }

    /// Whether a call fails if its leaves have other types or shapes than those of the call before (DCP's `type_check`). The default is
    /// that it does not. A failed call does not count.
    #[must_use]
    pub fn with_type_check(mut self, type_check: bool) -> Self {
        self.type_check = type_check;
        self
    }

    /// The number of buffers that it has allocated so far.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Compares the leaves with those of the call before.
    fn check(&self, leaves: &[Data]) -> Result<()> {
        if !self.type_check {
            return Ok(());
        }
        let now: Vec<Described> = leaves.iter().map(described).collect();
        let mut last = lock(&self.last);
        if let Some(before) = &*last
            && *before != now
        {
            let i = before.iter().zip(&now).take_while(|(a, b)| a == b).count();
            let word = |leaves: &[Described]| match leaves.get(i) {
                Some(Ok((dtype, shape))) => format!("{dtype} of shape {shape}"),
                Some(Err(true)) => "lazy data".into(),
                Some(Err(false)) => "no data".into(),
                None => "no leaf".into(),
            };
            return Err(StrategyError::Invalid(format!(
                "the structure of the state has changed since the last save: leaf {i} was {}, and is {}; use a new stager, or one \
                 without `type_check`",
                word(before),
                word(&now)
            )));
        }
        *last = Some(now);
        Ok(())
    }

    fn memory(&self, slab: &Slab) -> Result<Memory> {
        let device = slab.device();
        let kept = lock(&self.pool).take(slab.bytes, device);
        kept.map_or_else(
            || {
                self.allocations.fetch_add(1, Ordering::Relaxed);
                Memory::new(slab.bytes, device)
            },
            Ok,
        )
    }
}

#[async_trait]
impl AsyncStager for BlockingAsyncStager {
    async fn stage(&self, mut leaves: Vec<Data>) -> Result<Vec<Data>> {
        self.check(&leaves)?;

        // All views of one buffer share one copy.
        let mut copies: IndexMap<usize, Copied> = IndexMap::new();
        for (i, leaf) in leaves.iter().enumerate() {
            if let Some((buffer, from)) = Origin::of(leaf) {
                copies
                    .entry(buffer)
                    .or_insert_with(|| Copied::new(from))
                    .add(i, leaf);
            }
        }

        // First all memory is allocated. Then I/O threads copy.
        let slabs = slabs(copies.into_values());
        let (mut memories, mut tasks) = (Vec::with_capacity(slabs.len()), Vec::new());
        for slab in &slabs {
            let memory = self.memory(slab)?;
            slab.tasks(&memory, &mut tasks)?;
            memories.push(memory);
        }
        let copied = run_blocking(tasks.into_iter().map(|task| move || copy(task))).await?;
        copied.into_iter().collect::<Result<()>>()?;

        let mut used = Vec::with_capacity(memories.len());
        for (slab, memory) in slabs.iter().zip(memories) {
            let (kept, memory) = memory.filled()?;
            used.push(kept);
            for copied in &slab.copies {
                for &i in &copied.leaves {
                    leaves[i] = copied.view(&leaves[i], &memory)?;
                }
            }
        }
        if self.cache {
            lock(&self.pool).put(used);
        }
        Ok(leaves)
    }
}

/// Nothing that can panic half-way is done under the lock.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies begin and end at multiples of this many bytes of their buffer, so elements of every size keep their alignment.
const GRAIN: u64 = 64;
/// Copies of small buffers lie together in memory of this many bytes.
const SLAB: u64 = 4 << 20;
/// A task copies at most this many bytes of a large buffer.
const TASK: u64 = 8 << 20;

/// One buffer, and the parts of it that are copied.
struct Copied {
    from: Origin,
    /// By position.
    leaves: Vec<usize>,
    /// The ranges of bytes that leaves use, each with its position in the copy.
    parts: Vec<(Range<u64>, u64)>,
    /// Where the copy begins in its memory.
    at: u64,
}

impl Copied {
    fn new(from: Origin) -> Self {
        Self {
            from,
            leaves: Vec::new(),
            parts: Vec::new(),
            at: 0,
        }
    }

    fn add(&mut self, i: usize, leaf: &Data) {
        self.leaves.push(i);
        let hull = layout(leaf).map(Layout::hull).unwrap_or_default();
        if !hull.is_empty() {
            let end = hull.end.next_multiple_of(GRAIN).min(self.from.bytes());
            self.parts.push((hull.start / GRAIN * GRAIN..end, 0));
        }
    }

    /// Puts the parts one after the other, without the gaps between them. Returns the total number of bytes.
    fn lay_out(&mut self) -> u64 {
        self.parts
            .sort_unstable_by_key(|(span, _)| (span.start, span.end));
        let mut parts: Vec<(Range<u64>, u64)> = Vec::new();
        let mut end = 0;
        for (span, _) in self.parts.drain(..) {
            match parts.last_mut().filter(|(last, _)| last.end >= span.start) {
                Some((last, at)) => {
                    last.end = last.end.max(span.end);
                    end = *at + (last.end - last.start);
                }
                None => {
                    parts.push((span.clone(), end));
                    end += span.end - span.start;
                }
            }
        }
        self.parts = parts;
        end
    }

    /// A leaf's view of the copy.
    fn view(&self, leaf: &Data, memory: &Tensor) -> Result<Data> {
        let fault = || StrategyError::Internal("a staged leaf does not lie in its copy".into());
        let (Some((dtype, _)), Some(old)) = (leaf.spec(), layout(leaf)) else {
            return Err(fault());
        };
        let from = old.hull().start;
        let at = match self
            .parts
            .partition_point(|(span, _)| span.start <= from)
            .checked_sub(1)
        {
            Some(part) if !old.hull().is_empty() => {
                let (span, at) = self.parts.get(part).ok_or_else(fault)?;
                self.at + at + (from - span.start)
            }
            _ => 0,
        };
        let start = at / old.item().max(1);
        let layout = Layout::new(
            old.item(),
            start,
            old.shape().clone(),
            old.strides().clone(),
        );
        let layout = layout.ok_or_else(fault)?;
        Ok(Data::Host(memory.view_as(dtype, layout)?))
    }
}

/// Copies that lie in one memory.
struct Slab {
    copies: Vec<Copied>,
    bytes: u64,
}

/// Distributes copies over memory. A large one, and one from a device, has memory of its own.
fn slabs(copies: impl Iterator<Item = Copied>) -> Vec<Slab> {
    let mut out: Vec<Slab> = Vec::new();
    // Where small copies go.
    let mut open: Option<usize> = None;
    for mut copied in copies {
        let bytes = copied.lay_out();
        let alone = bytes >= SLAB || matches!(copied.from, Origin::Device(_));
        let place = open.filter(|i| !alone && out[*i].bytes + bytes <= SLAB);
        match place {
            Some(i) => {
                copied.at = out[i].bytes;
                out[i].bytes = (copied.at + bytes).next_multiple_of(GRAIN);
                out[i].copies.push(copied);
            }
            None => {
                if !alone {
                    open = Some(out.len());
                }
                out.push(Slab {
                    copies: vec![copied],
                    bytes: bytes.next_multiple_of(GRAIN),
                });
            }
        }
    }
    out
}

impl Slab {
    /// The device, if the copies come from one.
    fn device(&self) -> Option<&Arc<dyn DeviceBuffer>> {
        match &self.copies.first()?.from {
            Origin::Device(t) => Some(t.buffer()),
            Origin::Host(_) => None,
        }
    }

    /// What threads have to copy: small copies together, large ones in parts.
    fn tasks(&self, memory: &Memory, tasks: &mut Vec<Vec<Span>>) -> Result<()> {
        let mut spans = Vec::new();
        for copied in &self.copies {
            for (span, at) in &copied.parts {
                for start in span.clone().step_by(TASK as usize) {
                    let part = start..span.end.min(start + TASK);
                    spans.push((copied, copied.at + at + (start - span.start), part));
                }
            }
        }
        let places = spans
            .iter()
            .map(|(_, at, part)| (*at, part.end - part.start));
        let into = memory.parts(places)?;
        let mut room = 0;
        for ((copied, _, part), into) in spans.into_iter().zip(into) {
            let bytes = part.end - part.start;
            let span = Span {
                from: copied.from.clone(),
                part,
                into,
            };
            match tasks.last_mut() {
                Some(task) if bytes <= room => {
                    task.push(span);
                    room -= bytes;
                }
                _ => {
                    tasks.push(vec![span]);
                    room = TASK - bytes;
                }
            }
        }
        Ok(())
    }
}

/// A range of bytes of a buffer, and where it goes.
struct Span {
    from: Origin,
    part: Range<u64>,
    into: RegionMut,
}

fn copy(spans: Vec<Span>) -> Result<()> {
    spans.into_iter().try_for_each(|Span { from, part, into }| {
        let fault = || StrategyError::Internal("a staged leaf leaves its buffer".into());
        let bytes = part.end - part.start;
        let layout = Layout::new(1, part.start, [bytes].into(), [1].into()).ok_or_else(fault)?;
        match from {
            Origin::Host(t) => Ok(into.fill_from(&t, &layout)?),
            Origin::Device(t) => {
                let whole = Layout::contiguous(1, &[bytes]).ok_or_else(fault)?;
                let mut into = into.strided_copy(&whole)?;
                let (_, out) = into.take_runs(1).pop().ok_or_else(fault)?;
                let copied = t.buffer().copy_to_host(&layout, out);
                Ok(copied.map_err(|source| ModelError::Source {
                    key: "staging".into(),
                    what: format!("copying from {}", t.buffer().device()),
                    source,
                })?)
            }
        }
    })
}

fn layout(leaf: &Data) -> Option<&Layout> {
    match leaf {
        Data::Host(t) => Some(t.layout()),
        Data::Device(t) => Some(t.layout()),
        Data::None | Data::Lazy(_) => None,
    }
}

/// Where bytes are copied from: any handle on the buffer.
#[derive(Clone)]
enum Origin {
    Host(Tensor),
    Device(DeviceTensor),
}

impl Origin {
    /// With a number that is equal for handles on one buffer.
    fn of(leaf: &Data) -> Option<(usize, Self)> {
        match leaf {
            Data::Host(t) => Some((t.buffer_id(), Self::Host(t.clone()))),
            Data::Device(t) => Some((
                Arc::as_ptr(t.buffer()).cast::<u8>() as usize,
                Self::Device(t.clone()),
            )),
            Data::None | Data::Lazy(_) => None,
        }
    }

    /// Of the whole buffer.
    fn bytes(&self) -> u64 {
        match self {
            Self::Host(t) => t.buffer_bytes().len() as u64,
            Self::Device(t) => t.buffer().nbytes(),
        }
    }
}
