//! What a failed save leaves: one error for all ranks, and no files.

use crate::{Result, StrategyError};
use bytes::Bytes;
use futures_executor::block_on;
use reshard_comm::CommError;
use reshard_model::{Data, FlatStateDict, Path, Sharded, ShardedTensor};
use reshard_storage::{Name, Store, StoreExt};
use std::{collections::BTreeMap, sync::Arc};

pub(super) fn files(store: &Arc<dyn Store>) -> BTreeMap<Name, Bytes> {
    block_on(async {
        let mut out = BTreeMap::new();
        for entry in store.files().await.unwrap() {
            let bytes = store.read(&entry.name, 0..entry.bytes).await.unwrap();
            out.insert(entry.name, bytes);
        }
        out
    })
}

/// Where the elements of leaves with buffers are.
pub(super) fn addresses(flat: &FlatStateDict) -> BTreeMap<Path, usize> {
    flat.iter()
        .filter_map(|(path, leaf)| match leaf {
            Sharded::Tensor(ShardedTensor {
                data: Data::Host(t),
                ..
            }) => Some((path.clone(), t.buffer_id())),
            _ => None,
        })
        .collect()
}

/// Every rank got an error, and the same one.
pub(super) fn failed<T>(outcomes: Vec<Result<T>>) -> CommError {
    let mut all = outcomes.into_iter().map(|o| match o {
        Ok(_) => panic!("a rank went on where another failed"),
        Err(StrategyError::Comm(e)) => e,
        Err(e) => panic!("a rank kept its error for itself: {e}"),
    });
    let first = all.next().unwrap();
    assert!(
        all.all(|e| e.to_string() == first.to_string()),
        "every rank gets the same"
    );
    first
}

pub(super) fn nothing_is_left(store: &Arc<dyn Store>) {
    assert!(
        files(store).is_empty(),
        "files of a failed save are visible"
    );
    assert_eq!(
        block_on(store.leftovers()).unwrap(),
        [],
        "a failed save left its transaction"
    );
}
