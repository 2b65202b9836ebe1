//! Host memory of the caller, and the only `unsafe` code of reshard: owned, disjoint, mutable parts of one buffer, huge pages, and
//! instructions that copy rows.
#![expect(
    unsafe_code,
    reason = "regions are disjoint parts of one buffer that several threads fill at once, checked in LentBuffer::regions_mut; `pages` and `rows` call the system and the processor"
)]

use crate::{DType, FlatView, Layout, ModelError, Region, Result, Segments, Tensor};
use std::{
    any::Any,
    fmt,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

mod pages;
mod rows;
mod runs;
mod view;

pub(crate) use pages::prefer_huge_pages;
pub use rows::{Caches, copy_rows};
use runs::Runs;
use view::narrowed;
pub use view::{View, check_disjoint};

/// Host memory that the caller may own: a `Vec`, `Bytes`, a memory map, pinned memory.
///
/// # Contract
/// `as_bytes` and `as_bytes_mut` always give the same memory, of the same length.
pub trait HostBuffer: Any + Send + Sync {
    /// The memory.
    fn as_bytes(&self) -> &[u8];
    /// The memory to write to. Called once per load. `None` means that you can save the buffer, but not load into it.
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
    /// Whether nobody can change the memory while two handles on it exist. The default is no: memory that another language or another
    /// process can write to, or that is changed through a lock. An asynchronous save need not copy frozen memory.
    fn frozen_while_shared(&self) -> bool {
        false
    }
}

impl HostBuffer for bytes::Bytes {
    fn as_bytes(&self) -> &[u8] {
        self
    }
    fn frozen_while_shared(&self) -> bool {
        true
    }
}

/// Lets a buffer be the owner of `bytes::Bytes`.
pub(crate) struct Shared(pub(crate) Arc<dyn HostBuffer>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// A buffer on loan to a load. [`RegionMut`]s are parts of it. The caller gets it back when the last region is dropped.
pub struct LentBuffer {
    key: String,
    buffer: Arc<dyn HostBuffer>,
    ptr: NonNull<u8>,
    len: u64,
    claimed: AtomicBool,
}

// SAFETY: the memory behind `ptr` is reached only through regions, which are disjoint; `buffer` itself is Send and Sync, and
// nobody reads it while regions live, because `LentBuffer::new` made sure that this is the only handle to it.
unsafe impl Send for LentBuffer {}
// SAFETY: as for Send.
unsafe impl Sync for LentBuffer {}

impl fmt::Debug for LentBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentBuffer")
            .field("key", &self.key)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// What a tensor handle was before its buffer was lent to a [`LentBuffer`].
#[derive(Clone, Debug)]
pub struct LentView {
    dtype: DType,
    view: View,
}

impl LentView {
    pub(crate) fn of(t: &Tensor) -> Self {
        Self {
            dtype: t.dtype(),
            view: View::new(t.layout().clone()),
        }
    }

    /// The same memory as a range of a tensor: regions are boxes of that tensor.
    #[must_use]
    pub fn flat(self, tensor: FlatView) -> Self {
        let Self { dtype, view } = self;
        Self {
            dtype,
            view: view.flat(tensor),
        }
    }

    pub(crate) fn handle(self, buffer: &Arc<dyn HostBuffer>) -> Tensor {
        Tensor::from_parts(self.dtype, self.view.layout, Arc::clone(buffer))
    }

    /// Where its elements lie in the buffer.
    pub fn layout(&self) -> &Layout {
        &self.view.layout
    }
}

impl LentBuffer {
    /// Takes the buffer of `handles`. These must be *all* handles on it, so several views of one buffer are lent together.
    ///
    /// # Errors
    /// Returns the handles, with [`ModelError::BufferShared`] if somebody holds another handle, [`ModelError::ReadOnly`] if
    /// the memory can't be written, and [`ModelError::Invalid`] if two handles belong to different buffers or elements of one
    /// handle share memory.
    #[expect(
        clippy::type_complexity,
        reason = "success gives two things, failure gives the tensors back"
    )]
    pub fn new(
        key: &str,
        mut handles: Vec<Tensor>,
    ) -> Result<(Arc<Self>, Vec<LentView>), (ModelError, Vec<Tensor>)> {
        let Some(first) = handles.first() else {
            return Err((ModelError::invalid(key, "no tensor to load into"), handles));
        };
        if handles.iter().any(|t| !t.same_buffer(first)) {
            return Err((
                ModelError::invalid(
                    key,
                    "the tensors to lend together lie in different buffers; lend each buffer by itself",
                ),
                handles,
            ));
        }

        // Two elements at one address would be two writers of one byte.
        if handles.iter().any(|t| !t.layout().is_injective()) {
            let what = "elements of this tensor share memory (an expanded view); load into a tensor whose elements have memory of their own";
            return Err((ModelError::invalid(key, what), handles));
        }

        // All given handles are dropped here and only their views are kept. A count above one then means another handle
        // elsewhere.
        let mut only = first.buffer();
        let views: Vec<LentView> = handles.drain(..).map(|t| LentView::of(&t)).collect();

        // Every failure from here on makes the caller's handles anew.
        let back = |buffer: &Arc<dyn HostBuffer>, views: Vec<LentView>| -> Vec<Tensor> {
            views.into_iter().map(|v| v.handle(buffer)).collect()
        };
        let Some(unique) = Arc::get_mut(&mut only) else {
            return Err((
                ModelError::BufferShared { key: key.into() },
                back(&only, views),
            ));
        };
        let Some(bytes) = unique.as_bytes_mut() else {
            return Err((ModelError::ReadOnly { key: key.into() }, back(&only, views)));
        };

        // Regions write through this pointer, so no view may reach past the end.
        let (len, ptr) = (bytes.len() as u64, NonNull::from(bytes).cast());
        if let Some(v) = views.iter().find(|v| v.layout().hull().end > len) {
            let what = format!(
                "a view reaches byte {} of a buffer of {len} bytes",
                v.layout().hull().end
            );
            return Err((ModelError::invalid(key, what), back(&only, views)));
        }
        Ok((
            Arc::new(Self {
                key: key.into(),
                buffer: only,
                ptr,
                len,
                claimed: AtomicBool::new(false),
            }),
            views,
        ))
    }

    /// Takes regions of the views, all in one call. It checks that they are disjoint, which makes them safe to fill. Call it
    /// once per lent buffer.
    ///
    /// # Errors
    /// [`ModelError::Overlap`] when two regions share memory, [`ModelError::Invalid`] when one does not fit its view.
    pub fn regions_mut(self: &Arc<Self>, wants: &[(&LentView, Region)]) -> Result<Vec<RegionMut>> {
        let views: Vec<(&View, &Region)> = wants.iter().map(|(v, r)| (&v.view, r)).collect();
        let layouts = narrowed(&self.key, &views)?;
        if let Some(layout) = layouts.iter().find(|l| l.hull().end > self.len) {
            let (end, len) = (layout.hull().end, self.len);
            let what = format!("a region reaches byte {end} of a buffer of {len} bytes");
            return Err(ModelError::invalid(&self.key, what));
        }
        // A second round of regions could overlap the first.
        if self.claimed.swap(true, Ordering::Relaxed) {
            return Err(ModelError::invalid(
                &self.key,
                "regions of this buffer were taken already; take all of them in one call",
            ));
        }
        Ok(RegionMut::of(&Memory::Host(Arc::clone(self)), layouts))
    }

    /// Makes the tensors again, over the same memory at the same address.
    ///
    /// # Errors
    /// Returns both arguments if a region still exists.
    pub fn reclaim(
        self: Arc<Self>,
        views: Vec<LentView>,
    ) -> Result<Vec<Tensor>, (Arc<Self>, Vec<LentView>)> {
        match Arc::try_unwrap(self) {
            Ok(me) => Ok(views.into_iter().map(|v| v.handle(&me.buffer)).collect()),
            Err(me) => Err((me, views)),
        }
    }
}

