//! The rules of stores. `reads` has those of reading, `writes` those of files, `versions` those of places that keep versions side by
//! side; here are those of other places and versions.

mod reads;
mod sample;
mod versions;
mod writes;

use crate::{
    Depth, Durability, Entry, IfExists, Progress, Result, StorageError, Store, StoreExt,
    Transaction, Written,
};
use bytes::Bytes;
use futures_util::future::join_all;
use reshard_model::{ErrorKind, testkit::Rule};
use sample::{committed, entries, file, kind, name, names, pattern, record, replace};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
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
/// When a rule is broken. The text has the name of the rule, and the item whose documentation has it.
pub async fn store_contract(make: impl Fn() -> Arc<dyn Store>) {
    let make: Make<'_> = &make;
    rules!(make;
        "places.nothing_is_empty" at "Store": a_place_that_does_not_exist_is_empty,
        "places.a_folder_is_listed_alone" at "Store::list": a_folder_is_listed_alone,
        "reads.ranges_are_exact" at "Store::read": reads::ranges_are_exact,
        "reads.past_the_end_is_short" at "Store::read": reads::a_range_past_the_end_is_short,
        "reads.backwards_range_is_invalid" at "Store::read": reads::a_backwards_range_is_invalid,
        "reads.whole_if_there" at "Store::read_all": reads::a_file_is_read_whole_if_it_is_there,
        "reads.elements_land" at "Store::read_into": reads::wanted_elements_land_and_nothing_else_changes,
        "reads.a_failed_check_is_named" at "Store::read_into": reads::a_failed_check_names_the_record,
        "reads.parts_fit" at "Store::read_into": reads::parts_that_do_not_fit_are_refused,
        "writes.lengths_are_promised" at "Transaction::write": writes::an_extent_of_another_length_than_promised_is_an_error,
        "writes.a_name_is_written_once" at "Transaction::write": writes::a_name_is_written_once,
        "writes.receipts_come_back" at "Transaction::write": writes::receipts_come_back_in_order,
        "writes.unknown_lengths" at "Length::Unknown": writes::a_file_of_unknown_length_is_as_long_as_what_was_given,
        "places.what_holds_something_is_refused" at "IfExists::Refuse": a_place_that_holds_something_is_refused,
        "versions.nobody_joins_what_nobody_began" at "Store::join": nobody_joins_what_nobody_began,
        "versions.rollback_leaves_nothing" at "Transaction::rollback": an_abandoned_version_leaves_nothing,
        "versions.many_ranks_write_one" at "Store::join": many_ranks_write_one_version,
        "places.removed_files_are_gone" at "Store::remove": removed_files_are_gone,
    );
    rule("writes.copies", "Source::CopyOf")
        .check_async(writes::a_copy_is_the_file_it_is_of(make(), make()))
        .await;
    match versions::are_side_by_side(make()).await {
        true => side_by_side(make).await,
        false => one_at_a_time(make).await,
    }
}

type Make<'m> = &'m dyn Fn() -> Arc<dyn Store>;

fn rule(name: &'static str, written: &'static str) -> Rule {
    let of = "the store";
    Rule { of, name, written }
}

/// Checks rules, each with a store of its own: its name, the item whose documentation has it, and what checks it.
macro_rules! rules {
    ($make:ident; $($name:literal at $written:literal: $check:path),+ $(,)?) => {
        $(rule($name, $written).check_async($check($make())).await;)+
    };
}
use rules;

