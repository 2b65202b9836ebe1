//! The rules of places that keep versions side by side, where nothing can be renamed.

use super::sample::{entries, file, kind, name, names, pattern, record, replace};
use crate::{
    Durability, Entry, IfExists, Name, Progress, StorageError, Store, StoreExt, Transaction,
};
use bytes::Bytes;
use reshard_model::ErrorKind;
use std::sync::Arc;

/// Whether a place keeps versions side by side. Nothing is left of the question.
pub(super) async fn are_side_by_side(store: Arc<dyn Store>) -> bool {
    let transaction = store.begin(&attempt(0), IfExists::Refuse).await.unwrap();
    let answer = transaction.folder().is_some();
    transaction.rollback().await.unwrap();
    answer
}

/// A name that saves give their attempts, so that a store may tell its folder from those of others.
fn attempt(n: usize) -> String {
    format!("1-1a2b3c4d5e6f7081-{n:x}")
}

fn inside(n: usize, file: &str) -> Name {
    name(&format!("{}/{file}", attempt(n)))
}

fn committing(bytes: &'static str) -> Option<(Name, Bytes)> {
    Some((name("record"), Bytes::from_static(bytes.as_bytes())))
}

async fn write(transaction: &Arc<dyn Transaction>, to: &Name, bytes: &Bytes) -> Vec<Entry> {
    let written = transaction
        .write(
            vec![file(to.as_str(), bytes)],
            Durability::Machine,
            Progress::none(),
        )
        .await
        .unwrap();
    entries(&written)
}

/// A version with one file in its folder.
async fn version(store: &Arc<dyn Store>, n: usize, if_exists: IfExists, bytes: &Bytes) {
    let transaction = store.begin(&attempt(n), if_exists).await.unwrap();
    let files = write(&transaction, &inside(n, "a"), bytes).await;
    let (record, _) = record();
    let committed = transaction.commit(
        Some((record, attempt(n).into())),
        &files,
        Durability::Machine,
    );
    committed.await.unwrap();
}

pub(super) async fn all_ranks_write_into_the_folder_of_the_attempt(store: Arc<dyn Store>) {
    let begun = store.begin(&attempt(1), IfExists::Refuse).await.unwrap();
    let joined = store
        .join(&attempt(1), begun.place().as_deref())
        .await
        .unwrap();
    assert_eq!(begun.folder(), Some(name(&attempt(1))));
    assert_eq!(joined.folder(), begun.folder());
    let mut files = write(&begun, &inside(1, "a"), &pattern(1_000, 1)).await;
    files.extend(write(&joined, &inside(1, "b/c"), &pattern(2_000, 2)).await);
    assert_eq!(begun.written().await.unwrap(), files);
    assert_eq!(
        begun.read(&inside(1, "a"), 0..1_000).await.unwrap(),
        pattern(1_000, 1)
    );
    assert!(!store.exists(&name("record")).await.unwrap());
    let committed = begun.commit(Some(record()), &files, Durability::Machine);
    committed.await.unwrap();
    let all = [inside(1, "a"), inside(1, "b/c"), name("record")];
    assert_eq!(names(&store).await, all.map(|n| n.to_string()));
    assert_eq!(
        store.read(&inside(1, "b/c"), 0..2_000).await.unwrap(),
        pattern(2_000, 2)
    );
    // To give a version up after it is committed is too late.
    for transaction in [begun, joined] {
        transaction.rollback().await.unwrap();
    }
    assert_eq!(names(&store).await.len(), 3);
}

pub(super) async fn only_the_commit_record_is_replaced(store: Arc<dyn Store>) {
    let (old, new) = (pattern(1_000, 3), pattern(1_000, 4));
    version(&store, 1, IfExists::Refuse, &old).await;
    assert_eq!(
        kind(store.begin(&attempt(2), IfExists::Refuse).await),
        ErrorKind::Exists
    );
    let replaced = [inside(1, "a").to_string(), "record".into()];
    let if_exists = replace(&replaced.each_ref().map(|n| &**n));
    let transaction = store.begin(&attempt(3), if_exists).await.unwrap();
    let files = write(&transaction, &inside(3, "a"), &new).await;
    let record = |store: Arc<dyn Store>| async move {
        store.read_all(&name("record"), 100).await.unwrap().unwrap()
    };
    assert_eq!(record(Arc::clone(&store)).await, attempt(1));
    let committed = transaction.commit(committing("new"), &files, Durability::Machine);
    committed.await.unwrap();
    assert_eq!(record(Arc::clone(&store)).await, "new");
    // Readers of the old version go on, until somebody removes its files.
    assert_eq!(store.read(&inside(1, "a"), 0..1_000).await.unwrap(), old);
    let left = store.leftovers().await.unwrap();
    let attempts: Vec<_> = left
        .iter()
        .map(|l| (&*l.attempt, l.bytes, l.replaced))
        .collect();
    assert_eq!(
        attempts,
        [(&*attempt(1), 1_000, false), (&*attempt(3), 1_000, false)]
    );
    store.remove_leftover(&left[0]).await.unwrap();
    assert_eq!(
        names(&store).await,
        [inside(3, "a").to_string(), "record".into()]
    );
    assert_eq!(store.read(&inside(3, "a"), 0..1_000).await.unwrap(), new);
}

