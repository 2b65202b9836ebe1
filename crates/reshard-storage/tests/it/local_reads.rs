//! In how many reads a local store gets what is wanted, to the byte: what is joined, what is skipped, where a read ends.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use futures::executor::block_on;
use reshard_model::{BoxError, Layout, Region, Segments};
use reshard_storage::{
    Checksum, LocalStore, Name, Part, Progress, RecordRead, Store, testkit::Target,
};
use std::sync::{Arc, Mutex};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
/// Gaps up to here are read along.
const GAP: u64 = 2 * K;

/// What is wanted of a record.
struct Wanted {
    record: std::ops::Range<u64>,
    parts: Vec<Layout>,
    checked: bool,
}

/// Bytes from `start` on, so many of them.
fn run(start: u64, len: u64) -> Layout {
    Layout::new(1, start, [len].into(), [1].into()).unwrap()
}

/// Runs of one length that begin so far apart.
fn runs(count: u64, len: u64, apart: u64) -> Layout {
    Layout::new(1, 0, [count, len].into(), [apart, 1].into()).unwrap()
}

fn of(record: std::ops::Range<u64>, parts: Vec<Layout>) -> Wanted {
    Wanted {
        record,
        parts,
        checked: false,
    }
}

fn checked(record: std::ops::Range<u64>, parts: Vec<Layout>) -> Wanted {
    Wanted {
        record,
        parts,
        checked: true,
    }
}

struct Counts(Arc<Mutex<u64>>, u64);

impl Checksum for Counts {
    fn update(&mut self, bytes: &[u8]) {
        *self.0.lock().unwrap() += bytes.len() as u64;
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        assert_eq!(*self.0.lock().unwrap(), self.1, "all of the record is seen");
        Ok(())
    }
}

/// What reading them takes: reads, bytes read, bytes between. What lands and what is told is looked at, too.
fn read(wanted: Vec<Wanted>) -> [u64; 3] {
    let size = wanted.iter().map(|w| w.record.end).max().unwrap();
    let bytes: Bytes = (0..size)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("a"), &bytes).unwrap();
    let store = LocalStore::at(home.path()).unwrap();

    let (mut targets, mut reads, mut needed) = (Vec::new(), Vec::new(), 0);
    for Wanted {
        record,
        parts,
        checked,
    } in wanted
    {
        let mut given = Vec::new();
        for source in parts {
            let shape = source.shape().clone();
            let (target, mut regions) = Target::new::<u8>(&shape, &[Region::whole(&shape)]);
            let dense = Layout::contiguous(1, &shape).unwrap();
            let mut want = vec![0; dense.bytes() as usize];
            for (s, d, n) in Segments::row_major(&source, &dense) {
                let s = (record.start + s) as usize;
                want[d as usize..(d + n) as usize].copy_from_slice(&bytes[s..s + n as usize]);
            }
            needed += want.len() as u64;
            targets.push((target, want));
            given.push(Part {
                source,
                into: regions.pop().unwrap(),
            });
        }
        let all = record.end - record.start;
        let check = checked.then(|| -> Box<dyn Checksum> { Box::new(Counts(Arc::default(), all)) });
        reads.push(RecordRead {
            name: Name::new("a").unwrap(),
            record,
            parts: given,
            check,
        });
    }
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let progress = Progress::new(move |n| tell.lock().unwrap().push(n));
    let stats = block_on(store.read_into(reads, progress)).unwrap();
    for (target, want) in targets {
        assert!(target.into_vec::<u8>() == want, "other bytes have landed");
    }
    let told = told.lock().unwrap();
    assert!(
        !told.contains(&0),
        "nothing is told when nothing has landed"
    );
    assert_eq!((told.iter().sum::<u64>(), stats.needed), (needed, needed));
    [stats.requests, stats.bytes, stats.beside]
}

#[test]
fn long_runs_come_in_strides_and_those_that_are_checked_in_blocks() {
    assert_eq!(read(vec![of(0..M, vec![run(0, M)])]), [1, M, 0]);
    assert_eq!(read(vec![checked(0..M, vec![run(0, M)])]), [4, M, 0]);
    assert_eq!(read(vec![of(0..8 * M, vec![run(0, 8 * M)])]), [1, 8 * M, 0]);
    // From 16 MiB on it is cut for several threads.
    assert_eq!(
        read(vec![of(0..17 * M, vec![run(0, 17 * M)])]),
        [4, 17 * M, 0]
    );
    // The second run fills the stride that the first has begun.
    let two = vec![run(0, 6 * M), run(6 * M, 6 * M)];
    assert_eq!(read(vec![of(0..12 * M, two)]), [2, 12 * M, 0]);
    // One call takes 1,024 buffers. These lie side by side in the file, and apart in memory.
    for (count, reads) in [(1_024, 1), (1_025, 2), (2_049, 3)] {
        let parts = (0..count).map(|i| run(i * K, K)).collect();
        assert_eq!(read(vec![of(0..count * K, parts)]), [reads, count * K, 0]);
    }
}