/// Takes the elements of regions that lie in device memory.
pub trait CopyToDevice: fmt::Debug + Send + Sync {
    /// Copies `elements`, which have the row-major order of `to`, into the device memory. The layout selects elements, or bytes of
    /// elements. The caller may change `elements` when it returns, even if the copy is not complete. Whoever made the region learns of a
    /// failure from the implementation.
    fn copy(&self, to: &Layout, elements: &[u8]);
}

/// One region of a lent buffer. It is owned, `Send` and `'static`, and no other region reaches its bytes.
/// Because it is owned, it outlives a cancelled future: a running read never writes into freed memory.
#[derive(Debug)]
pub struct RegionMut {
    memory: Memory,
    layout: Layout,
    /// Regions of the same shape and element size, which get the same elements.
    twins: Vec<RegionMut>,
}

/// Where the bytes of a region lie.
#[derive(Clone, Debug)]
enum Memory {
    Host(Arc<LentBuffer>),
    Device {
        key: Arc<str>,
        copies: Arc<dyn CopyToDevice>,
    },
}

impl RegionMut {
    /// Regions of a view of device memory. What fills them goes to `copies`.
    ///
    /// # Errors
    /// [`ModelError::Overlap`] when two regions share elements, [`ModelError::Invalid`] when one does not fit the view.
    pub fn on_device(
        key: &str,
        view: &View,
        regions: &[Region],
        copies: &Arc<dyn CopyToDevice>,
    ) -> Result<Vec<Self>> {
        let wants: Vec<(&View, &Region)> = regions.iter().map(|region| (view, region)).collect();
        let memory = Memory::Device {
            key: key.into(),
            copies: Arc::clone(copies),
        };
        Ok(Self::of(&memory, narrowed(key, &wants)?))
    }

