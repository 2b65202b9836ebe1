//! An allocator that counts.

#![expect(unsafe_code, reason = "an allocator that counts can't be had without")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The system's allocator, which counts what is allocated by all threads. A test that measures memory is alone in its program, or takes turns
/// with the others.
///
/// ```
/// use reshard_model::testkit::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// let (bytes, peak) = ALLOCATOR.peak_of(|| vec![1u8; 1000]);
/// assert!(peak >= bytes.len() && peak < 2000);
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl CountingAllocator {
    /// Nothing is allocated yet.
    pub const fn new() -> Self {
        Self {
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }

    /// Bytes that are allocated now.
    pub fn live(&self) -> usize {
        self.live.load(Relaxed)
    }

    /// The result, and the most bytes that were allocated meanwhile beyond those before.
    pub fn peak_of<T>(&self, what: impl FnOnce() -> T) -> (T, usize) {
        let before = self.live();
        self.peak.store(before, Relaxed);
        let result = what();
        (result, self.peak.load(Relaxed).saturating_sub(before))
    }

    fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(live, Relaxed);
    }
}

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(p, layout) }
    }
    // Large memory grows where it is: its pages are moved, not copied. So only its growth counts.
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match size.checked_sub(layout.size()) {
            Some(more) => self.add(more),
            None => {
                self.live.fetch_sub(layout.size() - size, Relaxed);
            }
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(p, layout, size) }
    }
}
