//! Files of known and unknown lengths, and copies.

use super::sample::{committed, entries, file, kind, name, names, pattern, record};
use crate::{
    Durability, Entry, Extent, FileBody, IfExists, Length, Progress, StorageError, Store, StoreExt,
    WrittenExtent,
};
use bytes::Bytes;
use reshard_model::ErrorKind;
use std::{io, sync::Arc};

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

    fn has_crc32(&self) -> bool {
        true
    }

    /// Any number will do: stores only return it.
    fn crc32(&self) -> Option<u32> {
        Some(self.2 as u32)
    }
}

/// Where extents of these lengths lie, and what comes back for them.
fn receipts(lengths: impl IntoIterator<Item = usize>) -> Vec<WrittenExtent> {
    let mut at = 0;
    let one = |len: usize| {
        let start = at;
        at += len as u64;
        WrittenExtent {
            range: start..at,
            receipt: format!("{len} bytes").into(),
            crc32: Some(len as u32),
        }
    };
    lengths.into_iter().map(one).collect()
}

pub(super) async fn receipts_come_back_in_order(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    // Long enough for several threads, and empty ones between.
    let lengths = |file: usize| {
        (0..40).map(move |i| {
            if i % 7 == 3 {
                0
            } else {
                ((i * 61 + file * 7) % 40) << 15
            }
        })
    };
    let bodies = (0..3).map(|file| {
        let made = |len: usize| Made::boxed(Length::Exact(len as u64), &pattern(len, file));
        FileBody::new(name(&format!("f{file}")), lengths(file).map(made).collect())
    });
    let written = transaction
        .write(bodies.collect(), Durability::Process, Progress::none())
        .await
        .unwrap();
    for (file, w) in written.iter().enumerate() {
        let bytes = lengths(file).sum::<usize>() as u64;
        assert_eq!(
            (w.name.as_str(), w.bytes),
            (format!("f{file}").as_str(), bytes)
        );
        assert_eq!(w.extents, receipts(lengths(file)));
    }
    assert_eq!(transaction.written().await.unwrap(), entries(&written));
    transaction
        .commit(Some(record()), &entries(&written), Durability::Process)
        .await
        .unwrap();
}

pub(super) async fn a_file_of_unknown_length_is_as_long_as_what_was_given(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let lengths = [5_000_000, 0, 100, 2_500_000, 7];
    let bytes: Vec<Bytes> = lengths.iter().map(|len| pattern(*len, 3)).collect();
    let all: Bytes = bytes.concat().into();
    // Beside extents whose length is known; `at_most` may be far too much.
    let unknown = |i: usize| match i {
        2 => Length::Exact(100),
        i => Length::Unknown {
            at_most: (lengths[i] as u64) << (10 * i),
        },
    };
    let extents = bytes
        .iter()
        .enumerate()
        .map(|(i, b)| Made::boxed(unknown(i), b))
        .collect();
    let files = vec![FileBody::new(name("packed"), extents), file("plain", &all)];
    let written = transaction
        .write(files, Durability::Machine, Progress::none())
        .await
        .unwrap();
    assert_eq!(
        (written[0].bytes, written[1].bytes),
        (all.len() as u64, all.len() as u64)
    );
    assert_eq!(written[0].extents, receipts(lengths));
    transaction
        .commit(Some(record()), &entries(&written), Durability::Machine)
        .await
        .unwrap();
    assert_eq!(
        store.len(&name("packed")).await.unwrap(),
        Some(all.len() as u64)
    );
    assert_eq!(
        store
            .read(&name("packed"), 0..all.len() as u64)
            .await
            .unwrap(),
        all
    );
}

