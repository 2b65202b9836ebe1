//! Laws of reading wanted elements.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use async_trait::async_trait;
use bytes::Bytes;
use futures::executor::block_on;
use proptest::prelude::*;
use reshard_model::{BoxError, Dims, Layout, Region, Segments};
use reshard_storage::{
    Checksum, Durability, FileBody, Hints, IfExists, LocalStore, Name, Part, Progress, ReadPieces,
    RecordRead, StorageError, Store, TakePiece, Traffic, read_pieces_into,
    testkit::{Fault, FaultStore, MemoryStore, Op, Target},
};
use std::{
    ops::Range,
    sync::{Arc, mpsc},
};

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

fn pattern(len: usize) -> Bytes {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

struct Place {
    _dir: tempfile::TempDir,
    store: LocalStore,
}

/// A local place with one file `a`.
fn place(bytes: &Bytes) -> Place {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::at(dir.path().join("ckpt")).unwrap();
    block_on(async {
        let transaction = store.begin("x", IfExists::Refuse).await.unwrap();
        let body = FileBody::from_bytes(name("a"), bytes.clone());
        transaction
            .write(vec![body], Durability::Process, Progress::none())
            .await
            .unwrap();
        transaction
            .commit(
                Some((name("record"), Bytes::new())),
                &[],
                Durability::Process,
            )
            .await
            .unwrap();
    });
    Place { _dir: dir, store }
}

fn memory(bytes: &Bytes, part: u64, gap: u64) -> MemoryStore {
    let hints = Hints::default()
        .with_part_size(part)
        .with_coalesce_gap(gap)
        .with_concurrency(2);
    let store = MemoryStore::new().with_hints(hints);
    store.put(name("a"), bytes.clone());
    store
}

/// A file that comes in pieces of this size, without the last bytes of each read.
struct Pieces {
    file: Bytes,
    piece: usize,
    lost: u64,
}

#[async_trait]
impl ReadPieces for Pieces {
    async fn read_pieces(
        &self,
        _: &Name,
        range: Range<u64>,
        take: &mut TakePiece<'_>,
    ) -> Result<(), StorageError> {
        let bytes = &self.file[range.start as usize..(range.end - self.lost) as usize];
        bytes.chunks(self.piece).for_each(take);
        Ok(())
    }
}

/// All bytes of the record, in order.
struct Seen(Bytes);

impl Checksum for Seen {
    fn update(&mut self, bytes: &[u8]) {
        assert!(self.0.starts_with(bytes), "bytes come in order, each once");
        self.0 = self.0.slice(bytes.len()..);
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err("not all bytes were seen".into())
        }
    }
}

/// A stored tensor: where it starts, its shape, the order of its axes in the file, and what is wanted of it, cut in two.
#[derive(Clone, Debug)]
struct Item {
    before: u64,
    shape: Vec<u64>,
    order: Vec<usize>,
    expand: bool,
    from: Vec<u64>,
    cut: u64,
    checked: bool,
    tail: u64,
}

const BYTES: u64 = 4;

fn item() -> impl Strategy<Value = Item> {
    let long = prop_oneof![4 => 1u64..6, 1 => 200u64..700];
    (
        (
            0u64..5_000,
            prop::collection::vec(long, 1..4),
            Just(vec![0usize, 1, 2]).prop_shuffle(),
        ),
        (
            prop::bool::weighted(0.1),
            prop::collection::vec(0u64..100, 3),
            0u64..100,
        ),
        (any::<bool>(), 0u64..40),
    )
        .prop_map(
            |((before, shape, order), (expand, from, cut), (checked, tail))| {
                let order = order.into_iter().filter(|&a| a < shape.len()).collect();
                Item {
                    before,
                    shape,
                    order,
                    expand,
                    from,
                    cut,
                    checked,
                    tail,
                }
            },
        )
}

impl Item {
    fn layout(&self) -> Layout {
        let mut strides = Dims::zeros(self.shape.len());
        let mut step = 1;
        for &a in self.order.iter().rev() {
            strides[a] = step;
            step *= self.shape[a];
        }
        if self.expand {
            strides[self.order[0]] = 0;
        }
        Layout::new(BYTES, 0, self.shape.as_slice().into(), strides).unwrap()
    }

