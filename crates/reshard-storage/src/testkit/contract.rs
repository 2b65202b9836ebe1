use super::Target;
use crate::{
    Checksum, Depth, Durability, Entry, Extent, FileBody, IfExists, Length, Name, Part, Progress, RecordRead,
    Result, StorageError, Store, StoreExt, Transaction, Written, WrittenExtent,
};
use bytes::Bytes;
use futures_util::future::join_all;
use reshard_model::{BoxError, ErrorKind, Layout, Region};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Runs every rule of [`Store`] and [`Transaction`] against stores that `make` makes: each time one of a place that nobody has
/// used and that holds nothing.
///
/// ```
/// use reshard_storage::{Store, testkit::{MemoryStore, store_contract}};
/// use std::sync::Arc;
///
/// futures::executor::block_on(store_contract(|| Arc::new(MemoryStore::new()) as Arc<dyn Store>));
/// ```
///
/// # Panics
/// When a rule is broken.
pub async fn store_contract(make: impl Fn() -> Arc<dyn Store>) {
    a_place_that_does_not_exist_is_empty(make()).await;
    what_is_written_is_seen_only_when_committed(make()).await;
    a_folder_is_listed_alone(make()).await;
    ranges_are_exact_or_an_error(make()).await;
    wanted_elements_land_and_nothing_else_changes(make()).await;
    a_failed_check_names_the_record(make()).await;
    parts_that_do_not_fit_are_refused(make()).await;
    an_extent_of_another_length_than_promised_is_an_error(make()).await;
    receipts_come_back_in_order(make()).await;
    a_file_of_unknown_length_is_as_long_as_what_was_given(make()).await;
    a_copy_is_the_file_it_is_of(make(), make()).await;
    a_version_may_have_no_record(make()).await;
    a_place_that_holds_something_is_refused(make()).await;
    a_version_replaces_the_named_files_of_the_old_one(make()).await;
    a_pinned_version_never_mixes_with_the_next(make()).await;
    an_abandoned_version_leaves_nothing(make()).await;
    many_ranks_write_one_version(make()).await;
    a_version_that_lacks_a_file_is_not_committed(make()).await;
    what_was_not_committed_shows_and_can_be_removed(make()).await;
    removed_files_are_gone(make()).await;
}

fn name(s: &str) -> Name {
    Name::new(s).unwrap()
}

