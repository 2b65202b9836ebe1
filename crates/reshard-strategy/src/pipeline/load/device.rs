//! Copies to devices, with a bound on the bytes in host memory: DCP's `per_thread_copy_ahead`, for loads.
//!
//! Elements go to a device as they come from storage or from other ranks, so a leaf on a device needs no host memory of its own.

use crate::{Result, StrategyError};
use reshard_model::{
    BoxError, CopyToDevice, DeviceBuffer, DeviceTensor, Layout, ModelError, Region,
};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// What waits is not cut into less.
const LEAST: usize = 4 << 10;

/// All copies to devices of one rank's load. When it is dropped, what waits is not copied.
#[derive(Debug)]
pub(super) struct Devices(Arc<Copies>);

#[derive(Debug)]
struct Copies {
    /// How many bytes may be in flight.
    most: u64,
    state: Mutex<State>,
    /// Told when bytes are no longer in flight, or no longer wait.
    less: Condvar,
    /// Told when there is work for the thread, or nothing more comes.
    more: Condvar,
}

#[derive(Default)]
struct State {
    leaves: u64,
    /// Bytes that a device may not have taken yet.
    in_flight: u64,
    /// Those of them whose call has returned, by the address of their buffer: [`DeviceBuffer::synchronise`] waits for them.
    given: BTreeMap<usize, Given>,
    /// What waits for the thread, with its bytes.
    jobs: VecDeque<(u64, Job)>,
    /// The bytes that wait, with those of the thread's job, and how many they may be.
    waiting: u64,
    most_waiting: u64,
    thread: Option<JoinHandle<()>>,
    /// Nothing more comes.
    ended: bool,
    /// No further copy is worth while.
    broken: bool,
    /// Why, until it is told.
    failed: Option<StrategyError>,
    took: Duration,
}

/// What the thread does.
type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// Bytes that a device was given.
struct Given {
    buffer: Arc<dyn DeviceBuffer>,
    key: Arc<str>,
    bytes: u64,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("in_flight", &self.in_flight)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl Devices {
    /// With so many bytes in flight; a single element may have more.
    pub(super) fn new(copy_ahead: u64) -> Self {
        Self(Arc::new(Copies {
            most: copy_ahead.max(1),
            state: Mutex::default(),
            less: Condvar::new(),
            more: Condvar::new(),
        }))
    }

    /// What takes the elements of a leaf.
    pub(super) fn leaf(&self, key: &str, tensor: &DeviceTensor) -> Arc<dyn CopyToDevice> {
        self.0.state().leaves += 1;
        Arc::new(Leaf {
            all: Arc::clone(&self.0),
            key: key.into(),
            buffer: Arc::clone(tensor.buffer()),
        })
    }

    /// How many bytes an exchange may use that has `memory`. A part of it is for what waits here: as much as comes in a round.
    pub(super) fn share(&self, memory: u64) -> u64 {
        let mut state = self.0.state();
        if state.leaves == 0 {
            return memory;
        }
        let rest = memory / 5 * 4;
        state.most_waiting = rest / 4;
        rest
    }

    /// Does a job on a thread, while the caller does something else. Jobs run in the order of the calls. `bytes` are what the job keeps in
    /// memory: it waits here if too many would wait for the thread.
    pub(super) fn later(
        &self,
        bytes: u64,
        job: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Copies { less, more, .. } = &*self.0;
        let mut state = self.0.state();
        while state.waiting > 0 && state.waiting.saturating_add(bytes) > state.most_waiting {
            state = less.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.thread.is_none() {
            let all = Arc::clone(&self.0);
            let thread = thread::Builder::new().name("reshard-devices".into());
            let begun = thread.spawn(move || all.work());
            let no = |e| StrategyError::Invalid(format!("no thread for copies to devices: {e}"));
            state.thread = Some(begun.map_err(no)?);
        }
        state.waiting += bytes;
        state.jobs.push_back((bytes, Box::new(job)));
        more.notify_all();
        Ok(())
    }

    /// How many bytes a job may keep, so that several can wait.
    pub(super) fn block(&self) -> usize {
        let most = self.0.state().most_waiting / 4;
        usize::try_from(most).unwrap_or(usize::MAX).max(LEAST)
    }

    /// The first failure, once.
    pub(super) fn check(&self) -> Result<()> {
        self.0.state().failed.take().map_or(Ok(()), Err)
    }

    /// Waits until the devices have everything. Call it when no region is left. How long the copies took, and the first failure that is not
    /// told yet.
    pub(super) fn finish(self) -> (Duration, Result<()>) {
        let all = &self.0;
        let thread = all.end();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            all.state().fail(panicked());
        }
        let mut state = all.state();
        while !state.given.is_empty() {
            state = all.synchronise(state);
        }
        let failed = state.failed.take();
        (state.took, failed.map_or(Ok(()), Err))
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // Its memory is free when it has done its job.
        self.0.state().jobs.clear();
        self.0.end();
    }
}

impl Copies {
    fn end(&self) -> Option<JoinHandle<()>> {
        let mut state = self.state();
        state.ended = true;
        self.more.notify_all();
        state.thread.take()
    }

