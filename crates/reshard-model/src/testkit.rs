//! For tests: devices that are none, what is told to `tracing`, an allocator that counts, where fixtures lie, and rules of contracts.

mod counting;
mod fixtures;
mod laws;
mod rule;

pub use counting::CountingAllocator;
pub use fixtures::{fixture, fixture_text, fixtures, ours};
pub use laws::{is_thorough, law, one_in};
pub use rule::Rule;

use crate::{BoxError, DeviceBuffer, Layout, Segments};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Device memory that lies in the host, behind copies.
#[derive(Debug)]
pub struct FakeDevice(Mutex<Vec<u8>>);

impl FakeDevice {
    /// Memory of this many zero bytes.
    pub fn new(nbytes: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0; nbytes as usize])))
    }

    /// A copy of the memory.
    pub fn bytes(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl DeviceBuffer for FakeDevice {
    fn device(&self) -> &'static str {
        "fake:0"
    }

    fn nbytes(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn allocate(&self, nbytes: u64) -> Result<Arc<dyn DeviceBuffer>, BoxError> {
        Ok(Self::new(nbytes))
    }

    fn copy_to_host(&self, from: &Layout, out: &mut [u8]) -> Result<(), BoxError> {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flat = Layout::contiguous(from.item(), from.shape()).ok_or("too large")?;
        for (s, d, n) in Segments::row_major(from, &flat) {
            out[d as usize..(d + n) as usize]
                .copy_from_slice(&memory[s as usize..(s + n) as usize]);
        }
        Ok(())
    }

    fn copy_from_host(&self, to: &Layout, elements: &[u8]) -> Result<(), BoxError> {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flat = Layout::contiguous(to.item(), to.shape()).ok_or("too large")?;
        for (s, d, n) in Segments::row_major(&flat, to) {
            memory[d as usize..(d + n) as usize]
                .copy_from_slice(&elements[s as usize..(s + n) as usize]);
        }
        Ok(())
    }

    fn synchronise(&self) -> Result<(), BoxError> {
        Ok(())
    }
}

/// What happens on the way to [`LateDevice`]s.
#[derive(Debug, Default)]
pub struct OnTheWay(Mutex<Counts>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    now: u64,
    most: u64,
    copies: u64,
    fails: Option<(u64, bool)>,
}

impl OnTheWay {
    /// Their copies fail after so many, or panic.
    pub fn fail_after(&self, copies: u64, panics: bool) {
        self.counts().fails = Some((copies, panics));
    }

    /// The most bytes that were on their way at a time.
    pub fn most(&self) -> u64 {
        self.counts().most
    }

    /// How many copies there were.
    pub fn copies(&self) -> u64 {
        self.counts().copies
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device that takes what is copied to it when it is synchronised, and not before.
#[derive(Debug)]
pub struct LateDevice {
    memory: Arc<FakeDevice>,
    way: Arc<OnTheWay>,
    given: Mutex<Vec<(Layout, Vec<u8>)>>,
}

impl LateDevice {
    /// Memory of this many zero bytes.
    pub fn new(nbytes: u64, way: &Arc<OnTheWay>) -> Arc<Self> {
        Arc::new(Self {
            memory: FakeDevice::new(nbytes),
            way: Arc::clone(way),
            given: Mutex::default(),
        })
    }

    /// A copy of the memory.
    pub fn bytes(&self) -> Vec<u8> {
        self.memory.bytes()
    }
}

impl DeviceBuffer for LateDevice {
    fn device(&self) -> &'static str {
        "late:0"
    }

    fn nbytes(&self) -> u64 {
        self.memory.nbytes()
    }

    fn allocate(&self, nbytes: u64) -> Result<Arc<dyn DeviceBuffer>, BoxError> {
        Ok(Self::new(nbytes, &self.way))
    }

    fn copy_to_host(&self, from: &Layout, out: &mut [u8]) -> Result<(), BoxError> {
        self.memory.copy_to_host(from, out)
    }

    #[expect(clippy::panic, reason = "a test asks for it")]
    fn copy_from_host(&self, to: &Layout, elements: &[u8]) -> Result<(), BoxError> {
        let fails = {
            let mut counts = self.way.counts();
            counts.copies += 1;
            let copies = counts.copies;
            let fails = counts.fails.filter(|(after, _)| copies > *after);
            if fails.is_none() {
                counts.now += elements.len() as u64;
                counts.most = counts.most.max(counts.now);
            }
            fails
        };
        match fails {
            Some((_, true)) => panic!("the device is on fire"),
            Some((_, false)) => return Err("out of reach".into()),
            None => {}
        }
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.push((to.clone(), elements.to_vec()));
        Ok(())
    }

    fn synchronise(&self) -> Result<(), BoxError> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        for (to, elements) in given.drain(..) {
            self.memory.copy_from_host(&to, &elements)?;
            self.way.counts().now -= elements.len() as u64;
        }
        Ok(())
    }
}

/// A device of 8 bytes that is gone: what is copied to it is taken, and nothing comes back.
#[derive(Debug)]
pub struct LostDevice;

impl DeviceBuffer for LostDevice {
    fn device(&self) -> &'static str {
        "lost:0"
    }
    fn nbytes(&self) -> u64 {
        8
    }
    fn allocate(&self, _: u64) -> Result<Arc<dyn DeviceBuffer>, BoxError> {
        Err("gone".into())
    }
    fn copy_to_host(&self, _: &Layout, _: &mut [u8]) -> Result<(), BoxError> {
        Err("gone".into())
    }
    fn copy_from_host(&self, _: &Layout, _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }
    fn synchronise(&self) -> Result<(), BoxError> {
        Err("gone".into())
    }
}

/// If there is one subscriber alone, the thread that first comes to an event says for all others that nobody wants it, if it has no subscriber
/// itself: a test beside this one does that.
static SECOND: LazyLock<tracing::Dispatch> =
    LazyLock::new(|| tracing::Dispatch::new(Events::default()));

/// Keeps the fields of events that are told to `tracing`, as `field=value`.
#[derive(Clone, Debug, Default)]
pub struct Events {
    only: Option<tracing::Level>,
    fields: Arc<Mutex<Vec<String>>>,
}

impl Events {
    /// Those of one level; by default it is those of all.
    pub fn only(level: tracing::Level) -> Self {
        Self {
            only: Some(level),
            ..Self::default()
        }
    }

    /// What was told while `f` ran, with spaces between the fields.
    pub fn of<T>(&self, f: impl FnOnce() -> T) -> (T, String) {
        LazyLock::force(&SECOND);
        let out = tracing::subscriber::with_default(self.clone(), f);
        let mut fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        (out, std::mem::take(&mut *fields).join(" "))
    }
}

impl tracing::field::Visit for Events {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let mut fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        fields.push(format!("{field}={value:?}"));
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        self.only.is_none_or(|level| *metadata.level() == level)
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