/// The rules of places that have one version at a time. A new one is built where nobody sees it.
async fn one_at_a_time(make: Make<'_>) {
    rules!(make;
        "commit.shows_all_at_once" at "Transaction::commit": what_is_written_is_seen_only_when_committed,
        "commit.without_a_record" at "Transaction::commit": writes::a_version_may_have_no_record,
        "commit.replaces_the_named_files" at "IfExists::Replace": a_version_replaces_the_named_files_of_the_old_one,
        "commit.replaces_for_ranks_that_joined" at "IfExists::Replace": a_version_that_others_joined_replaces_them_too,
        "reads.pinned_versions_do_not_mix" at "Store::pinned": a_pinned_version_never_mixes_with_the_next,
        "commit.needs_all_files" at "Transaction::commit": a_version_that_lacks_a_file_is_not_committed,
        "leftovers.show_and_can_be_removed" at "Recovery": what_was_not_committed_shows_and_can_be_removed,
    );
}

/// The rules of places that keep versions side by side, by what [`Transaction::folder`] says.
async fn side_by_side(make: Make<'_>) {
    rules!(make;
        "folders.all_ranks_write_into_one" at "Transaction::folder": versions::all_ranks_write_into_the_folder_of_the_attempt,
        "folders.only_the_record_is_replaced" at "Transaction::folder": versions::only_the_commit_record_is_replaced,
        "folders.the_first_of_two_stays" at "Transaction::commit": versions::of_two_versions_that_replace_one_the_first_stays,
        "folders.outside_is_created_once" at "Transaction::folder": versions::a_name_outside_of_the_folder_is_created_once,
        "commit.needs_all_files" at "Transaction::commit": versions::a_version_without_its_files_or_its_record_is_not_committed,
        "leftovers.are_in_nobodys_way" at "Recovery": versions::what_a_killed_attempt_left_is_in_nobodys_way,
    );
}

async fn a_place_that_does_not_exist_is_empty(store: Arc<dyn Store>) {
    assert!(names(&store).await.is_empty());
    assert_eq!(store.len(&name("a")).await.unwrap(), None);
    assert!(!store.exists(&name("a")).await.unwrap());
    assert_eq!(
        kind(store.read(&name("a"), 0..1).await),
        ErrorKind::NotFound
    );
    assert_eq!(
        kind(store.read_ranges(vec![(name("a"), 0..1)]).await),
        ErrorKind::NotFound
    );
    assert!(store.leftovers().await.unwrap().is_empty());
    store.remove(&[name("a")]).await.unwrap();
    assert!(store.read_ranges(Vec::new()).await.unwrap().0.is_empty());
    assert_eq!(
        store
            .read_into(Vec::new(), Progress::none())
            .await
            .unwrap()
            .requests,
        0
    );
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
    transaction
        .write(bodies, Durability::Machine, progress)
        .await
        .unwrap();
    assert_eq!(moved.load(Ordering::Relaxed), 100_000);
    assert!(names(&store).await.is_empty());
    assert_eq!(store.len(&name("b/c")).await.unwrap(), None);
    transaction
        .commit(Some(record()), &[], Durability::Machine)
        .await
        .unwrap();
    assert_eq!(names(&store).await, ["a", "b/c", "record"]);
    let top = store.top().await.unwrap();
    let files: Vec<_> = top
        .files
        .iter()
        .map(|e| (e.name.as_str(), e.bytes))
        .collect();
    assert_eq!(files, [("a", 0), ("record", 4)]);
    assert_eq!(top.folders, [name("b")]);
    assert_eq!(store.len(&name("b/c")).await.unwrap(), Some(100_000));
    let directory = store.len(&name("b")).await;
    assert!(
        matches!(directory, Ok(None) | Err(StorageError::NoFile { .. })),
        "a directory is no file: {directory:?}"
    );
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
        (
            None,
            Depth::All,
            vec!["a", "b/c", "b/d/e", "b/d/f/g", "bb/h", "record"],
            vec![],
        ),
        (Some("b"), Depth::One, vec!["b/c"], vec!["b/d"]),
        (
            Some("b"),
            Depth::All,
            vec!["b/c", "b/d/e", "b/d/f/g"],
            vec![],
        ),
        (Some("b/d"), Depth::One, vec!["b/d/e"], vec!["b/d/f"]),
        // A file is no folder, and what is not there holds nothing.
        (Some("a"), Depth::All, vec![], vec![]),
        (Some("b/none"), Depth::One, vec![], vec![]),
    ] {
        let found = store.list(below.map(name).as_ref(), depth).await.unwrap();
        assert_eq!(
            found.names().collect::<Vec<_>>(),
            files,
            "{below:?} {depth:?}"
        );
        assert_eq!(
            found.folders,
            folders.into_iter().map(name).collect::<Vec<_>>(),
            "{below:?} {depth:?}"
        );
    }
}