    /// What the thread does until nothing more comes.
    fn work(&self) {
        let mut state = self.state();
        loop {
            let Some((bytes, job)) = state.jobs.pop_front() else {
                if state.ended {
                    return;
                }
                state = (self.more.wait(state)).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let done = catch_unwind(AssertUnwindSafe(job));
            state = self.state();
            if let Err(e) = done.unwrap_or_else(|_| Err(panicked())) {
                state.fail(e);
            }
            state.waiting -= bytes;
            self.less.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all bytes that devices were given.
    fn synchronise<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let given = std::mem::take(&mut state.given);
        drop(state);
        let in_flight = InFlight {
            all: self,
            bytes: given.values().map(|given| given.bytes).sum(),
        };
        let begun = Instant::now();
        let mut failed = None;
        for Given { buffer, key, .. } in given.values() {
            if let Err(e) = attempt(key, &**buffer, || buffer.synchronise()) {
                failed.get_or_insert(e);
            }
        }
        drop(in_flight);
        let mut state = self.state();
        state.took += begun.elapsed();
        if let Some(failed) = failed {
            state.fail(failed);
        }
        state
    }

    /// Waits until so many bytes more may be in flight. `false` if a copy has failed, so that no other is worth while.
    fn room(&self, bytes: u64) -> bool {
        let mut state = self.state();
        while state.in_flight > 0 && state.in_flight.saturating_add(bytes) > self.most {
            state = match state.given.is_empty() {
                false => self.synchronise(state),
                // Other threads are in calls.
                true => self
                    .less
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
        if !state.broken {
            state.in_flight += bytes;
        }
        !state.broken
    }
}

impl State {
    fn fail(&mut self, e: StrategyError) {
        if !self.broken {
            self.failed = Some(e);
        }
        self.broken = true;
    }
}

/// Bytes in flight. Whoever waits for them goes on when it is dropped.
struct InFlight<'a> {
    all: &'a Copies,
    bytes: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.all.state().in_flight -= self.bytes;
        self.all.less.notify_all();
    }
}

/// A leaf on a device.
#[derive(Debug)]
struct Leaf {
    all: Arc<Copies>,
    key: Arc<str>,
    buffer: Arc<dyn DeviceBuffer>,
}

impl CopyToDevice for Leaf {
    fn copy(&self, to: &Layout, elements: &[u8]) {
        let mut rest = elements;
        // More than may be in flight goes in parts.
        for part in Region::whole(to.shape()).blocks(self.all.most / to.item().max(1)) {
            let part = to.narrow(&part);
            let (mine, behind) = rest.split_at(rest.len().min(part.bytes() as usize));
            rest = behind;
            if !self.all.room(part.bytes()) {
                return;
            }
            self.give(&part, mine);
        }
    }
}

impl Leaf {
    fn give(&self, to: &Layout, elements: &[u8]) {
        let mut in_flight = InFlight {
            all: &self.all,
            bytes: to.bytes(),
        };
        let begun = Instant::now();
        let copied = attempt(&self.key, &*self.buffer, || {
            self.buffer.copy_from_host(to, elements)
        });
        let mut state = self.all.state();
        state.took += begun.elapsed();
        match copied {
            // They are in flight until the device is synchronised.
            Ok(()) => {
                let bytes = std::mem::take(&mut in_flight.bytes);
                let address = Arc::as_ptr(&self.buffer).cast::<()>().addr();
                let given = state.given.entry(address).or_insert_with(|| Given {
                    buffer: Arc::clone(&self.buffer),
                    key: Arc::clone(&self.key),
                    bytes: 0,
                });
                given.bytes += bytes;
                self.all.less.notify_all();
            }
            Err(e) => state.fail(e),
        }
        drop(state);
    }
}

/// Calls a device, whose code may panic.
fn attempt(
    key: &str,
    buffer: &dyn DeviceBuffer,
    call: impl FnOnce() -> Result<(), BoxError>,
) -> Result<()> {
    let what = || {
        // Its name is its code, too.
        let name = catch_unwind(AssertUnwindSafe(|| buffer.device().to_owned()));
        let name = name.unwrap_or_else(|_| "a device whose name can't be had".into());
        format!("copying to {name}")
    };
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(|source| {
            let (key, what) = (key.into(), what());
            ModelError::Source { key, what, source }.into()
        }),
        Err(_) => Err(StrategyError::Internal(format!(
            "{key}: {} has panicked",
            what()
        ))),
    }
}

fn panicked() -> StrategyError {
    StrategyError::Internal("a job for a device has panicked".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::{
        DType, ErrorKind, RegionMut, View,
        testkit::{LateDevice, LostDevice, OnTheWay},
    };
    use std::sync::mpsc;

    /// A leaf of 64 x 16 bytes, and all of it as a region.
    fn leaf(devices: &Devices, way: &Arc<OnTheWay>) -> (Arc<LateDevice>, RegionMut) {
        let memory = LateDevice::new(1024, way);
        let tensor = DeviceTensor::new(DType::Int32, &[64, 4], Arc::clone(&memory) as _).unwrap();
        let copies = devices.leaf("w", &tensor);
        let whole = [Region::whole(tensor.shape())];
        let mut regions =
            RegionMut::on_device("w", &View::new(tensor.layout().clone()), &whole, &copies)
                .unwrap();
        (memory, regions.remove(0))
    }

    fn bytes() -> Vec<u8> {
        (0..1024u32).map(|i| i as u8).collect()
    }

    #[test]
    fn no_more_bytes_than_the_bound_are_on_their_way_and_all_arrive() {
        for most in [0, 1, 50, 512, 5000] {
            let (devices, way) = (Devices::new(most), Arc::default());
            let (memories, regions): (Vec<_>, Vec<_>) =
                (0..8).map(|_| leaf(&devices, &way)).unzip();
            // As an I/O pool does: several threads, blocks of any size.
            thread::scope(|scope| {
                for (n, region) in regions.into_iter().enumerate() {
                    scope.spawn(move || {
                        let dense = Layout::contiguous(4, region.shape()).unwrap();
                        let mut copy = region.strided_copy(&dense).unwrap();
                        for (i, block) in bytes().chunks(100 + n).enumerate() {
                            copy.feed((i * (100 + n)) as u64, block);
                        }
                        assert_eq!(copy.next_at(), None);
                    });
                }
            });
            let (_, outcome) = devices.finish();
            outcome.unwrap();
            assert!(memories.iter().all(|memory| memory.bytes() == bytes()));
            assert!(way.most() <= most.max(4), "{} of {most}", way.most());
            // The whole bound is used, and no more calls are made than needed.
            let largest = 8 * 107.min(most.max(4));
            assert!(
                way.most() > most.min(largest) / 2,
                "{} of {most}",
                way.most()
            );
        }
    }

    #[test]
    fn jobs_run_in_order_beside_the_caller_and_no_more_wait_than_may() {
        let devices = Devices::new(1);
        assert_eq!(devices.share(500), 500, "there is no leaf on a device");
        drop(leaf(&devices, &Arc::default()));
        assert_eq!(devices.share(500), 400, "a round has a quarter of it");
        let (begin, begun) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        for n in 0..10 {
            let (done, first) = (done.clone(), n == 0);
            let begin = begin.clone();
            devices
                .later(10, move || {
                    if first {
                        begin.send(()).unwrap();
                    }
                    done.send(n).unwrap();
                    Ok(())
                })
                .unwrap();
        }
        begun.recv().unwrap();
        // As many as may wait are all that can be there.
        devices
            .later(100, move || {
                done.send(10).unwrap();
                Ok(())
            })
            .unwrap();
        assert!(is_done.try_iter().take(10).eq(0..10));
        devices.later(1000, || Ok(())).unwrap();
        let (_, outcome) = devices.finish();
        outcome.unwrap();
        assert!(is_done.iter().eq(10..11));
    }

    #[test]
    fn a_failure_names_key_and_device_and_stops_all_copies() {
        let (devices, way) = (Devices::new(64), Arc::default());
        let ((memory, region), (_, other)) = (leaf(&devices, &way), leaf(&devices, &way));
        way.fail_after(3, false);
        region.fill(&bytes()).unwrap();
        let e = devices.check().unwrap_err();
        assert_eq!(e.to_string(), "w: copying to late:0");
        let source = std::error::Error::source(&e).map(ToString::to_string);
        assert_eq!(source.as_deref(), Some("out of reach"));
        other.fill(&bytes()).unwrap();
        assert_eq!(way.copies(), 4, "no copy after one that failed");
        devices.finish().1.unwrap();
        assert_eq!(
            memory.bytes()[..192],
            bytes()[..192],
            "what was given has arrived"
        );

        // One that is told when the device is synchronised.
        let devices = Devices::new(64);
        let lost = DeviceTensor::new(DType::UInt8, &[8], Arc::new(LostDevice)).unwrap();
        devices.leaf("x", &lost).copy(lost.layout(), &[0; 8]);
        devices.check().unwrap();
        let e = devices.finish().1.unwrap_err();
        assert_eq!(e.to_string(), "x: copying to lost:0");
    }

    #[test]
    fn who_waits_for_a_device_that_panics_goes_on() {
        let (devices, way) = (Devices::new(16), Arc::default());
        let ((_, one), (_, two)) = (leaf(&devices, &way), leaf(&devices, &way));
        way.fail_after(5, true);
        let fill = |region: RegionMut| move || Ok(region.fill(&bytes())?);
        devices.later(8, fill(one)).unwrap();
        devices.later(8, fill(two)).unwrap();
        let e = devices.finish().1.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Internal);
        assert!(
            e.to_string()
                .starts_with("w: copying to late:0 has panicked"),
            "{e}"
        );
        // Dropped without an end, as a load that is called off.
        let devices = Devices::new(16);
        let (done, is_done) = mpsc::channel::<()>();
        let job = move || {
            drop(done);
            Ok(())
        };
        devices.later(1, job).unwrap();
        drop(devices);
        is_done.recv().unwrap_err();
    }
}