fn pattern(len: usize, seed: usize) -> Bytes {
    (0..len).map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn file(n: &str, bytes: &Bytes) -> FileBody {
    FileBody::from_bytes(name(n), bytes.clone())
}

fn record() -> (Name, Bytes) {
    (name("record"), Bytes::from_static(b"done"))
}

fn entries(written: &[Written]) -> Vec<Entry> {
    written.iter().map(Written::entry).collect()
}

fn replace(files: &[&str]) -> IfExists {
    IfExists::Replace(files.iter().map(|f| name(f)).collect())
}

async fn committed(store: &Arc<dyn Store>, attempt: &str, if_exists: IfExists, files: &[(&str, Bytes)]) {
    let transaction = store.begin(attempt, if_exists).await.unwrap();
    let bodies = files.iter().map(|(n, b)| file(n, b)).collect();
    let written = transaction.write(bodies, Durability::Process, Progress::none()).await.unwrap();
    let want: Vec<_> = files.iter().map(|(n, b)| (name(n), b.len() as u64)).collect();
    let got: Vec<_> = written.iter().map(|w| (w.name.clone(), w.bytes)).collect();
    assert_eq!(got, want, "in the order given");
    transaction.commit(Some(record()), &entries(&written), Durability::Process).await.unwrap();
}

async fn names(store: &Arc<dyn Store>) -> Vec<String> {
    store.files().await.unwrap().into_iter().map(|e| e.name.to_string()).collect()
}

fn kind<T>(outcome: Result<T>) -> ErrorKind {
    match outcome {
        Ok(_) => panic!("this should have failed"),
        Err(e) => e.kind(),
    }
}

async fn a_place_that_does_not_exist_is_empty(store: Arc<dyn Store>) {
    assert!(names(&store).await.is_empty());
    assert_eq!(store.len(&name("a")).await.unwrap(), None);
    assert!(!store.exists(&name("a")).await.unwrap());
    assert_eq!(kind(store.read(&name("a"), 0..1).await), ErrorKind::NotFound);
    assert_eq!(kind(store.read_ranges(vec![(name("a"), 0..1)]).await), ErrorKind::NotFound);
    assert!(store.leftovers().await.unwrap().is_empty());
    store.remove(&[name("a")]).await.unwrap();
    assert!(store.read_ranges(Vec::new()).await.unwrap().0.is_empty());
    assert_eq!(store.read_into(Vec::new(), Progress::none()).await.unwrap().reads, 0);
    assert!(!store.url().is_empty());
}

async fn what_is_written_is_seen_only_when_committed(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let bytes = pattern(100_000, 1);
    let moved = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&moved);
    let progress = Progress::new(move |n| {
        count.fetch_add(n, Ordering::Relaxed);
    });
    let bodies = vec![file("b/c", &bytes), file("a", &Bytes::new())];
    transaction.write(bodies, Durability::Machine, progress).await.unwrap();
    assert_eq!(moved.load(Ordering::Relaxed), 100_000);
    assert!(names(&store).await.is_empty());
    assert_eq!(store.len(&name("b/c")).await.unwrap(), None);
    transaction.commit(Some(record()), &[], Durability::Machine).await.unwrap();
    assert_eq!(names(&store).await, ["a", "b/c", "record"]);
    let top = store.top().await.unwrap();
    let files: Vec<_> = top.files.iter().map(|e| (e.name.as_str(), e.bytes)).collect();
    assert_eq!(files, [("a", 0), ("record", 4)]);
    assert_eq!(top.folders, [name("b")]);
    assert_eq!(store.len(&name("b/c")).await.unwrap(), Some(100_000));
    assert_eq!(store.len(&name("b")).await.unwrap(), None, "a directory is no file");
    assert_eq!(store.read(&name("b/c"), 0..100_000).await.unwrap(), bytes);
    assert_eq!(store.read(&name("record"), 0..4).await.unwrap(), "done");
    assert!(store.leftovers().await.unwrap().is_empty());
    // To give a version up after it is committed is too late.
    if let Err(e) = transaction.rollback().await {
        panic!("rollback after commit: {e}");
    }
    assert_eq!(names(&store).await, ["a", "b/c", "record"]);
}

async fn a_folder_is_listed_alone(store: Arc<dyn Store>) {
    let one = Bytes::from_static(b"1");
    let files = ["a", "b/c", "b/d/e", "b/d/f/g", "bb/h"].map(|n| (n, one.clone()));
    committed(&store, "one", IfExists::Refuse, &files).await;
    for (below, depth, files, folders) in [
        (None, Depth::One, vec!["a", "record"], vec!["b", "bb"]),
        (None, Depth::All, vec!["a", "b/c", "b/d/e", "b/d/f/g", "bb/h", "record"], vec![]),
        (Some("b"), Depth::One, vec!["b/c"], vec!["b/d"]),
        (Some("b"), Depth::All, vec!["b/c", "b/d/e", "b/d/f/g"], vec![]),
        (Some("b/d"), Depth::One, vec!["b/d/e"], vec!["b/d/f"]),
        // A file is no folder, and what is not there holds nothing.
        (Some("a"), Depth::All, vec![], vec![]),
        (Some("b/none"), Depth::One, vec![], vec![]),
    ] {
        let found = store.list(below.map(name).as_ref(), depth).await.unwrap();
        assert_eq!(found.names().collect::<Vec<_>>(), files, "{below:?} {depth:?}");
        assert_eq!(found.folders, folders.into_iter().map(name).collect::<Vec<_>>(), "{below:?} {depth:?}");
    }
}