pub(super) async fn a_copy_is_the_file_it_is_of(store: Arc<dyn Store>, other: Arc<dyn Store>) {
    let (large, small) = (pattern(20_000_000, 5), pattern(10, 6));
    committed(
        &other,
        "one",
        IfExists::Refuse,
        &[("d/a", large.clone()), ("empty", Bytes::new())],
    )
    .await;
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let copy = |to: &str, of: &str| FileBody::copy_of(name(to), Arc::clone(&other), name(of));
    let files = vec![
        copy("e/b", "d/a"),
        file("own", &small),
        copy("none", "empty"),
    ];
    let written = transaction
        .write(files, Durability::Machine, Progress::none())
        .await
        .unwrap();
    let want = [("e/b", 20_000_000), ("own", 10), ("none", 0)].map(|(n, bytes)| Entry {
        name: name(n),
        bytes,
    });
    assert_eq!(entries(&written), want);
    let missing = vec![copy("c", "nothing")];
    let e = transaction
        .write(missing, Durability::Process, Progress::none())
        .await;
    assert_eq!(kind(e), ErrorKind::NotFound);
    transaction
        .commit(Some(record()), &entries(&written), Durability::Machine)
        .await
        .unwrap();
    assert_eq!(
        store.read(&name("e/b"), 0..20_000_000).await.unwrap(),
        large
    );
    // What it is a copy of goes; the copy stays.
    other.remove(&[name("d/a")]).await.unwrap();
    assert_eq!(
        store.read(&name("e/b"), 0..20_000_000).await.unwrap(),
        large
    );
}

pub(super) async fn a_version_may_have_no_record(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let files = vec![file("b", &pattern(10, 1)), file("a", &pattern(20, 2))];
    let written = transaction
        .write(files, Durability::Process, Progress::none())
        .await
        .unwrap();
    transaction
        .commit(None, &entries(&written), Durability::Machine)
        .await
        .unwrap();
    assert_eq!(names(&store).await, ["a", "b"]);
}

pub(super) async fn an_extent_of_another_length_than_promised_is_an_error(store: Arc<dyn Store>) {
    let bytes = pattern(100, 6);
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let unknown = |at_most| Length::Unknown { at_most };

    // Too few bytes and too many, also where there should be none, and more than an unknown length allows.
    let wrong =
        [(100, 99), (100, 0), (99, 100), (0, 1)].map(|(says, len)| (Length::Exact(says), len));
    for (i, (says, len)) in wrong
        .into_iter()
        .chain([(unknown(99), 100), (unknown(0), 1)])
        .enumerate()
    {
        let blocks = vec![Ok(bytes.slice(..len / 2)), Ok(bytes.slice(len / 2..len))];

        // The wrong extent is the second, so the error must tell its place in the file.
        let extents: Vec<Box<dyn Extent>> =
            vec![Box::new(bytes.clone()), Box::new(Blocks(says, blocks))];
        let body = FileBody::new(name(&format!("f{i}")), extents);
        let e = transaction
            .write(vec![body], Durability::Process, Progress::none())
            .await
            .unwrap_err();
        let StorageError::ExtentLength {
            name: n,
            offset,
            want,
            ..
        } = &e
        else {
            panic!("{e}")
        };
        assert_eq!(
            (n.as_str(), *offset, *want),
            (format!("f{i}").as_str(), 100, says)
        );
    }

    // An error of the source keeps its text, and tells how far the source had come.
    let blocks = vec![Ok(bytes.clone()), Err(io::Error::other("no more memory"))];
    let body = FileBody::new(
        name("g"),
        vec![Box::new(Blocks(Length::Exact(200), blocks))],
    );
    let e = transaction
        .write(vec![body], Durability::Process, Progress::none())
        .await
        .unwrap_err();
    let StorageError::Source {
        name: n,
        offset,
        source,
    } = &e
    else {
        panic!("{e}")
    };
    assert_eq!(
        (n.as_str(), *offset, source.to_string().as_str()),
        ("g", 100, "no more memory")
    );

    transaction.rollback().await.unwrap();
}

pub(super) async fn a_name_is_written_once(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let bytes = pattern(100, 6);
    let twice = vec![file("same", &bytes), file("same", &bytes)];
    let e = transaction
        .write(twice, Durability::Process, Progress::none())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    assert!(e.to_string().contains("same"), "it must name the file: {e}");
    transaction.rollback().await.unwrap();
}