    /// Two disjoint regions of it, next to each other along its first axis.
    fn wanted(&self) -> Vec<Region> {
        let offsets: Vec<u64> = self
            .shape
            .iter()
            .zip(&self.from)
            .map(|(n, f)| f % n)
            .collect();
        let lengths: Vec<u64> = self
            .shape
            .iter()
            .zip(&offsets)
            .map(|(n, o)| (n - o).div_ceil(2))
            .collect();
        let first = self.cut % (lengths[0] + 1);
        let (mut a, mut b) = ((offsets.clone(), lengths.clone()), (offsets, lengths));
        a.1[0] = first;
        b.0[0] += first;
        b.1[0] -= first;
        [a, b].into_iter().map(|(o, l)| Region::new(o, l)).collect()
    }
}

fn check_items(
    store: &dyn Store,
    file: &Bytes,
    items: &[Item],
    plain_runs: bool,
) -> Result<Traffic, TestCaseError> {
    check_reads(file, items, plain_runs, |reads| {
        block_on(store.read_into(reads, Progress::none())).unwrap()
    })
}

fn check_reads(
    file: &Bytes,
    items: &[Item],
    plain_runs: bool,
    read_into: impl FnOnce(Vec<RecordRead>) -> Traffic,
) -> Result<Traffic, TestCaseError> {
    let (mut reads, mut targets, mut at) = (Vec::new(), Vec::new(), 0);
    for item in items {
        at += item.before;
        let layout = item.layout();
        let record = at..at + layout.hull().end + item.tail;
        let regions = item.wanted();
        let (target, lent_regions) = Target::new::<f32>(&item.shape, &regions);
        let parts = regions
            .iter()
            .zip(lent_regions)
            .map(|(r, into)| Part {
                source: layout.narrow(r),
                into,
            })
            .collect();
        let seen = file.slice(record.start as usize..record.end as usize);
        let check: Option<Box<dyn Checksum>> = if item.checked {
            Some(Box::new(Seen(seen)))
        } else {
            None
        };
        reads.push(RecordRead {
            name: name("a"),
            record: record.clone(),
            parts,
            check,
        });
        targets.push((target, layout, regions, record.start));
        at = record.end;
    }
    // The order in which they are asked for does not matter.
    reads.reverse();
    let stats = read_into(reads);
    let mut needed = 0;
    for (target, layout, regions, start) in targets {
        prop_assert!(target.is_free());
        let dense = Layout::contiguous(BYTES, layout.shape()).unwrap();
        let mut want = vec![0u8; dense.bytes() as usize];
        for r in &regions {
            needed += r.volume().unwrap() * BYTES;
            for (s, d, n) in Segments::row_major(&layout.narrow(r), &dense.narrow(r)) {
                let s = (start + s) as usize;
                want[d as usize..(d + n) as usize].copy_from_slice(&file[s..s + n as usize]);
            }
        }
        let got: Vec<u8> = target
            .into_vec::<f32>()
            .into_iter()
            .flat_map(f32::to_le_bytes)
            .collect();
        prop_assert_eq!(got, want);
    }
    prop_assert_eq!(stats.needed, needed);
    let records: u64 = items.iter().map(|i| i.layout().hull().end + i.tail).sum();
    prop_assert!(stats.bytes <= records, "no byte is read twice");
    prop_assert!(plain_runs || stats.beside == 0);
    Ok(stats)
}