    /// Regions of one memory.
    fn of(memory: &Memory, layouts: Vec<Layout>) -> Vec<Self> {
        let region = |layout| Self {
            memory: memory.clone(),
            layout,
            twins: Vec::new(),
        };
        layouts.into_iter().map(region).collect()
    }

    /// Whether it lies in device memory. Then nothing can be read into it directly: it has to be fed.
    pub fn is_on_device(&self) -> bool {
        matches!(self.memory, Memory::Device { .. })
    }

    fn key(&self) -> &str {
        match &self.memory {
            Memory::Host(lent) => &lent.key,
            Memory::Device { key, .. } => key,
        }
    }

    /// Elements per axis of the region.
    pub fn shape(&self) -> &[u64] {
        self.layout.shape()
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// Bytes per element.
    pub fn item(&self) -> u64 {
        self.layout.item()
    }

    /// Adds a region that gets the same elements: whoever fills this region fills both. The count of [`bytes`](Self::bytes) stays.
    ///
    /// # Errors
    /// Returns the twin if it has another shape or element size.
    pub fn add_twin(&mut self, mut twin: Self) -> Result<(), Box<Self>> {
        if twin.layout.shape() != self.layout.shape() || twin.layout.item() != self.layout.item() {
            return Err(Box::new(twin));
        }
        let more = std::mem::take(&mut twin.twins);
        self.twins.push(twin);
        self.twins.extend(more);
        Ok(())
    }

    /// Splits the region into two: the part before index `at` of an axis, and the part from this index on.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when there is no such axis or index.
    pub fn split(self, axis: usize, at: u64) -> Result<(Self, Self)> {
        let shape = self.layout.shape();
        let Some(&extent) = shape.get(axis).filter(|n| at <= **n) else {
            let what = format!("a region of shape {shape} can't be cut at {at} of axis {axis}");
            return Err(ModelError::invalid(self.key(), what));
        };
        let (mut low, mut high) = (Region::whole(shape), Region::whole(shape));
        low.lengths[axis] = at;
        (high.offsets[axis], high.lengths[axis]) = (at, extent - at);
        Ok((self.narrow(&low), self.narrow(&high)))
    }

    /// A part of the region and of its twins. The caller makes sure that parts don't overlap.
    fn narrow(&self, region: &Region) -> Self {
        Self {
            memory: self.memory.clone(),
            layout: self.layout.narrow(region),
            twins: self.twins.iter().map(|twin| twin.narrow(region)).collect(),
        }
    }

    /// Prepares to fill the region from elements elsewhere, which have the layout `source`.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when shapes or element sizes differ.
    pub fn strided_copy(mut self, source: &Layout) -> Result<StridedCopy> {
        if source.shape() != self.layout.shape() || source.item() != self.layout.item() {
            let what = format!(
                "a source of shape {} and {} bytes per element can't fill a region of shape {} and {} bytes per element",
                source.shape(),
                source.item(),
                self.layout.shape(),
                self.layout.item()
            );
            return Err(ModelError::invalid(self.key(), what));
        }
        let twins = std::mem::take(&mut self.twins);
        let twins = twins.into_iter().map(|twin| twin.strided_copy(source));
        Ok(StridedCopy {
            segments: Segments::source_order(source, &self.layout),
            taken: 0,
            twins: twins.collect::<Result<_>>()?,
            into: self,
        })
    }

    /// Fills the region from its elements in row-major order.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when `elements` has another length than the region.
    pub fn fill(self, elements: &[u8]) -> Result<()> {
        let Some(source) = Layout::contiguous(self.layout.item(), self.layout.shape())
            .filter(|l| l.bytes() == elements.len() as u64)
        else {
            let what = format!(
                "{} bytes given for a region of {} bytes",
                elements.len(),
                self.layout.bytes()
            );
            return Err(ModelError::invalid(self.key(), what));
        };
        self.strided_copy(&source)?.feed(0, elements);
        Ok(())
    }

    /// Fills the region from the buffer of a tensor, in which the elements have the layout `source`.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when shapes or element sizes differ, or an element lies outside of the buffer.
    pub fn fill_from(self, tensor: &Tensor, source: &Layout) -> Result<()> {
        let buffer = tensor.buffer();
        let bytes = buffer.as_bytes();
        if source.hull().end > bytes.len() as u64 {
            let what = format!(
                "the layout has elements up to byte {} of a buffer of {} bytes",
                source.hull().end,
                bytes.len()
            );
            return Err(ModelError::invalid(self.key(), what));
        }
        self.strided_copy(source)?.feed(0, bytes);
        Ok(())
    }
}

impl LentBuffer {
    /// The memory from `at` on, `len` bytes.
    ///
    /// # Safety
    /// The bytes are a run of a region of this buffer, of which the caller has the only handle.
    #[expect(clippy::mut_from_ref, reason = "regions are disjoint parts")]
    unsafe fn run(&self, at: u64, len: u64) -> &mut [u8] {
        debug_assert!(at + len <= self.len);
        // SAFETY: a run of a region lies in the region's hull, which was checked against the buffer's length in
        // `LentBuffer::regions_mut`; no other region has a byte of it.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().add(at as usize), len as usize) }
    }
}

/// Fills a [`RegionMut`] from bytes that come in ascending order, in blocks of any size.
#[derive(Debug)]
pub struct StridedCopy {
    segments: Segments,
    /// How much of the segment that comes next is filled.
    taken: u64,
    into: RegionMut,
    twins: Vec<StridedCopy>,
}

impl StridedCopy {
    /// Length of the runs that are contiguous in both source and destination, in bytes. 0 if the region lies in device memory: then there
    /// is nothing that a caller could fill directly, and [`take_runs`](Self::take_runs) gives nothing.
    pub fn run(&self) -> u64 {
        match self.into.is_on_device() {
            true => 0,
            false => self.segments.run(),
        }
    }

