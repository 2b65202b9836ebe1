//! Which process goes on with the files of an attempt.

use bytes::Bytes;
use reshard::storage::{
    Durability, FileBody, Name, Progress, Result, StorageError, Store, Transaction,
};

/// Among the files of an attempt that another process has taken over. It stays there: whoever has begun the attempt may still run.
pub(super) const CLAIM: &str = ".reshard-taken-over";

/// No claim is longer.
const MOST: u64 = 1 << 10;

fn name(folder: &Name) -> Result<Name> {
    Name::new(format!("{folder}/{CLAIM}"))
}

/// Takes an attempt over for the process that calls itself `by`, also from another one that has done so. Its files are as young as the claim, so `prune`
/// leaves them alone for a while.
pub(super) async fn put(transaction: &dyn Transaction, folder: &Name, by: &str) -> Result<()> {
    let claim = FileBody::from_bytes(name(folder)?, Bytes::copy_from_slice(by.as_bytes()));
    transaction
        .write(vec![claim], Durability::Process, Progress::none())
        .await?;
    Ok(())
}

/// What the process calls itself that has taken an attempt over last. `None` if it belongs to the one that has begun it.
pub(super) async fn holder(store: &dyn Store, folder: &Name) -> Result<Option<Bytes>> {
    match store.read_all(&name(folder)?, MOST).await {
        // Nobody is called so.
        Err(StorageError::Longer { .. }) => Ok(Some(Bytes::new())),
        holder => holder,
    }
}