fn length(items: &[Item]) -> usize {
    items
        .iter()
        .map(|i| i.before + i.layout().hull().end + i.tail)
        .sum::<u64>() as usize
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(96))]

    #[test]
    fn a_local_store_reads_what_naive_copying_does(items in prop::collection::vec(item(), 1..12)) {
        prop_assume!(length(&items) < 64 << 20);
        let file = pattern(length(&items));
        check_items(&place(&file).store, &file, &items, true)?;
    }

    #[test]
    fn reading_range_by_range_gives_the_same(
        items in prop::collection::vec(item(), 1..6), part in 1u64..50_000, gap in 0u64..5_000,
    ) {
        prop_assume!(length(&items) < 4 << 20);
        let file = pattern(length(&items));
        let part = part.max(file.len() as u64 / 500);
        check_items(&memory(&file, part, gap), &file, &items, false)?;
    }

    #[test]
    fn pieces_of_any_size_give_the_same(
        items in prop::collection::vec(item(), 1..6), part in 1u64..50_000, piece in 1usize..5_000,
    ) {
        prop_assume!(length(&items) < 4 << 20);
        let file = pattern(length(&items));
        let part = part.max(file.len() as u64 / 500);
        let pieces = Pieces { file: file.clone(), piece: piece.max(file.len() / 5_000), lost: 0 };
        let hints = Hints::default().with_part_size(part).with_concurrency(2);
        check_reads(&file, &items, false, |reads| {
            block_on(read_pieces_into(&pieces, &hints, reads, Progress::none())).unwrap()
        })?;
    }

    #[test]
    fn row_cuts_read_one_byte_per_byte_needed(
        rows in 1u64..300, width in 1u64..3_000, from in 0u64..300, count in 1u64..300,
    ) {
        let (from, count) = (from % rows, count.min(rows - from % rows));
        let file = pattern((rows * width) as usize);
        let stored = Layout::contiguous(1, &[rows, width]).unwrap();
        let region = Region::new([from, 0], [count, width]);
        let (target, mut lent_regions) = Target::new::<u8>(&[count, width], &[Region::whole(&[count, width])]);
        let parts = vec![Part { source: stored.narrow(&region), into: lent_regions.pop().unwrap() }];
        let record = 0..file.len() as u64;
        let reads = vec![RecordRead { name: name("a"), record, parts, check: None }];
        let stats = block_on(place(&file).store.read_into(reads, Progress::none())).unwrap();
        prop_assert_eq!((stats.bytes, stats.beside), (count * width, 0));
        let want = &file[(from * width) as usize..][..(count * width) as usize];
        prop_assert_eq!(target.into_vec::<u8>(), want);
    }
}

