//! Limits of bandwidth, by a clock that nobody waits for.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use futures::executor::block_on;
use reshard_model::{Layout, Region};
use reshard_storage::{
    Bandwidth, Clock, Durability, Entry, Extent, FileBody, Hints, IfExists, Length, LocalStore,
    Name, Part, Progress, RecordRead, Store, ThrottledStore,
    testkit::{MemoryStore, Target, store_contract},
};
use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Whoever sleeps moves it on.
#[derive(Debug, Default)]
struct Fake(Mutex<Duration>);

impl Clock for Fake {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Ten blocks of 100 bytes.
struct Blocks(u64);

impl Extent for Blocks {
    fn length(&self) -> Length {
        Length::Exact(1_000)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        self.0 += 1;
        (self.0 <= 10).then(|| Ok(vec![self.0 as u8; 100].into()))
    }
}

/// A store with parts of 100 bytes, limited to 100 bytes per second.
fn limited() -> (Arc<Fake>, ThrottledStore) {
    let clock = Arc::new(Fake::default());
    let hints = Hints::default().with_part_size(100).with_concurrency(1);
    let inner = Arc::new(MemoryStore::new().with_hints(hints));
    let limit = Bandwidth::with_clock(100, Arc::clone(&clock) as _);
    let store = ThrottledStore::new(inner, limit.another(), limit);
    (clock, store)
}

/// Writes the file `a` of 1,000 bytes.
fn fill(store: &dyn Store) {
    block_on(async {
        let begun = store.begin("1", IfExists::Refuse).await.unwrap();
        let body = FileBody::new(name("a"), vec![Box::new(Blocks(0))]);
        let written = begun
            .write(vec![body], Durability::Process, Progress::none())
            .await
            .unwrap();
        let files: Vec<Entry> = written.iter().map(|w| w.entry()).collect();
        let record = Some((name("record"), Bytes::from(vec![0; 50])));
        begun
            .commit(record, &files, Durability::Process)
            .await
            .unwrap();
    });
}

fn seconds(clock: &Fake) -> f64 {
    clock.now().as_secs_f64()
}

#[test]
fn what_is_written_takes_as_long_as_the_limit_says_also_the_record() {
    let (clock, store) = limited();
    fill(&store);
    // The last bytes move when all others had their time.
    assert_eq!(seconds(&clock), 10.0);
    assert_eq!(
        block_on(store.read_all(&name("a"), 1_000))
            .unwrap()
            .unwrap()
            .len(),
        1_000
    );
}

#[test]
fn what_is_read_takes_as_long_as_the_limit_says_whichever_call_reads_it() {
    let (clock, store) = limited();
    fill(&store);
    let begin = seconds(&clock);
    let read = |range| block_on(store.read(&name("a"), range)).unwrap();
    // The limits of reads and writes are two, so the first read waits for nothing.
    assert_eq!(read(0..100)[0], 1);
    assert_eq!(seconds(&clock) - begin, 0.0);
    // A long read waits between its parts.
    let all = read(0..1_000);
    let want: Vec<u8> = (0..1_000).map(|n| (n / 100 + 1) as u8).collect();
    assert_eq!(all, want);
    assert_eq!(seconds(&clock) - begin, 10.0);
    let reads = (0..5)
        .map(|n| (name("a"), n * 200..n * 200 + 100))
        .collect();
    block_on(store.read_ranges(reads)).unwrap();
    assert_eq!(seconds(&clock) - begin, 15.0);

    let (target, into) = Target::new::<u8>(&[1_000], &[Region::whole(&[1_000])]);
    let source = Layout::contiguous(1, &[1_000]).unwrap();
    let parts = into.into_iter().map(|into| Part {
        source: source.clone(),
        into,
    });
    let record = RecordRead {
        name: name("a"),
        record: 0..1_000,
        parts: parts.collect(),
        check: None,
    };
    block_on(store.read_into(vec![record], Progress::none())).unwrap();
    assert_eq!(target.into_vec::<u8>(), want);
    assert_eq!(seconds(&clock) - begin, 25.0);
    // What is read as a whole has its length only afterwards.
    block_on(store.read_all(&name("a"), 1_000)).unwrap();
    assert_eq!(seconds(&clock) - begin, 26.0);
    read(0..1);
    assert_eq!(seconds(&clock) - begin, 36.0);
}

#[test]
fn time_in_which_nothing_moves_is_not_made_up_for() {
    let (clock, store) = limited();
    fill(&store);
    clock.sleep(Duration::from_secs(1_000));
    let begin = seconds(&clock);
    block_on(store.read(&name("a"), 0..1_000)).unwrap();
    assert_eq!(seconds(&clock) - begin, 9.0);
}

#[test]
fn pinned_places_and_others_of_the_same_limit_share_it() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(Fake::default());
    let limit = Bandwidth::with_clock(100, Arc::clone(&clock) as _);
    let open = |at: &str| {
        let inner = Arc::new(LocalStore::at(dir.path().join(at)).unwrap());
        ThrottledStore::new(inner, limit.clone(), limit.another())
    };
    let all = [open("a"), open("b")];
    all.iter().for_each(|store| fill(store));
    let begin = seconds(&clock);
    for store in &all {
        let pinned = block_on(store.pinned()).unwrap().unwrap();
        block_on(pinned.read(&name("a"), 0..500)).unwrap();
    }
    assert_eq!(seconds(&clock) - begin, 5.0);
}

#[test]
fn a_limited_store_keeps_the_contract() {
    let limit = Bandwidth::with_clock(1_000, Arc::new(Fake::default()));
    block_on(store_contract(|| {
        let inner = Arc::new(MemoryStore::new());
        Arc::new(ThrottledStore::new(inner, limit.clone(), limit.another()))
    }));
    let dir = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    block_on(store_contract(|| {
        count.set(count.get() + 1);
        let inner = LocalStore::at(dir.path().join(format!("{}", count.get()))).unwrap();
        Arc::new(ThrottledStore::new(
            Arc::new(inner),
            limit.clone(),
            limit.another(),
        ))
    }));
}