#[test]
fn short_gaps_between_long_runs_are_read_along() {
    for (gap, want) in [(GAP, [1, 2 * K + GAP, 0]), (GAP + 1, [2, 2 * K, 0])] {
        let apart = vec![run(0, K), run(K + gap, K)];
        assert_eq!(read(vec![of(0..8 * K, apart)]), want, "{gap}");
    }
    // With what nobody wants before and behind it.
    assert_eq!(
        read(vec![of(0..64 * K, vec![run(30 * K, 2 * K)])]),
        [1, 2 * K, 0]
    );
    assert_eq!(
        read(vec![checked(0..64 * K, vec![run(30 * K, 2 * K)])]),
        [2, 64 * K, 0]
    );
}

#[test]
fn short_runs_are_copied_from_blocks() {
    // 1 KiB is long: it is read into place. A call has room for 256 KiB of gaps, and what lies before the next call is skipped.
    let long = read(vec![of(0..2 * M, vec![runs(1_024, K, 2 * K)])]);
    assert_eq!(long, [4, 2 * M - K - 3 * K, 0]);
    let short = read(vec![of(0..2 * M, vec![runs(1_024, K - 1, 2 * K)])]);
    assert_eq!(short, [8, 2 * M - K - 1, 0]);
    assert_eq!(
        read(vec![checked(0..600 * K, vec![runs(600, 512, K)])]),
        [3, 600 * K, 0]
    );
}

#[test]
fn long_runs_that_do_not_ascend_are_copied_from_blocks() {
    let even = runs(2, 2 * K, 4 * K);
    let odd = Layout::new(1, 2 * K, [2, 2 * K].into(), [4 * K, 1].into()).unwrap();
    assert_eq!(read(vec![of(0..8 * K, vec![even, odd])]), [1, 8 * K, 0]);
}

#[test]
fn elements_that_share_bytes_come_in_one_block() {
    for len in [200 * K, 300 * K] {
        let windows = Layout::new(1, 0, [2, len].into(), [1, 1].into()).unwrap();
        assert_eq!(
            read(vec![of(0..M, vec![windows])]),
            [1, len + 1, 0],
            "{len}"
        );
    }
}

#[test]
fn small_neighbours_are_read_together() {
    let pair = |len: u64, gap: u64| {
        let second = len + gap;
        vec![
            checked(0..len, vec![run(0, len)]),
            checked(second..second + len, vec![run(0, len)]),
        ]
    };
    for (len, gap, want) in [
        (100, 0, [1, 200, 0]),
        (100, 50, [1, 200, 50]),
        (100, GAP, [1, 200, GAP]),
        (100, GAP + 1, [2, 200, 0]),
        (16 * K, 7, [1, 32 * K, 7]),
        (16 * K + 1, 7, [2, 32 * K + 2, 0]),
    ] {
        assert_eq!(read(pair(len, gap)), want, "{len} {gap}");
    }
    // So much beside them that one thread gets all of them. It is read in strides.
    let width = std::thread::available_parallelism().map_or(2, |n| n.get().max(2)) as u64;
    let large = width * M;
    let many = |count: u64| {
        let record = |i: u64| checked(i * 16 * K..(i + 1) * 16 * K, vec![run(0, 16 * K)]);
        let beside = of(M..M + large, vec![run(0, large)]);
        let [reads, bytes, between] = read((0..count).map(record).chain([beside]).collect());
        [reads - large.div_ceil(8 * M), bytes - large, between]
    };
    // 256 KiB, and what is beyond.
    assert_eq!((many(16), many(17)), ([1, 256 * K, 0], [2, 272 * K, 0]));
}

#[test]
fn neighbours_of_which_little_is_wanted_are_not_read_together() {
    // Without a check only what is wanted counts, wherever it lies in its record.
    let far = 40 * K;
    let late = vec![
        of(0..far + 100, vec![run(far, 100)]),
        of(far + 150..far + 250, vec![run(0, 100)]),
    ];
    assert_eq!(read(late), [1, 200, 50]);
    for (gap, want) in [(GAP, [1, 300 + GAP, 0]), (GAP + 1, [3, 300, 0])] {
        let sparse = of(0..200 + gap, vec![run(0, 100), run(100 + gap, 100)]);
        let next = 200 + gap;
        assert_eq!(
            read(vec![sparse, of(next..next + 100, vec![run(0, 100)])]),
            want,
            "{gap}"
        );
    }
    // Both orders: the sparse one may come last.
    let last = vec![
        of(0..100, vec![run(0, 100)]),
        of(100..10 * K, vec![run(0, 100), run(6 * K, 100)]),
    ];
    assert_eq!(read(last), [3, 300, 0]);
    // Records that share bytes are read one by one.
    let shared = vec![
        checked(0..100, vec![run(0, 100)]),
        checked(50..150, vec![run(0, 100)]),
    ];
    assert_eq!(read(shared), [2, 200, 0]);
}