/// Columns that several ranks want, in runs that are long enough to be read into place: one call reads runs of all of them. What two
/// regions want is read once, also with a twin.
#[test]
fn columns_of_several_regions_are_read_together() {
    struct Seen(Vec<u8>, usize);
    impl Checksum for Seen {
        fn update(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
        fn finish(self: Box<Self>) -> Result<(), BoxError> {
            assert_eq!(self.0, pattern(self.1));
            Ok(())
        }
    }
    let file = pattern(400 * 8_000);
    let stored = Layout::contiguous(1, &[400, 8_000]).unwrap();
    // Cuts, whether a region is there twice, a twin, and how many calls and bytes are right at most.
    for (cuts, again, twin, check, calls) in [
        (vec![0, 3_000, 5_000, 8_000], false, false, false, 2),
        (vec![0, 3_000, 5_000, 8_000], false, false, true, 15),
        (vec![1_000, 3_000, 8_000], false, false, false, 2),
        (vec![0, 3_000, 5_000, 8_000], true, false, false, 14),
        (vec![0, 3_000, 5_000, 8_000], false, true, false, 14),
    ] {
        let (mut parts, mut targets) = (Vec::new(), Vec::new());
        let columns = cuts.windows(2).map(|w| (w[0], w[1]));
        let twice = columns.clone().take(usize::from(again));
        for (from, to) in columns.chain(twice) {
            let shape = [400, to - from];
            let new = || Target::new::<u8>(&shape, &[Region::whole(&shape)]);
            let (target, mut regions) = new();
            let mut into = regions.pop().unwrap();
            targets.push((from, to, target));
            if twin {
                let (target, mut regions) = new();
                into.add_twin(regions.pop().unwrap()).unwrap();
                targets.push((from, to, target));
            }
            let source = stored.narrow(&Region::new([0, from], shape));
            parts.push(Part { source, into });
        }
        let check: Option<Box<dyn Checksum>> =
            check.then(|| Box::new(Seen(Vec::new(), file.len())) as _);
        let reads = vec![RecordRead {
            name: name("a"),
            record: 0..file.len() as u64,
            parts,
            check,
        }];
        let stats = block_on(place(&file).store.read_into(reads, Progress::none())).unwrap();
        let wanted = 400 * (8_000 - cuts[0]);
        assert!(
            stats.bytes >= wanted && stats.bytes <= file.len() as u64 && stats.requests <= calls,
            "{stats:?}"
        );
        for (from, to, target) in targets {
            let rows = file.chunks(8_000);
            let want: Vec<u8> = rows
                .flat_map(|row| row[from as usize..to as usize].iter().copied())
                .collect();
            assert!(target.into_vec::<u8>() == want, "{from}..{to}");
        }
    }
}

#[test]
fn one_eighth_of_the_columns_reads_no_byte_twice_and_little_else() {
    let file = pattern(512 * 16_384);
    let stored = Layout::contiguous(2, &[512, 8_192]).unwrap();
    let region = Region::new([0, 1_024], [512, 1_024]);
    let (_target, mut lent_regions) =
        Target::new::<i16>(&[512, 1_024], &[Region::whole(&[512, 1_024])]);
    let parts = vec![Part {
        source: stored.narrow(&region),
        into: lent_regions.pop().unwrap(),
    }];
    let reads = vec![RecordRead {
        name: name("a"),
        record: 0..file.len() as u64,
        parts,
        check: None,
    }];
    let stats = block_on(place(&file).store.read_into(reads, Progress::none())).unwrap();
    assert_eq!(
        (stats.needed, stats.bytes, stats.requests),
        (1 << 20, 1 << 20, 512)
    );
}

#[test]
fn small_neighbours_are_read_together() {
    // 1000 records of 1 KiB with 500 bytes between them.
    let file = pattern(1_000 * 1_524);
    let (target, lent_regions) = Target::new::<u8>(
        &[1_000, 1_024],
        &(0..1_000)
            .map(|i| Region::new([i, 0], [1, 1_024]))
            .collect::<Vec<_>>(),
    );
    let reads = lent_regions.into_iter().enumerate().map(|(i, into)| {
        let start = i as u64 * 1_524;
        let source = Layout::contiguous(1, &[1, 1_024]).unwrap();
        RecordRead {
            name: name("a"),
            record: start..start + 1_024,
            parts: vec![Part { source, into }],
            check: None,
        }
    });
    let stats = block_on(
        place(&file)
            .store
            .read_into(reads.collect(), Progress::none()),
    )
    .unwrap();
    assert_eq!((stats.needed, stats.bytes), (1_024_000, 1_024_000));
    assert!(stats.requests < 20 && stats.beside < 500_000, "{stats:?}");
    let got = target.into_vec::<u8>();
    assert!(
        (0..1_000).all(|i| got[i * 1_024..(i + 1) * 1_024] == file[i * 1_524..i * 1_524 + 1_024])
    );
}

fn whole(len: u64, check: Option<Box<dyn Checksum>>) -> (Target, Vec<RecordRead>) {
    let (target, into) = Target::bytes(len);
    let source = Layout::contiguous(1, &[len]).unwrap();
    (
        target,
        vec![RecordRead {
            name: name("a"),
            record: 0..len,
            parts: vec![Part { source, into }],
            check,
        }],
    )
}

#[test]
fn a_cut_file_is_named_with_its_size_and_what_was_wanted() {
    let place = place(&pattern(1_000));
    let path = place.store.path().join("a");
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(400)
        .unwrap();
    let (target, reads) = whole(1_000, None);
    let e = block_on(place.store.read_into(reads, Progress::none())).unwrap_err();
    assert!(
        matches!(&e, StorageError::Short { range, size: 400, .. } if *range == (0..1_000)),
        "{e}"
    );
    assert!(e.to_string().contains(path.to_str().unwrap()), "{e}");
    assert!(target.is_free());
}

#[test]
fn pieces_that_end_early_are_an_error() {
    let pieces = Pieces {
        file: pattern(4_000),
        piece: 300,
        lost: 1,
    };
    let (target, reads) = whole(4_000, None);
    let hints = Hints::default();
    let read = read_pieces_into(&pieces, &hints, reads, Progress::none());
    let e = block_on(read).unwrap_err();
    assert!(
        matches!(&e, StorageError::Short { range, size: 3_999, .. } if *range == (0..4_000)),
        "{e}"
    );
    assert!(target.is_free());
}

#[test]
fn elements_that_share_bytes_beyond_reason_are_refused() {
    let len = 65u64 << 20;
    let store = memory(&Bytes::from(vec![0; len as usize]), 1 << 20, 0);
    let source = Layout::new(1, 0, [2, len].into(), [0, 1].into()).unwrap();
    let (target, mut lent_regions) = Target::new::<u8>(&[2, len], &[Region::whole(&[2, len])]);
    let parts = vec![Part {
        source,
        into: lent_regions.pop().unwrap(),
    }];
    let reads = vec![RecordRead {
        name: name("a"),
        record: 0..len,
        parts,
        check: None,
    }];
    let e = block_on(store.read_into(reads, Progress::none())).unwrap_err();
    assert!(matches!(e, StorageError::Unsupported { .. }), "{e}");
    assert!(target.is_free());
}

struct Panics;

impl Checksum for Panics {
    fn update(&mut self, _: &[u8]) {
        panic!("a broken check");
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn a_check_that_panics_is_an_error_and_the_buffer_comes_back() {
    let place = place(&pattern(1_000));
    let (target, reads) = whole(1_000, Some(Box::new(Panics)));
    let e = block_on(place.store.read_into(reads, Progress::none())).unwrap_err();
    assert_eq!(e.to_string(), "an I/O task panicked: a broken check");
    assert!(target.is_free());
}

#[test]
fn a_read_that_is_given_up_midway_ends_soon_and_lets_go_of_the_buffer() {
    // Two strides of one thread: a longer record that is read alone is cut for several threads.
    let bytes = pattern(16 << 20);
    let place = place(&bytes);
    let (target, reads) = whole(bytes.len() as u64, None);
    let (tell, told) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    // After the first stride the reader waits for us.
    let progress = Progress::new(move |n| {
        tell.send(n).ok();
        assert!(wait.lock().unwrap().recv().is_err());
    });
    let mut read = place.store.read_into(reads, progress);
    assert!(futures::FutureExt::now_or_never(&mut read).is_none());
    let first = told.recv().unwrap();
    assert!(first < bytes.len() as u64);
    drop(read);
    assert!(
        !target.is_free(),
        "the read is under way; its region keeps the memory alive"
    );
    drop(go);
    while !target.is_free() {
        std::thread::yield_now();
    }
    assert_eq!(told.iter().sum::<u64>(), 0, "nothing more was read");
    assert_eq!(
        target.into_vec::<u8>()[..first as usize],
        bytes[..first as usize]
    );
}

#[test]
fn injected_faults_do_what_they_say() {
    let bytes = pattern(5_000);
    let store = FaultStore::new(Arc::new(memory(&bytes, 1_000, 0)));
    let read = || block_on(store.read(&name("a"), 0..5_000));
    store.fail(Op::Read, 1, Fault::Before);
    store.fail(Op::Read, 2, Fault::FlippedBit);
    assert_eq!(read().unwrap(), bytes);
    assert!(read().is_err());
    let wrong = read().unwrap();
    assert_eq!(
        wrong
            .iter()
            .zip(&bytes)
            .map(|(a, b)| (a ^ b).count_ones())
            .sum::<u32>(),
        1
    );
    assert_eq!(read().unwrap(), bytes);
    let read = |fault: Option<Fault>| {
        if let Some(fault) = fault {
            store.fail(Op::ReadInto, 0, fault);
        }
        let (target, reads) = whole(5_000, Some(Box::new(Compares(bytes.clone(), true))));
        let outcome = block_on(store.read_into(reads, Progress::none()));
        assert!(target.is_free());
        outcome
    };
    assert!(read(None).is_ok());
    assert!(matches!(
        read(Some(Fault::FlippedBit)),
        Err(StorageError::Check { .. })
    ));
    assert!(matches!(
        read(Some(Fault::Short)),
        Err(StorageError::Short { .. })
    ));
    assert!(matches!(
        read(Some(Fault::After)),
        Err(StorageError::Io { .. })
    ));
    assert!(read(None).is_ok());
}

struct Compares(Bytes, bool);

impl Checksum for Compares {
    fn update(&mut self, bytes: &[u8]) {
        self.1 &= self.0.split_to(bytes.len()) == bytes;
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        if self.1 {
            Ok(())
        } else {
            Err("other bytes".into())
        }
    }
}