pub(super) async fn of_two_versions_that_replace_one_the_first_stays(store: Arc<dyn Store>) {
    version(&store, 1, IfExists::Refuse, &pattern(10, 5)).await;
    let first = store
        .begin(&attempt(2), replace(&["record"]))
        .await
        .unwrap();
    let second = store
        .begin(&attempt(3), replace(&["record"]))
        .await
        .unwrap();
    let files = write(&first, &inside(2, "a"), &pattern(10, 6)).await;
    let others = write(&second, &inside(3, "a"), &pattern(10, 7)).await;
    let committed = first.commit(committing("first"), &files, Durability::Process);
    committed.await.unwrap();
    let late = second.commit(committing("second"), &others, Durability::Process);
    let e = late.await.unwrap_err();
    assert!(matches!(e, StorageError::Changed { .. }), "{e}");
    second.rollback().await.unwrap();
    assert_eq!(store.read(&name("record"), 0..5).await.unwrap(), "first");
    assert!(!store.exists(&inside(3, "a")).await.unwrap());
    assert!(store.exists(&inside(2, "a")).await.unwrap());
}

pub(super) async fn a_name_outside_of_the_folder_is_created_once(store: Arc<dyn Store>) {
    let (old, new) = (pattern(100, 8), pattern(100, 9));
    let transaction = store.begin(&attempt(1), IfExists::Refuse).await.unwrap();
    let files = write(&transaction, &name("b"), &old).await;
    let committed = transaction.commit(Some(record()), &files, Durability::Process);
    committed.await.unwrap();

    let transaction = store
        .begin(&attempt(2), replace(&["b", "record"]))
        .await
        .unwrap();
    let over = vec![file("b", &new)];
    let written = transaction.write(over, Durability::Process, Progress::none());
    assert_eq!(kind(written.await), ErrorKind::Unsupported);
    transaction.rollback().await.unwrap();
    assert_eq!(store.read(&name("b"), 0..100).await.unwrap(), old);

    // With the bytes that it has, it may stay. It does not belong to this attempt alone.
    let transaction = store
        .begin(&attempt(3), replace(&["b", "record"]))
        .await
        .unwrap();
    write(&transaction, &name("b"), &old).await;
    write(&transaction, &name("c"), &new).await;
    transaction.rollback().await.unwrap();
    assert_eq!(names(&store).await, ["b", "record"]);

    // What another attempt has put since may go again, so it does not count.
    let one = store.begin(&attempt(4), replace(&["record"])).await;
    let two = store.begin(&attempt(5), replace(&["record"])).await;
    let (one, two) = (one.unwrap(), two.unwrap());
    write(&one, &name("c"), &new).await;
    let same = vec![file("c", &new)];
    let written = two.write(same, Durability::Process, Progress::none());
    assert_eq!(kind(written.await), ErrorKind::Exists);
    two.rollback().await.unwrap();
    assert!(store.exists(&name("c")).await.unwrap());
    one.rollback().await.unwrap();
    assert_eq!(names(&store).await, ["b", "record"]);
}

pub(super) async fn a_version_without_its_files_or_its_record_is_not_committed(
    store: Arc<dyn Store>,
) {
    let old = pattern(10, 10);
    version(&store, 1, IfExists::Refuse, &old).await;
    for (n, file_name, bytes) in [(2, "b", 10), (3, "a", 9), (4, "a", 11)] {
        let transaction = store
            .begin(&attempt(n), replace(&["record"]))
            .await
            .unwrap();
        write(&transaction, &inside(n, "a"), &pattern(10, 11)).await;
        let expected = [Entry {
            name: inside(n, file_name),
            bytes,
        }];
        let committed = transaction.commit(committing("new"), &expected, Durability::Process);
        let e = committed.await.unwrap_err();
        assert!(matches!(e, StorageError::Incomplete { .. }), "{e}");
        transaction.rollback().await.unwrap();
    }
    let transaction = store
        .begin(&attempt(5), replace(&["record"]))
        .await
        .unwrap();
    let files = write(&transaction, &inside(5, "a"), &old).await;
    let committed = transaction.commit(None, &files, Durability::Process);
    assert_eq!(kind(committed.await), ErrorKind::Unsupported);
    transaction.rollback().await.unwrap();
    assert_eq!(
        names(&store).await,
        [inside(1, "a").to_string(), "record".into()]
    );
}

pub(super) async fn what_a_killed_attempt_left_is_in_nobodys_way(store: Arc<dyn Store>) {
    let killed = store.begin(&attempt(1), IfExists::Refuse).await.unwrap();
    write(&killed, &inside(1, "a"), &pattern(100, 12)).await;
    drop(killed);
    version(&store, 2, IfExists::Refuse, &pattern(10, 13)).await;
    let left = store.leftovers().await.unwrap();
    let of_killed = left.iter().find(|l| l.attempt == attempt(1));
    let of_killed = of_killed.unwrap();
    assert_eq!((of_killed.bytes, of_killed.replaced), (100, false));
    for _ in 0..2 {
        store.remove_leftover(of_killed).await.unwrap();
    }
    assert_eq!(
        names(&store).await,
        [inside(2, "a").to_string(), "record".into()]
    );
}
