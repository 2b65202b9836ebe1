//! Reads.

use super::{
    super::Target,
    sample::{committed, kind, name, pattern},
};
use crate::{Checksum, IfExists, Part, Progress, RecordRead, Result, StorageError, Store};
use bytes::Bytes;
use reshard_model::{BoxError, ErrorKind, Layout, Region};
use std::sync::Arc;

/// Puts two files there, of 50,000 bytes and a little less. Returns the bytes of the first one, `a`.
async fn two_files(store: &Arc<dyn Store>) -> Bytes {
    let bytes = pattern(50_000, 2);
    let files = [("a", bytes.clone()), ("b", bytes.slice(7..))];
    committed(store, "one", IfExists::Refuse, &files).await;
    bytes
}

pub(super) async fn ranges_are_exact(store: Arc<dyn Store>) {
    let bytes = two_files(&store).await;

    // Ranges in no order, empty ones, ones that overlap, and a second file.
    let ranges = [
        100..200,
        0..0,
        49_990..50_000,
        150..400,
        20_000..20_001,
        0..50_000,
    ];
    let reads = ranges
        .iter()
        .map(|r| (name("a"), r.clone()))
        .chain([(name("b"), 3..5)])
        .collect();
    let (got, stats) = store.read_ranges(reads).await.unwrap();
    for (r, g) in ranges.iter().zip(&got) {
        assert_eq!(*g, bytes.slice(r.start as usize..r.end as usize));
    }
    assert_eq!(got[6], bytes.slice(10..12));
    // One of them is the whole file: no gaps, and no byte has to be read twice.
    assert_eq!((stats.needed, stats.beside), (50_363, 0));
    assert!(
        (50_002..=50_363).contains(&stats.bytes) && stats.requests >= 2,
        "{stats:?}"
    );
}

pub(super) async fn a_range_past_the_end_is_short(store: Arc<dyn Store>) {
    two_files(&store).await;
    // A range that reaches past the end gives no bytes at all, alone or among others.
    for range in [49_999..50_001, 60_000..60_001, 0..u64::MAX] {
        let e = store.read(&name("a"), range.clone()).await.unwrap_err();
        let StorageError::Short {
            path,
            range: of,
            size,
        } = &e
        else {
            panic!("{e}")
        };
        assert_eq!((of, *size), (&range, 50_000));
        assert!(path.ends_with('a'), "{e}");
        assert_eq!(
            kind(
                store
                    .read_ranges(vec![(name("b"), 0..1), (name("a"), range)])
                    .await
            ),
            ErrorKind::Corrupt
        );
    }
}

pub(super) async fn a_backwards_range_is_invalid(store: Arc<dyn Store>) {
    two_files(&store).await;
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let backwards = 2..1;
    let why = "a range that ends before it starts is no damage";
    assert_eq!(
        kind(store.read(&name("a"), backwards.clone()).await),
        ErrorKind::Invalid,
        "{why}"
    );
    assert_eq!(
        kind(store.read_ranges(vec![(name("a"), backwards)]).await),
        ErrorKind::Invalid,
        "{why}"
    );
}

pub(super) async fn a_file_is_read_whole_if_it_is_there(store: Arc<dyn Store>) {
    let bytes = pattern(1_000, 6);
    let files = [("a", bytes.clone()), ("d/empty", Bytes::new())];
    committed(&store, "one", IfExists::Refuse, &files).await;
    let read = |file: &'static str, max| {
        let store = Arc::clone(&store);
        async move { store.read_all(&name(file), max).await }
    };
    for max in [1_000, 1_001, u64::MAX] {
        assert_eq!(read("a", max).await.unwrap().unwrap(), bytes);
    }
    assert_eq!(read("d/empty", 0).await.unwrap().unwrap(), Bytes::new());
    for missing in ["b", "d/b", "e/f"] {
        assert_eq!(read(missing, 10).await.unwrap(), None);
    }
    for max in [0, 999] {
        let e = read("a", max).await.unwrap_err();
        let StorageError::Longer {
            path,
            size,
            max: most,
        } = &e
        else {
            panic!("{e}")
        };
        assert_eq!((*size, *most), (1_000, max));
        assert!(path.ends_with("/a"), "{e}");
    }
}

/// Compares with bytes that are known.
struct Equals {
    want: Bytes,
    right: bool,
}

impl Equals {
    fn boxed(want: Bytes) -> Option<Box<dyn Checksum>> {
        Some(Box::new(Self { want, right: true }))
    }
}

