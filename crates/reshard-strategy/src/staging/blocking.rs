//! The stager that copies everything to host memory before it returns.

use super::{
    AsyncStager, Described, KeyedData, described,
    memory::{Memory, Pool},
};
use crate::{Result, StrategyError};
use async_trait::async_trait;
use indexmap::IndexMap;
use reshard_model::{Caches, Data, DeviceBuffer, Layout, ModelError, RegionMut, Tensor, copy_rows};
use reshard_storage::run_blocking;
use smallvec::SmallVec;
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
/// let staged = futures::executor::block_on(stager.stage(vec![("weight".into(), Data::Host(weight.clone()))]))?;
/// // Nobody else holds the caller's vector: it can be changed.
/// weight.into_vec::<f32>().unwrap().fill(0.);
/// assert_eq!(staged[0].host().unwrap().to_vec::<f32>().unwrap(), [1., 2.]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, derive_setters::Setters)]
#[setters(prefix = "with_", generate = false)]
pub struct BlockingAsyncStager {
    /// Whether it keeps its memory for the next save (DCP's `cache_staged_state_dict`). The default is that it does.
    #[setters(generate)]
    cache: bool,
    /// Whether a call fails if its leaves have other types or shapes than those of the call before (DCP's `type_check`). The default is
    /// that it does not. A failed call does not count.
    #[setters(generate)]
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

    /// The number of buffers that it has allocated so far.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Compares the leaves with those of the call before.
    fn check(&self, leaves: &[KeyedData]) -> Result<()> {
        if !self.type_check {
            return Ok(());
        }
        let now: Vec<Described> = leaves.iter().map(|(_, leaf)| described(leaf)).collect();
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
            let key = leaves.get(i).map_or("", |(key, _)| key);
            return Err(StrategyError::Invalid(format!(
                "the structure of the state has changed since the last save: leaf {i} ({key}) was {}, and is {}; use a new stager, or one \
                 without `type_check`",
                word(before),
                word(&now)
            )));
        }
        *last = Some(now);
        Ok(())
    }

    /// Memory for copies, and whether it was kept from an earlier call.
    fn memory(&self, slab: &Slab, leaves: &[Data]) -> Result<(Memory, bool)> {
        let device = slab.device(leaves);
        if let Some(kept) = lock(&self.pool).take(slab.bytes, device) {
            return Ok((kept, true));
        }
        self.allocations.fetch_add(1, Ordering::Relaxed);
        Ok((Memory::new(slab.bytes, device)?, false))
    }
}

#[async_trait]
impl AsyncStager for BlockingAsyncStager {
    async fn stage(&self, leaves: Vec<KeyedData>) -> Result<Vec<Data>> {
        self.check(&leaves)?;
        let leaves: Vec<Data> = leaves.into_iter().map(|(_, leaf)| leaf).collect();

        // All views of one buffer share one copy.
        let mut copies: IndexMap<usize, Copied> = IndexMap::with_capacity(leaves.len());
        for (i, leaf) in leaves.iter().enumerate() {
            if let Some(buffer) = leaf.buffer_id() {
                copies
                    .entry(buffer)
                    .or_insert_with(Copied::new)
                    .add(i, leaf);
            }
        }

        // First all memory is allocated. Then I/O threads copy.
        let slabs = slabs(copies.into_values(), &leaves);
        let leaves = Arc::new(leaves);
        let (mut memories, mut tasks) = (Vec::with_capacity(slabs.len()), Vec::new());
        let all: u64 = slabs.iter().map(|slab| slab.bytes).sum();
        for slab in &slabs {
            let (memory, is_kept) = self.memory(slab, &leaves)?;
            // What the caches can't hold goes past them, unless new memory comes through them anyway.
            let caches = if is_kept && all >= LARGE {
                Caches::Past
            } else {
                Caches::Through
            };
            slab.tasks(&memory, caches, &mut tasks)?;
            memories.push(memory);
        }
        let tasks = tasks.into_iter().map(|task| {
            let leaves = Arc::clone(&leaves);
            move || task.into_iter().try_for_each(|piece| piece.copy(&leaves))
        });
        let copied = run_blocking(tasks).await?;
        copied.into_iter().collect::<Result<()>>()?;

        // All tasks are over, so nobody else has them.
        let mut leaves = Arc::unwrap_or_clone(leaves);
        // The copies have driven the buffers' handles out of the caches, and now they are dropped.
        Data::prefetch(&*leaves);

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
/// Copies of this many bytes or more are no longer in the caches when they are written.
const LARGE: u64 = 32 << 20;
/// Bytes that are copied at a time.
const ROW: usize = 4096;

/// One buffer, and the parts of it that are copied. A state has many, so usual ones allocate nothing.
struct Copied {
    /// Leaves that are views of it, by position.
    leaves: SmallVec<[usize; 1]>,
    /// The ranges of bytes that leaves use, each with its position in the copy.
    parts: SmallVec<[(Range<u64>, u64); 1]>,
    /// Where the copy begins in its memory.
    at: u64,
}

impl Copied {
    fn new() -> Self {
        Self {
            leaves: SmallVec::new(),
            parts: SmallVec::new(),
            at: 0,
        }
    }

    /// A leaf that is a view of the buffer.
    fn leaf<'a>(&self, leaves: &'a [Data]) -> Option<&'a Data> {
        leaves.get(*self.leaves.first()?)
    }

    fn add(&mut self, i: usize, leaf: &Data) {
        self.leaves.push(i);
        let hull = leaf.layout().map(Layout::hull).unwrap_or_default();
        if !hull.is_empty() {
            let end = hull.end.next_multiple_of(GRAIN).min(buffer_bytes(leaf));
            self.parts.push((hull.start / GRAIN * GRAIN..end, 0));
        }
    }