    /// Whether runs can be filled directly. Not if the region lies in device memory or has twins: then [`feed`](Self::feed) it.
    pub fn has_runs(&self) -> bool {
        self.twins.is_empty() && !self.into.is_on_device()
    }

    /// The position of the next missing byte in the source. `None` if everything is filled.
    pub fn next_at(&self) -> Option<u64> {
        self.segments.peek().map(|(s, _, _)| s + self.taken)
    }

    /// The next runs, at most `max`, each with its position in the source. The caller fills them directly, and they count as
    /// filled. Runs that follow each other may also follow each other in the source, which suits `preadv`. None if it has
    /// [no runs](Self::has_runs).
    pub fn take_runs(&mut self, max: usize) -> Vec<(u64, &mut [u8])> {
        self.take_runs_before(u64::MAX, max)
    }

    /// As [`take_runs`](Self::take_runs), but only those that begin before byte `end` of the source.
    pub fn take_runs_before(&mut self, end: u64, max: usize) -> Vec<(u64, &mut [u8])> {
        let mut runs = Vec::new();
        let (Memory::Host(lent), true) = (&self.into.memory, self.twins.is_empty()) else {
            return runs;
        };
        while runs.len() < max
            && let Some((s, d, n)) = self.segments.peek()
            && s + self.taken < end
        {
            self.segments.next();
            let t = std::mem::take(&mut self.taken);
            // SAFETY: a run of this copy's own region, which `&mut self` holds; the runs of one injective layout are disjoint, and each is
            // taken once.
            runs.push((s + t, unsafe { lent.run(d + t, n - t) }));
        }
        runs
    }