impl Checksum for Equals {
    fn update(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.want.len());
        self.right &= n == bytes.len() && self.want.split_to(n) == bytes;
    }

    fn finish(self: Box<Self>) -> Result<(), BoxError> {
        if self.right && self.want.is_empty() {
            Ok(())
        } else {
            Err("other bytes".into())
        }
    }
}

fn rows(item: u64, shape: &[u64]) -> Layout {
    Layout::contiguous(item, shape).unwrap()
}

pub(super) async fn wanted_elements_land_and_nothing_else_changes(store: Arc<dyn Store>) {
    let bytes = pattern(3000 + 64 * 128, 3);
    committed(&store, "one", IfExists::Refuse, &[("a", bytes.clone())]).await;
    let record = 3000..3000 + 64 * 128;
    let stored = rows(1, &[64, 128]);
    for checked in [false, true] {
        // Columns 10..30 of rows 5..45 into the middle of a wider buffer, and the last row elsewhere.
        let want = Region::new([5, 10], [40, 20]);
        let last = Region::new([63, 0], [1, 128]);
        let (a, mut into_a) = Target::new::<u8>(&[50, 22], &[Region::new([3, 1], [40, 20])]);
        let (b, mut into_b) = Target::new::<u8>(&[1, 128], &[Region::whole(&[1, 128])]);
        let parts = vec![
            Part {
                source: stored.narrow(&want),
                into: into_a.pop().unwrap(),
            },
            Part {
                source: stored.narrow(&last),
                into: into_b.pop().unwrap(),
            },
        ];
        let check = if checked {
            Equals::boxed(bytes.slice(3000..))
        } else {
            None
        };
        let reads = vec![RecordRead {
            name: name("a"),
            record: record.clone(),
            parts,
            check,
        }];
        let stats = store.read_into(reads, Progress::none()).await.unwrap();
        assert_eq!(stats.needed, 40 * 20 + 128);
        assert!(stats.bytes >= stats.needed && stats.bytes <= 64 * 128);
        assert!(a.is_free() && b.is_free(), "regions are given back");
        let (a, b) = (a.into_vec::<u8>(), b.into_vec::<u8>());
        assert_eq!(b, bytes[3000 + 63 * 128..]);
        for (i, got) in a.iter().enumerate() {
            let (r, c) = (i / 22, i % 22);
            let inside = (3..43).contains(&r) && (1..21).contains(&c);
            let want = if inside {
                bytes[3000 + (r + 2) * 128 + c + 9]
            } else {
                0
            };
            assert_eq!(*got, want, "row {r}, column {c}");
        }
    }
}

pub(super) async fn a_failed_check_names_the_record(store: Arc<dyn Store>) {
    let bytes = pattern(10_000, 4);
    committed(&store, "one", IfExists::Refuse, &[("a", bytes.clone())]).await;
    for (good, of) in [
        (true, bytes.slice(100..9_000)),
        (false, bytes.slice(99..8_999)),
    ] {
        let (target, into) = Target::bytes(10);
        let source = rows(1, &[8_900]).narrow(&Region::new([50], [10]));
        let parts = vec![Part { source, into }];
        let reads = vec![RecordRead {
            name: name("a"),
            record: 100..9_000,
            parts,
            check: Equals::boxed(of),
        }];
        let outcome = store.read_into(reads, Progress::none()).await;
        assert!(target.is_free());
        if good {
            assert_eq!(outcome.unwrap().bytes, 8_900);
            assert_eq!(target.into_vec::<u8>(), bytes[150..160]);
        } else {
            let e = outcome.unwrap_err();
            let StorageError::Check { name: n, range, .. } = &e else {
                panic!("{e}")
            };
            assert_eq!((n.as_str(), range), ("a", &(100..9_000)));
        }
    }
}

pub(super) async fn parts_that_do_not_fit_are_refused(store: Arc<dyn Store>) {
    let bytes = pattern(1_000, 5);
    committed(&store, "one", IfExists::Refuse, &[("a", bytes)]).await;
    let cases = [
        // the record can't hold what is said to lie in it
        (0..100, rows(1, &[101]), 101, ErrorKind::Corrupt),
        // the file is shorter than the record
        (950..1_001, rows(1, &[51]), 51, ErrorKind::Corrupt),
        // shapes differ
        (0..100, rows(1, &[100]), 99, ErrorKind::Invalid),
    ];
    for (record, source, len, want) in cases {
        let (target, into) = Target::bytes(len);
        let reads = vec![RecordRead {
            name: name("a"),
            record,
            parts: vec![Part { source, into }],
            check: None,
        }];
        assert_eq!(kind(store.read_into(reads, Progress::none()).await), want);
        assert!(target.is_free());
    }
}