async fn ranges_are_exact_or_an_error(store: Arc<dyn Store>) {
    let bytes = pattern(50_000, 2);
    committed(&store, "one", IfExists::Refuse, &[("a", bytes.clone()), ("b", bytes.slice(7..))]).await;
    let ranges = [100..200, 0..0, 49_990..50_000, 150..400, 20_000..20_001, 0..50_000];
    let reads = ranges.iter().map(|r| (name("a"), r.clone())).chain([(name("b"), 3..5)]).collect();
    let (got, stats) = store.read_ranges(reads).await.unwrap();
    for (r, g) in ranges.iter().zip(&got) {
        assert_eq!(*g, bytes.slice(r.start as usize..r.end as usize));
    }
    assert_eq!(got[6], bytes.slice(10..12));
    // One of them is the whole file: no gaps, and no byte has to be read twice.
    assert_eq!((stats.bytes_needed, stats.bytes_between), (50_363, 0));
    assert!((50_002..=50_363).contains(&stats.bytes_read) && stats.reads >= 2, "{stats:?}");
    for range in [49_999..50_001, 60_000..60_001, 0..u64::MAX] {
        let e = store.read(&name("a"), range.clone()).await.unwrap_err();
        let StorageError::Short { path, range: of, size } = &e else { panic!("{e}") };
        assert_eq!((of, *size), (&range, 50_000));
        assert!(path.ends_with('a'), "{e}");
        assert_eq!(
            kind(store.read_ranges(vec![(name("b"), 0..1), (name("a"), range)]).await),
            ErrorKind::Corrupt
        );
    }
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let backwards = 2..1;
    assert_eq!(kind(store.read(&name("a"), backwards.clone()).await), ErrorKind::Invalid);
    assert_eq!(kind(store.read_ranges(vec![(name("a"), backwards)]).await), ErrorKind::Invalid);
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
        if self.right && self.want.is_empty() { Ok(()) } else { Err("other bytes".into()) }
    }
}

fn rows(item: u64, shape: &[u64]) -> Layout {
    Layout::contiguous(item, shape).unwrap()
}

async fn wanted_elements_land_and_nothing_else_changes(store: Arc<dyn Store>) {
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
            Part { source: stored.narrow(&want), into: into_a.pop().unwrap() },
            Part { source: stored.narrow(&last), into: into_b.pop().unwrap() },
        ];
        let check = if checked { Equals::boxed(bytes.slice(3000..)) } else { None };
        let reads = vec![RecordRead { name: name("a"), record: record.clone(), parts, check }];
        let stats = store.read_into(reads, Progress::none()).await.unwrap();
        assert_eq!(stats.bytes_needed, 40 * 20 + 128);
        assert!(stats.bytes_read >= stats.bytes_needed && stats.bytes_read <= 64 * 128);
        assert!(a.is_free() && b.is_free(), "regions are given back");
        let (a, b) = (a.into_vec::<u8>(), b.into_vec::<u8>());
        assert_eq!(b, bytes[3000 + 63 * 128..]);
        for (i, got) in a.iter().enumerate() {
            let (r, c) = (i / 22, i % 22);
            let inside = (3..43).contains(&r) && (1..21).contains(&c);
            let want = if inside { bytes[3000 + (r + 2) * 128 + c + 9] } else { 0 };
            assert_eq!(*got, want, "row {r}, column {c}");
        }
    }
}

async fn a_failed_check_names_the_record(store: Arc<dyn Store>) {
    let bytes = pattern(10_000, 4);
    committed(&store, "one", IfExists::Refuse, &[("a", bytes.clone())]).await;
    for (good, of) in [(true, bytes.slice(100..9_000)), (false, bytes.slice(99..8_999))] {
        let (target, into) = Target::bytes(10);
        let source = rows(1, &[8_900]).narrow(&Region::new([50], [10]));
        let parts = vec![Part { source, into }];
        let reads = vec![RecordRead { name: name("a"), record: 100..9_000, parts, check: Equals::boxed(of) }];
        let outcome = store.read_into(reads, Progress::none()).await;
        assert!(target.is_free());
        if good {
            assert_eq!(outcome.unwrap().bytes_read, 8_900);
            assert_eq!(target.into_vec::<u8>(), bytes[150..160]);
        } else {
            let e = outcome.unwrap_err();
            let StorageError::Check { name: n, range, .. } = &e else { panic!("{e}") };
            assert_eq!((n.as_str(), range), ("a", &(100..9_000)));
        }
    }
}