    /// Puts the parts one after the other, without the gaps between them. Returns the total number of bytes.
    fn lay_out(&mut self) -> u64 {
        self.parts
            .sort_unstable_by_key(|(span, _)| (span.start, span.end));
        let mut parts: SmallVec<[(Range<u64>, u64); 1]> = SmallVec::new();
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
        let (Some((dtype, _)), Some(old)) = (leaf.spec(), leaf.layout()) else {
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
fn slabs(copies: impl Iterator<Item = Copied>, leaves: &[Data]) -> Vec<Slab> {
    let mut out: Vec<Slab> = Vec::new();
    // Where small copies go.
    let mut open: Option<usize> = None;
    for mut copied in copies {
        let bytes = copied.lay_out();
        let alone = bytes >= SLAB || matches!(copied.leaf(leaves), Some(Data::Device(_)));
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
    fn device<'a>(&self, leaves: &'a [Data]) -> Option<&'a Arc<dyn DeviceBuffer>> {
        match self.copies.first()?.leaf(leaves)? {
            Data::Device(t) => Some(t.buffer()),
            Data::Host(_) | Data::None | Data::Lazy(_) => None,
        }
    }

    /// What threads have to copy: small copies together, large ones in parts.
    fn tasks(&self, memory: &Memory, caches: Caches, tasks: &mut Vec<Vec<Piece>>) -> Result<()> {
        let mut pieces: Vec<(Range<u64>, Vec<Span>)> = Vec::new();
        for copied in &self.copies {
            let Some(&leaf) = copied.leaves.first() else {
                continue;
            };
            for (span, at) in &copied.parts {
                for start in span.clone().step_by(TASK as usize) {
                    let part = start..span.end.min(start + TASK);
                    let at = copied.at + at + (start - span.start);
                    let end = at + (part.end - part.start);
                    let span = Span { leaf, part, at };
                    match pieces.last_mut() {
                        Some((place, spans)) if end - place.start <= TASK => {
                            place.end = end;
                            spans.push(span);
                        }
                        _ => pieces.push((at..end, vec![span])),
                    }
                }
            }
        }
        let places = pieces.iter().map(|(place, _)| place.clone());
        let into = memory.parts(places)?;
        let mut room = 0;
        for ((place, spans), into) in pieces.into_iter().zip(into) {
            let bytes = place.end - place.start;
            let piece = Piece {
                spans,
                place,
                into,
                caches,
            };
            match tasks.last_mut() {
                Some(task) if bytes <= room => {
                    task.push(piece);
                    room -= bytes;
                }
                _ => {
                    tasks.push(vec![piece]);
                    room = TASK - bytes;
                }
            }
        }
        Ok(())
    }
}

/// A part of a memory, and what is copied there.
struct Piece {
    spans: Vec<Span>,
    /// In the memory. Spans lie there one after the other.
    place: Range<u64>,
    into: RegionMut,
    caches: Caches,
}

/// A range of bytes of a leaf's buffer, and where it goes in the memory.
struct Span {
    leaf: usize,
    part: Range<u64>,
    at: u64,
}

impl Piece {
    fn copy(self, leaves: &[Data]) -> Result<()> {
        let whole = Layout::contiguous(1, &[self.place.end - self.place.start]);
        let mut into = self.into.strided_copy(&whole.ok_or_else(fault)?)?;
        let (_, mut rest) = into.take_runs(1).pop().ok_or_else(fault)?;
        let mut at = self.place.start;
        for span in self.spans {
            let bytes = (span.part.end - span.part.start) as usize;
            let gap = span.at.checked_sub(at).ok_or_else(fault)? as usize;
            let (out, after) = std::mem::take(&mut rest)
                .get_mut(gap..)
                .and_then(|rest| rest.split_at_mut_checked(bytes))
                .ok_or_else(fault)?;
            (rest, at) = (after, span.at + bytes as u64);
            let leaf = leaves.get(span.leaf).ok_or_else(fault)?;
            span.copy(leaf, out, self.caches)?;
        }
        Ok(())
    }
}

impl Span {
    fn copy(&self, leaf: &Data, out: &mut [u8], caches: Caches) -> Result<()> {
        let Range { start, end } = self.part;
        match leaf {
            Data::Host(t) => {
                let from = t.buffer_bytes().get(start as usize..end as usize);
                let (from, last) = from.ok_or_else(fault)?.as_chunks::<ROW>();
                let (out, rest) = out.as_chunks_mut::<ROW>();
                copy_rows(out, caches, |i| from.get(i));
                rest.copy_from_slice(last);
                Ok(())
            }
            Data::Device(t) => {
                let layout = Layout::new(1, start, [end - start].into(), [1].into());
                let copied = t.buffer().copy_to_host(&layout.ok_or_else(fault)?, out);
                Ok(copied.map_err(|source| ModelError::Source {
                    key: "staging".into(),
                    what: format!("copying from {}", t.buffer().device()),
                    source,
                })?)
            }
            Data::None | Data::Lazy(_) => Err(fault()),
        }
    }
}

fn fault() -> StrategyError {
    StrategyError::Internal("a staged leaf leaves its buffer".into())
}

/// Of the whole buffer.
fn buffer_bytes(leaf: &Data) -> u64 {
    match leaf {
        Data::Host(t) => t.buffer_bytes().len() as u64,
        Data::Device(t) => t.buffer().nbytes(),
        Data::None | Data::Lazy(_) => 0,
    }
}