async fn a_place_that_holds_something_is_refused(store: Arc<dyn Store>) {
    let late = store.begin("late", IfExists::Refuse).await.unwrap();
    committed(&store, "one", IfExists::Refuse, &[("a", pattern(10, 7))]).await;
    assert_eq!(
        kind(store.begin("two", IfExists::Refuse).await),
        ErrorKind::Exists
    );
    // It was filled after the transaction had begun.
    late.write(
        vec![file("b", &pattern(10, 8))],
        Durability::Process,
        Progress::none(),
    )
    .await
    .unwrap();
    let record = (name("record"), Bytes::from_static(b"late"));
    assert_eq!(
        kind(late.commit(Some(record), &[], Durability::Process).await),
        ErrorKind::Exists
    );
    late.rollback().await.unwrap();
    assert_eq!(names(&store).await, ["a", "record"]);
    assert_eq!(store.read(&name("record"), 0..4).await.unwrap(), "done");
    assert!(store.leftovers().await.unwrap().is_empty());
}

async fn a_version_replaces_the_named_files_of_the_old_one(store: Arc<dyn Store>) {
    let (old, new) = (pattern(1_000, 9), pattern(2_000, 10));
    committed(
        &store,
        "one",
        replace(&[]),
        &[("a", old.clone()), ("dir/b", old.clone())],
    )
    .await;

    // Names that are to be replaced need not be there, and files of others may join in between.
    let others = [("dir/other", old.slice(..10)), ("other", old.slice(..20))];
    committed(&store, "two", replace(&["record", "nothing"]), &others).await;
    assert_eq!(
        names(&store).await,
        ["a", "dir/b", "dir/other", "other", "record"]
    );

    // Until the commit every reader sees the old version.
    let transaction = store
        .begin("three", replace(&["a", "dir/b", "record"]))
        .await
        .unwrap();
    transaction
        .write(vec![file("a", &new)], Durability::Machine, Progress::none())
        .await
        .unwrap();
    assert_eq!(
        names(&store).await,
        ["a", "dir/b", "dir/other", "other", "record"]
    );
    assert_eq!(store.read(&name("a"), 0..1_000).await.unwrap(), old);
    transaction
        .commit(
            Some((name("record"), Bytes::from_static(b"new"))),
            &[],
            Durability::Machine,
        )
        .await
        .unwrap();

    // Of the named files only those that the new version has are left. The others' files stay.
    assert_eq!(names(&store).await, ["a", "dir/other", "other", "record"]);
    assert_eq!(store.read(&name("a"), 0..2_000).await.unwrap(), new);
    assert_eq!(
        store.read(&name("dir/other"), 0..10).await.unwrap(),
        old.slice(..10)
    );
    assert!(store.leftovers().await.unwrap().is_empty());
}