async fn parts_that_do_not_fit_are_refused(store: Arc<dyn Store>) {
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
        let reads =
            vec![RecordRead { name: name("a"), record, parts: vec![Part { source, into }], check: None }];
        assert_eq!(kind(store.read_into(reads, Progress::none()).await), want);
        assert!(target.is_free());
    }
}

/// Blocks, said to be so many bytes.
struct Blocks(Length, Vec<io::Result<Bytes>>);

impl Extent for Blocks {
    fn length(&self) -> Length {
        self.0
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        (!self.1.is_empty()).then(|| self.1.remove(0))
    }
}

/// A block of so many bytes that is made when it is asked for. The receipt is what was made.
struct Made(Length, Option<Bytes>, usize);

impl Made {
    fn boxed(length: Length, bytes: &Bytes) -> Box<dyn Extent> {
        Box::new(Self(length, Some(bytes.clone()), 0))
    }
}

impl Extent for Made {
    fn length(&self) -> Length {
        self.0
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.1.take()?;
        self.2 += block.len();
        Some(Ok(block))
    }

    fn receipt(&mut self) -> Bytes {
        format!("{} bytes", self.2).into()
    }
}

/// Where extents of these lengths lie, and what comes back for them.
fn receipts(lengths: impl IntoIterator<Item = usize>) -> Vec<WrittenExtent> {
    let mut at = 0;
    let one = |len: usize| {
        let start = at;
        at += len as u64;
        WrittenExtent { range: start..at, receipt: format!("{len} bytes").into() }
    };
    lengths.into_iter().map(one).collect()
}

async fn receipts_come_back_in_order(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    // Long enough for several threads, and empty ones between.
    let lengths =
        |file: usize| (0..40).map(move |i| if i % 7 == 3 { 0 } else { ((i * 61 + file * 7) % 40) << 15 });
    let bodies = (0..3).map(|file| {
        let made = |len: usize| Made::boxed(Length::Exact(len as u64), &pattern(len, file));
        FileBody::new(name(&format!("f{file}")), lengths(file).map(made).collect())
    });
    let written = transaction.write(bodies.collect(), Durability::Process, Progress::none()).await.unwrap();
    for (file, w) in written.iter().enumerate() {
        let bytes = lengths(file).sum::<usize>() as u64;
        assert_eq!((w.name.as_str(), w.bytes), (format!("f{file}").as_str(), bytes));
        assert_eq!(w.extents, receipts(lengths(file)));
    }
    assert_eq!(transaction.written().await.unwrap(), entries(&written));
    transaction.commit(Some(record()), &entries(&written), Durability::Process).await.unwrap();
}

async fn a_file_of_unknown_length_is_as_long_as_what_was_given(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let lengths = [5_000_000, 0, 100, 2_500_000, 7];
    let bytes: Vec<Bytes> = lengths.iter().map(|len| pattern(*len, 3)).collect();
    let all: Bytes = bytes.concat().into();
    // Beside extents whose length is known; `at_most` may be far too much.
    let unknown = |i: usize| match i {
        2 => Length::Exact(100),
        i => Length::Unknown { at_most: (lengths[i] as u64) << (10 * i) },
    };
    let extents = bytes.iter().enumerate().map(|(i, b)| Made::boxed(unknown(i), b)).collect();
    let files = vec![FileBody::new(name("packed"), extents), file("plain", &all)];
    let written = transaction.write(files, Durability::Machine, Progress::none()).await.unwrap();
    assert_eq!((written[0].bytes, written[1].bytes), (all.len() as u64, all.len() as u64));
    assert_eq!(written[0].extents, receipts(lengths));
    transaction.commit(Some(record()), &entries(&written), Durability::Machine).await.unwrap();
    assert_eq!(store.len(&name("packed")).await.unwrap(), Some(all.len() as u64));
    assert_eq!(store.read(&name("packed"), 0..all.len() as u64).await.unwrap(), all);
}