    /// Copies elements from `block`, which starts at byte `at` of the source.
    /// Blocks must come in ascending order. Bytes before the end of an earlier block are ignored.
    pub fn feed(&mut self, at: u64, block: &[u8]) {
        self.twins.iter_mut().for_each(|twin| twin.feed(at, block));
        let Self {
            segments,
            taken,
            into,
            ..
        } = self;
        match &into.memory {
            Memory::Host(lent) => runs_of(segments, taken, at, block, |to, piece| {
                // SAFETY: a run of this copy's own region, which `&mut self` holds.
                unsafe { lent.run(to, piece.len() as u64) }.copy_from_slice(piece);
            }),
            Memory::Device { copies, .. } => {
                let mut runs = Runs::new(into.layout.item(), |to: &Layout, elements: &[u8]| {
                    copies.copy(to, elements);
                });
                runs_of(segments, taken, at, block, |to, piece| runs.add(to, piece));
                runs.flush();
            }
        }
    }
}

/// Calls `put` with the runs that a block has, each with where it goes.
fn runs_of(
    segments: &mut Segments,
    taken: &mut u64,
    at: u64,
    block: &[u8],
    mut put: impl FnMut(u64, &[u8]),
) {
    let end = at + block.len() as u64;
    while let Some((s, d, n)) = segments.peek() {
        let from = s + *taken;
        if from >= end || from < at {
            return;
        }
        let len = (n - *taken).min(end - from);
        put(
            d + *taken,
            &block[(from - at) as usize..(from - at + len) as usize],
        );
        if *taken + len == n {
            *taken = 0;
            segments.next();
        } else {
            *taken += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn land(t: Tensor) -> (Arc<LentBuffer>, Vec<LentView>) {
        LentBuffer::new("w", vec![t]).unwrap()
    }

    #[test]
    fn two_threads_fill_interleaved_columns_and_the_same_memory_comes_back() {
        let v = vec![0f32; 12];
        let address = v.as_ptr() as usize;
        let (lent, views) = land(Tensor::from_vec(&[3, 4], v).unwrap());
        let left = Region::new([0, 0], [3, 2]);
        let right = Region::new([0, 2], [3, 2]);
        let lent_regions = lent
            .regions_mut(&[(&views[0], left), (&views[0], right)])
            .unwrap();
        let threads: Vec<_> = lent_regions
            .into_iter()
            .enumerate()
            .map(|(i, c)| std::thread::spawn(move || c.fill(&[i as u8 + 1; 24]).unwrap()))
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let v: Vec<f32> = lent
            .reclaim(views)
            .ok()
            .unwrap()
            .pop()
            .unwrap()
            .into_vec()
            .unwrap();
        assert_eq!(v.as_ptr() as usize, address);
        assert_eq!((v[0].to_bits(), v[2].to_bits()), (0x0101_0101, 0x0202_0202));
    }

    #[test]
    fn elements_of_another_buffer_are_copied_from_where_they_lie() {
        let from = Tensor::from_vec(&[6], (0..6u8).collect()).unwrap();
        let fill = |source: &Layout| {
            let (lent, views) = land(Tensor::from_vec(&[2, 2], vec![9u8; 4]).unwrap());
            let into = lent
                .regions_mut(&[(&views[0], Region::whole(&[2, 2]))])
                .unwrap()
                .remove(0);
            into.fill_from(&from, source).map_err(|e| e.to_string())?;
            Ok::<_, String>(lent.reclaim(views).ok().unwrap()[0].to_vec::<u8>().unwrap())
        };
        let at = |start, strides: [u64; 2]| {
            Layout::new(1, start, [2, 2].into(), strides.into()).unwrap()
        };
        assert_eq!(fill(&at(1, [1, 3])).unwrap(), [1, 4, 2, 5]);
        assert_eq!(
            fill(&at(2, [0, 1])).unwrap(),
            [2, 3, 2, 3],
            "a row that is there once"
        );
        assert!(
            fill(&at(2, [3, 1]))
                .unwrap_err()
                .contains("up to byte 7 of a buffer of 6")
        );
        assert!(
            fill(&Layout::contiguous(1, &[4]).unwrap())
                .unwrap_err()
                .contains("can't fill")
        );
    }

    #[test]
    fn twins_get_the_same_elements_however_a_region_is_cut() {
        let (a, views) = land(Tensor::from_vec(&[2, 4], vec![0u8; 8]).unwrap());
        let (b, more) = land(Tensor::from_vec(&[2, 2], vec![0u8; 4]).unwrap());
        let part = |lent: &Arc<LentBuffer>, view: &LentView, x| {
            let region = Region::new([0, x], [2, 2]);
            lent.regions_mut(&[(view, region)]).unwrap().remove(0)
        };
        let mut into = part(&a, &views[0], 1);
        let (other, _) = part(&b, &more[0], 0).split(0, 2).unwrap();
        into.add_twin(other).unwrap();
        let (c, third) = land(Tensor::from_vec(&[4], vec![0u8; 4]).unwrap());
        let flat = c
            .regions_mut(&[(&third[0], Region::whole(&[4]))])
            .unwrap()
            .remove(0);
        assert!(into.add_twin(flat).is_err(), "another shape");
        assert_eq!(into.bytes(), 4);
        let (first, second) = into.split(1, 1).unwrap();
        let column = Layout::contiguous(1, &[2, 1]).unwrap();
        let mut copy = first.strided_copy(&column).unwrap();
        assert!(!copy.has_runs() && copy.take_runs(9).is_empty());
        copy.feed(0, &[1]);
        copy.feed(1, &[3]);
        second.fill(&[2, 4]).unwrap();
        drop(copy);
        let bytes = |lent: Arc<LentBuffer>, views| {
            let all = lent.reclaim(views).ok().unwrap();
            all[0].to_vec::<u8>().unwrap()
        };
        assert_eq!(bytes(a, views), [0, 1, 2, 0, 0, 3, 4, 0]);
        assert_eq!(bytes(b, more), [1, 2, 3, 4]);
    }

    #[test]
    fn runs_can_be_taken_up_to_a_byte_of_the_source() {
        let (l, v) = land(Tensor::from_vec(&[3, 2], vec![0u8; 6]).unwrap());
        let into = l.regions_mut(&[(&v[0], Region::whole(&[3, 2]))]).unwrap();
        let source = Layout::new(1, 1, [3, 2].into(), [4, 1].into()).unwrap();
        let mut copy = into
            .into_iter()
            .next()
            .unwrap()
            .strided_copy(&source)
            .unwrap();
        let starts = |runs: Vec<(u64, &mut [u8])>| -> Vec<u64> {
            runs.into_iter().map(|(at, _)| at).collect()
        };
        assert_eq!(starts(copy.take_runs_before(1, 9)), [] as [u64; 0]);
        copy.feed(0, &[0, 7]);
        assert_eq!(starts(copy.take_runs_before(6, 9)), [2, 5]);
        assert_eq!(starts(copy.take_runs(9)), [9]);
    }

    #[test]
    fn a_shared_buffer_is_refused_and_given_back() {
        let t = Tensor::from_vec(&[4], vec![7u8; 4]).unwrap();
        let other = t.clone();
        let (e, back) = LentBuffer::new("w", vec![t]).unwrap_err();
        assert!(e.to_string().contains("w is shared"), "{e}");
        assert!(back[0].same_buffer(&other));
    }

    #[test]
    fn overlapping_claims_are_refused_also_across_views() {
        let t = Tensor::from_vec(&[2, 4], vec![0u8; 8]).unwrap();
        let (l, v) = land(t);
        let boxes = [Region::new([0, 0], [2, 3]), Region::new([1, 2], [1, 1])];
        assert!(
            l.regions_mut(&[(&v[0], boxes[0].clone()), (&v[0], boxes[1].clone())])
                .is_err()
        );
        let flat = Tensor::from_vec(&[2, 4], vec![0u8; 8]).unwrap();
        let (even, odd) = (
            flat.narrow(&Region::new([0, 0], [2, 2])),
            flat.narrow(&Region::new([0, 2], [2, 2])),
        );
        drop(flat);
        let (l, v) = LentBuffer::new("flat", vec![even, odd]).unwrap();
        let whole = Region::whole(&[2, 2]);
        let lent_regions = l
            .regions_mut(&[(&v[0], whole.clone()), (&v[1], whole.clone())])
            .unwrap();
        assert!(
            l.regions_mut(&[(&v[0], whole)]).is_err(),
            "a buffer is lent once"
        );
        drop(lent_regions);
        let t = l.reclaim(v).ok().unwrap();
        assert!(t[0].same_buffer(&t[1]));
    }

    #[test]
    fn feeding_in_blocks_of_any_size_gives_the_same() {
        for block in 1..=24usize {
            let (l, v) = land(Tensor::from_vec(&[3, 4], vec![0u16; 12]).unwrap());
            let into = l
                .regions_mut(&[(&v[0], Region::new([0, 1], [3, 2]))])
                .unwrap()
                .pop()
                .unwrap();
            // the source is the transpose, so that its order is not the destination's
            let source = Layout::new(2, 3, [3, 2].into(), [1, 3].into()).unwrap();
            let stored: Vec<u8> = (0..9u16).flat_map(|i| i.to_le_bytes()).collect();
            let mut copy = into.strided_copy(&source).unwrap();
            for (i, b) in stored.chunks(block).enumerate() {
                copy.feed((i * block) as u64, b);
            }
            assert_eq!(copy.next_at(), None);
            drop(copy);
            let got: Vec<u16> = l
                .reclaim(v)
                .ok()
                .unwrap()
                .pop()
                .unwrap()
                .into_vec()
                .unwrap();
            assert_eq!(got, [0, 3, 6, 0, 0, 4, 7, 0, 0, 5, 8, 0]);
        }
    }
}