async fn a_version_that_others_joined_replaces_them_too(store: Arc<dyn Store>) {
    let (old, new) = (pattern(1_000, 13), pattern(2_000, 14));
    let three = [("a", old.clone()), ("b", old.clone()), ("c", old)];
    committed(&store, "one", IfExists::Refuse, &three).await;
    let begun = store
        .begin("two", replace(&["a", "b", "c", "record"]))
        .await
        .unwrap();
    begun
        .write(vec![file("a", &new)], Durability::Process, Progress::none())
        .await
        .unwrap();
    // Joining changes neither what is written nor what is replaced.
    let joined = store.join("two", begun.place().as_deref()).await.unwrap();
    joined
        .write(vec![file("b", &new)], Durability::Process, Progress::none())
        .await
        .unwrap();
    let files = ["a", "b"].map(|n| Entry {
        name: name(n),
        bytes: 2_000,
    });
    assert_eq!(
        begun.written().await.unwrap(),
        files,
        "what was written before and after another rank joined"
    );
    begun
        .commit(Some(record()), &files, Durability::Process)
        .await
        .unwrap();
    assert_eq!(
        names(&store).await,
        ["a", "b", "record"],
        "the version names a, b, c and record as replaced"
    );
    for file in ["a", "b"] {
        assert_eq!(
            store.read(&name(file), 0..2_000).await.unwrap(),
            new,
            "{file}"
        );
    }
}

async fn nobody_joins_what_nobody_began(store: Arc<dyn Store>) {
    let outcome = store.join("nothing", None).await;
    assert!(
        matches!(outcome, Err(StorageError::NotJoined { .. })),
        "joined what nobody began: {outcome:?}"
    );
    assert!(names(&store).await.is_empty() && store.leftovers().await.unwrap().is_empty());
}

/// Whether an error says that a file is gone, or that its whole version is.
fn gone(e: &StorageError) -> bool {
    e.kind() == ErrorKind::NotFound || matches!(e, StorageError::Replaced { .. })
}

async fn a_pinned_version_never_mixes_with_the_next(store: Arc<dyn Store>) {
    let (old, new) = (pattern(1_000, 15), pattern(1_000, 16));
    committed(
        &store,
        "one",
        IfExists::Refuse,
        &[("a", old.clone()), ("d/b", old.clone())],
    )
    .await;
    let Some(pinned) = store.pinned().await.unwrap() else {
        return;
    };
    assert_eq!(pinned.url(), store.url());
    assert_eq!(names(&pinned).await, ["a", "d/b", "record"]);
    assert_eq!(pinned.read(&name("d/b"), 0..1_000).await.unwrap(), old);
    committed(
        &store,
        "two",
        replace(&["a", "d/b", "record"]),
        &[("a", new.clone())],
    )
    .await;
    match pinned.read(&name("a"), 0..1_000).await {
        Ok(bytes) => assert_eq!(bytes, old),
        Err(e) => assert!(gone(&e), "{e}"),
    }
    match pinned.len(&name("a")).await {
        Ok(len) => assert!(len.is_none_or(|n| n == 1_000)),
        Err(e) => assert!(gone(&e), "{e}"),
    }
    assert_eq!(store.read(&name("a"), 0..1_000).await.unwrap(), new);
}

async fn an_abandoned_version_leaves_nothing(store: Arc<dyn Store>) {
    let transaction = store.begin("one", IfExists::Refuse).await.unwrap();
    let files = vec![file("a", &pattern(10, 11)), file("b/c/d", &pattern(10, 11))];
    transaction
        .write(files, Durability::Process, Progress::none())
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(names(&store).await.is_empty() && store.leftovers().await.unwrap().is_empty());
    // After that the place is as free as before.
    committed(&store, "two", IfExists::Refuse, &[("a", pattern(10, 12))]).await;
}

async fn many_ranks_write_one_version(store: Arc<dyn Store>) {
    // One rank begins, and the others join by the attempt and its place, as on other machines.
    let first = store.begin("together", IfExists::Refuse).await.unwrap();
    let place = first.place();
    let joined = join_all((1..8).map(|_| store.join("together", place.as_deref()))).await;
    let transactions: Vec<Arc<dyn Transaction>> = [Ok(first)]
        .into_iter()
        .chain(joined)
        .map(Result::unwrap)
        .collect();
    let writes = transactions.iter().enumerate().map(|(rank, transaction)| {
        let files = (0..3)
            .map(|f| file(&format!("__{rank}_{f}"), &pattern(70_000, rank * 3 + f)))
            .collect();
        transaction.write(files, Durability::Machine, Progress::none())
    });
    let written: Vec<Written> = join_all(writes)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    assert_eq!(written.len(), 24);

    // One commit makes the files of all ranks visible.
    transactions[0]
        .commit(Some(record()), &entries(&written), Durability::Machine)
        .await
        .unwrap();
    drop(transactions);
    assert_eq!(names(&store).await.len(), 25);
    for rank in 0..8 {
        for f in 0..3 {
            let got = store
                .read(&name(&format!("__{rank}_{f}")), 0..70_000)
                .await
                .unwrap();
            assert_eq!(got, pattern(70_000, rank * 3 + f));
        }
    }
}