async fn a_copy_is_the_file_it_is_of(store: Arc<dyn Store>, other: Arc<dyn Store>) {
    let (large, small) = (pattern(20_000_000, 5), pattern(10, 6));
    committed(&other, "one", IfExists::Refuse, &[("d/a", large.clone()), ("empty", Bytes::new())]).await;
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let copy = |to: &str, of: &str| FileBody::copy_of(name(to), Arc::clone(&other), name(of));
    let files = vec![copy("e/b", "d/a"), file("own", &small), copy("none", "empty")];
    let written = transaction.write(files, Durability::Machine, Progress::none()).await.unwrap();
    let want =
        [("e/b", 20_000_000), ("own", 10), ("none", 0)].map(|(n, bytes)| Entry { name: name(n), bytes });
    assert_eq!(entries(&written), want);
    let missing = vec![copy("c", "nothing")];
    let e = transaction.write(missing, Durability::Process, Progress::none()).await;
    assert_eq!(kind(e), ErrorKind::NotFound);
    transaction.commit(Some(record()), &entries(&written), Durability::Machine).await.unwrap();
    assert_eq!(store.read(&name("e/b"), 0..20_000_000).await.unwrap(), large);
    // What it is a copy of goes; the copy stays.
    other.remove(&[name("d/a")]).await.unwrap();
    assert_eq!(store.read(&name("e/b"), 0..20_000_000).await.unwrap(), large);
}

async fn a_version_may_have_no_record(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let files = vec![file("b", &pattern(10, 1)), file("a", &pattern(20, 2))];
    let written = transaction.write(files, Durability::Process, Progress::none()).await.unwrap();
    transaction.commit(None, &entries(&written), Durability::Machine).await.unwrap();
    assert_eq!(names(&store).await, ["a", "b"]);
}

async fn an_extent_of_another_length_than_promised_is_an_error(store: Arc<dyn Store>) {
    let bytes = pattern(100, 6);
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let unknown = |at_most| Length::Unknown { at_most };
    let wrong = [(100, 99), (100, 0), (99, 100), (0, 1)].map(|(says, len)| (Length::Exact(says), len));
    for (i, (says, len)) in wrong.into_iter().chain([(unknown(99), 100), (unknown(0), 1)]).enumerate() {
        let blocks = vec![Ok(bytes.slice(..len / 2)), Ok(bytes.slice(len / 2..len))];
        let extents: Vec<Box<dyn Extent>> = vec![Box::new(bytes.clone()), Box::new(Blocks(says, blocks))];
        let body = FileBody::new(name(&format!("f{i}")), extents);
        let e = transaction.write(vec![body], Durability::Process, Progress::none()).await.unwrap_err();
        let StorageError::ExtentLength { name: n, offset, want, .. } = &e else { panic!("{e}") };
        assert_eq!((n.as_str(), *offset, *want), (format!("f{i}").as_str(), 100, says));
    }
    let blocks = vec![Ok(bytes.clone()), Err(io::Error::other("no more memory"))];
    let body = FileBody::new(name("g"), vec![Box::new(Blocks(Length::Exact(200), blocks))]);
    let e = transaction.write(vec![body], Durability::Process, Progress::none()).await.unwrap_err();
    let StorageError::Source { name: n, offset, source } = &e else { panic!("{e}") };
    assert_eq!((n.as_str(), *offset, source.to_string().as_str()), ("g", 100, "no more memory"));
    let twice = vec![file("twice", &bytes), file("twice", &bytes)];
    assert_eq!(
        kind(transaction.write(twice, Durability::Process, Progress::none()).await),
        ErrorKind::Invalid
    );
    transaction.rollback().await.unwrap();
}