async fn a_version_that_lacks_a_file_is_not_committed(store: Arc<dyn Store>) {
    let (old, new) = (pattern(100, 17), pattern(200, 18));
    committed(
        &store,
        "old",
        IfExists::Refuse,
        &[("a", old.clone()), ("d/b", old.clone())],
    )
    .await;
    // Missing, too short, too long, below a directory that is there and one that is not, what is a directory.
    let wrong = [
        ("c", 200),
        ("a", 201),
        ("a", 199),
        ("d/b", 0),
        ("d/c", 200),
        ("e/f/g", 200),
        ("d", 0),
    ];
    for (i, (file_name, bytes)) in wrong.into_iter().enumerate() {
        let transaction = store
            .begin(&format!("new-{i}"), replace(&["a", "d/b", "record"]))
            .await
            .unwrap();
        let files = vec![file("a", &new), file("d/b", &new)];
        let written = transaction
            .write(files, Durability::Process, Progress::none())
            .await
            .unwrap();
        let mut expected = entries(&written);
        expected.push(Entry {
            name: name(file_name),
            bytes,
        });
        let new = (name("record"), Bytes::from_static(b"new"));
        let e = transaction
            .commit(Some(new), &expected, Durability::Process)
            .await
            .unwrap_err();
        assert!(
            matches!(e, StorageError::Incomplete { .. }),
            "{file_name}: {e}"
        );
        assert!(e.to_string().contains(file_name), "{e}");
        assert_eq!(names(&store).await, ["a", "d/b", "record"]);
        assert_eq!(
            store.read(&name("a"), 0..100).await.unwrap(),
            old,
            "the old version is whole"
        );
        assert_eq!(store.read(&name("record"), 0..4).await.unwrap(), "done");
        transaction.rollback().await.unwrap();
    }
    assert!(store.leftovers().await.unwrap().is_empty());
}

async fn what_was_not_committed_shows_and_can_be_removed(store: Arc<dyn Store>) {
    let transaction = store.begin("dead", IfExists::Refuse).await.unwrap();
    transaction
        .write(
            vec![file("a", &pattern(10, 13))],
            Durability::Process,
            Progress::none(),
        )
        .await
        .unwrap();
    drop(transaction);
    // A store that keeps what is staged where nobody can find it may say that there is nothing.
    for left in store.leftovers().await.unwrap() {
        assert_eq!(left.attempt, "dead");
        assert!(!left.replaced);
        store.finish_replacing(&left, &[name("a")]).await.unwrap();
        store.remove_leftover(&left).await.unwrap();
        store.remove_leftover(&left).await.unwrap();
    }
    assert!(store.leftovers().await.unwrap().is_empty());
}

async fn removed_files_are_gone(store: Arc<dyn Store>) {
    let b = pattern(10, 14);
    committed(
        &store,
        "one",
        IfExists::Refuse,
        &[("a", b.clone()), ("d/b", b.clone()), ("c", b)],
    )
    .await;
    store
        .remove(&[name("a"), name("d/b"), name("nothing"), name("c/nothing")])
        .await
        .unwrap();
    assert_eq!(names(&store).await, ["c", "record"]);
    assert!(!store.exists(&name("d/b")).await.unwrap());
}