async fn a_place_that_holds_something_is_refused(store: Arc<dyn Store>) {
    let late = store.begin("late", IfExists::Refuse).await.unwrap();
    committed(&store, "one", IfExists::Refuse, &[("a", pattern(10, 7))]).await;
    assert_eq!(kind(store.begin("two", IfExists::Refuse).await), ErrorKind::Exists);
    // It was filled after the transaction had begun.
    late.write(vec![file("b", &pattern(10, 8))], Durability::Process, Progress::none()).await.unwrap();
    let record = (name("record"), Bytes::from_static(b"late"));
    assert_eq!(kind(late.commit(Some(record), &[], Durability::Process).await), ErrorKind::Exists);
    late.rollback().await.unwrap();
    assert_eq!(names(&store).await, ["a", "record"]);
    assert_eq!(store.read(&name("record"), 0..4).await.unwrap(), "done");
    assert!(store.leftovers().await.unwrap().is_empty());
}

async fn a_version_replaces_the_named_files_of_the_old_one(store: Arc<dyn Store>) {
    let (old, new) = (pattern(1_000, 9), pattern(2_000, 10));
    committed(&store, "one", replace(&[]), &[("a", old.clone()), ("dir/b", old.clone())]).await;
    let others = [("dir/other", old.slice(..10)), ("other", old.slice(..20))];
    committed(&store, "two", replace(&["record", "nothing"]), &others).await;
    assert_eq!(names(&store).await, ["a", "dir/b", "dir/other", "other", "record"]);
    let transaction = store.begin("three", replace(&["a", "dir/b", "record"])).await.unwrap();
    transaction.write(vec![file("a", &new)], Durability::Machine, Progress::none()).await.unwrap();
    assert_eq!(names(&store).await, ["a", "dir/b", "dir/other", "other", "record"]);
    assert_eq!(store.read(&name("a"), 0..1_000).await.unwrap(), old);
    transaction
        .commit(Some((name("record"), Bytes::from_static(b"new"))), &[], Durability::Machine)
        .await
        .unwrap();
    assert_eq!(names(&store).await, ["a", "dir/other", "other", "record"]);
    assert_eq!(store.read(&name("a"), 0..2_000).await.unwrap(), new);
    assert_eq!(store.read(&name("dir/other"), 0..10).await.unwrap(), old.slice(..10));
    store.finish_replacing("three", &[name("a")]).await.unwrap();
    assert_eq!(store.read(&name("a"), 0..2_000).await.unwrap(), new, "nothing is left to do");
    assert!(store.leftovers().await.unwrap().is_empty());
}

async fn a_pinned_version_never_mixes_with_the_next(store: Arc<dyn Store>) {
    let (old, new) = (pattern(1_000, 15), pattern(1_000, 16));
    committed(&store, "one", IfExists::Refuse, &[("a", old.clone()), ("d/b", old.clone())]).await;
    let Some(pinned) = store.pinned().await.unwrap() else { return };
    assert_eq!(pinned.url(), store.url());
    assert_eq!(names(&pinned).await, ["a", "d/b", "record"]);
    assert_eq!(pinned.read(&name("d/b"), 0..1_000).await.unwrap(), old);
    committed(&store, "two", replace(&["a", "d/b", "record"]), &[("a", new.clone())]).await;
    match pinned.read(&name("a"), 0..1_000).await {
        Ok(bytes) => assert_eq!(bytes, old),
        Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound),
    }
    assert!(pinned.len(&name("a")).await.unwrap().is_none_or(|n| n == 1_000));
    assert_eq!(store.read(&name("a"), 0..1_000).await.unwrap(), new);
}

async fn an_abandoned_version_leaves_nothing(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let files = vec![file("a", &pattern(10, 11)), file("b/c/d", &pattern(10, 11))];
    transaction.write(files, Durability::Process, Progress::none()).await.unwrap();
    transaction.rollback().await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(names(&store).await.is_empty() && store.leftovers().await.unwrap().is_empty());
    // After that the place is as free as before.
    committed(&store, "two", IfExists::Refuse, &[("a", pattern(10, 12))]).await;
}

async fn many_ranks_write_one_version(store: Arc<dyn Store>) {
    let first = store.begin("together", IfExists::Refuse).await.unwrap();
    let place = first.place();
    let joined = join_all((1..8).map(|_| store.join("together", place.as_deref()))).await;
    let transactions: Vec<Arc<dyn Transaction>> =
        [Ok(first)].into_iter().chain(joined).map(Result::unwrap).collect();
    let writes = transactions.iter().enumerate().map(|(rank, transaction)| {
        let files = (0..3).map(|f| file(&format!("__{rank}_{f}"), &pattern(70_000, rank * 3 + f))).collect();
        transaction.write(files, Durability::Machine, Progress::none())
    });
    let written: Vec<Written> = join_all(writes).await.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(written.len(), 24);
    transactions[0].commit(Some(record()), &entries(&written), Durability::Machine).await.unwrap();
    drop(transactions);
    assert_eq!(names(&store).await.len(), 25);
    for rank in 0..8 {
        for f in 0..3 {
            let got = store.read(&name(&format!("__{rank}_{f}")), 0..70_000).await.unwrap();
            assert_eq!(got, pattern(70_000, rank * 3 + f));
        }
    }
}

async fn a_version_that_lacks_a_file_is_not_committed(store: Arc<dyn Store>) {
    let (old, new) = (pattern(100, 17), pattern(200, 18));
    committed(&store, "old", IfExists::Refuse, &[("a", old.clone()), ("d/b", old.clone())]).await;
    // Missing, too short, too long, below a directory that is there and one that is not, what is a directory.
    let wrong = [("c", 200), ("a", 201), ("a", 199), ("d/b", 0), ("d/c", 200), ("e/f/g", 200), ("d", 0)];
    for (i, (file_name, bytes)) in wrong.into_iter().enumerate() {
        let transaction = store.begin(&format!("new-{i}"), replace(&["a", "d/b", "record"])).await.unwrap();
        let files = vec![file("a", &new), file("d/b", &new)];
        let written = transaction.write(files, Durability::Process, Progress::none()).await.unwrap();
        let mut expected = entries(&written);
        expected.push(Entry { name: name(file_name), bytes });
        let new = (name("record"), Bytes::from_static(b"new"));
        let e = transaction.commit(Some(new), &expected, Durability::Process).await.unwrap_err();
        assert!(matches!(e, StorageError::Incomplete { .. }), "{file_name}: {e}");
        assert!(e.to_string().contains(file_name), "{e}");
        assert_eq!(names(&store).await, ["a", "d/b", "record"]);
        assert_eq!(store.read(&name("a"), 0..100).await.unwrap(), old, "the old version is whole");
        assert_eq!(store.read(&name("record"), 0..4).await.unwrap(), "done");
        transaction.rollback().await.unwrap();
    }
    assert!(store.leftovers().await.unwrap().is_empty());
}

async fn what_was_not_committed_shows_and_can_be_removed(store: Arc<dyn Store>) {
    let transaction = store.begin("dead", IfExists::Refuse).await.unwrap();
    transaction
        .write(vec![file("a", &pattern(10, 13))], Durability::Process, Progress::none())
        .await
        .unwrap();
    drop(transaction);
    // A store that keeps what is staged where nobody can find it may say that there is nothing.
    for left in store.leftovers().await.unwrap() {
        assert_eq!(left.attempt, "dead");
    }
    store.remove_leftover("dead").await.unwrap();
    store.remove_leftover("dead").await.unwrap();
    assert!(store.leftovers().await.unwrap().is_empty());
}

async fn removed_files_are_gone(store: Arc<dyn Store>) {
    let b = pattern(10, 14);
    committed(&store, "one", IfExists::Refuse, &[("a", b.clone()), ("d/b", b.clone()), ("c", b)]).await;
    store.remove(&[name("a"), name("d/b"), name("nothing"), name("c/nothing")]).await.unwrap();
    assert_eq!(names(&store).await, ["c", "record"]);
    assert!(!store.exists(&name("d/b")).await.unwrap());
}
