//! Copies the data that the caller may change while a save is being written.

mod blocking;
mod memory;
mod share;

pub use blocking::BlockingAsyncStager;
pub use share::Staging;

use crate::{PreparedSave, Result, StrategyError};
use async_trait::async_trait;
use reshard_model::{DType, Data, Dims, FlatStateDict, Path, Payload, Sharded, Value, ValueTree};
use std::{collections::BTreeSet, fmt};

/// Data with the key of its leaf: of a tensor or an object, or the path in common state. Several tensors in one object have the same key.
pub type KeyedData = (Box<str>, Data);

/// DCP's `AsyncStager`: it copies the data that the caller may change while a save is being written. You can use one stager for one
/// save after the other.
///
/// # Contract
/// - The result has the same number of leaves, in the same order, with the same types and shapes. No leaf shares memory with its original,
///   unless nobody can change that memory ([`Staging::Share`]).
/// - Several handles on one buffer become handles on one copy.
/// - [`Data::Lazy`] and [`Data::None`] stay as they are.
/// - The copies are complete when [`synchronize_staging`](Self::synchronize_staging) returns. Nothing reads them before.
#[async_trait]
pub trait AsyncStager: fmt::Debug + Send + Sync {
    /// Copies the data of leaves, or begins to. A save calls it once.
    ///
    /// # Errors
    /// No memory, or a device that fails.
    async fn stage(&self, leaves: Vec<KeyedData>) -> Result<Vec<Data>>;

    /// Whether an asynchronous save waits for the copies before it returns to the caller. If not, the caller waits for them before it
    /// changes its state (`SaveHandle::staged`). By default it waits.
    fn should_synchronize_after_execute(&self) -> bool {
        true
    }

    /// Waits until the copies that [`stage`](Self::stage) has begun are complete. By default `stage` has completed them.
    ///
    /// # Errors
    /// A device that fails.
    async fn synchronize_staging(&self) -> Result<()> {
        Ok(())
    }
}

/// Replaces the data of a planned save, and the tensors of its common state, by copies. The stager is called once, so that it can
/// compare the structure of one save with that of the next.
///
/// # Errors
/// Those of the stager. Then the save holds nothing of the caller's any more; let it [give up](PreparedSave::give_up).
pub async fn stage_save(
    prepared: &mut PreparedSave,
    common: Option<&mut ValueTree>,
    stager: &dyn AsyncStager,
) -> Result<()> {
    let mut none = ValueTree::new();
    let common = common.unwrap_or(&mut none);
    let staged = stage_both(prepared.take_data()?, common, stager).await?;
    prepared.put_data(staged)
}

/// Stages the data of sharded leaves and the tensors of common state. Returns the copies of the leaves.
async fn stage_both(
    mut leaves: Vec<KeyedData>,
    common: &mut ValueTree,
    stager: &dyn AsyncStager,
) -> Result<Vec<Data>> {
    // Values of common state other than tensors have no memory that the caller could change.
    let mut originals = Vec::new();
    common.visit_mut(&mut |path, value| {
        visit_value(value, &mut |data| {
            originals.push((Path(path.to_vec()).to_string().into(), data.clone()));
        });
    });
    let of_common = originals.len();
    originals.append(&mut leaves);

    let mut staged = stage_data(originals, stager).await?;
    let leaves = staged.split_off(of_common);
    let mut staged = staged.into_iter();
    common.visit_mut(&mut |_, value| {
        visit_value(value, &mut |data| *data = staged.next().unwrap_or_default());
    });
    Ok(leaves)
}

/// The data of the `wanted` tensors of a state, by position, and of all tensors in objects. Other tensors lose theirs. Objects stay, also
/// those that this rank does not write, because leaves of one cell are written together.
pub(crate) fn take_data(state: &mut FlatStateDict, wanted: &BTreeSet<u32>) -> Vec<KeyedData> {
    let mut taken = Vec::new();
    visit(state, &mut |i, key, data| {
        if i.is_none_or(|i| wanted.contains(&i)) {
            taken.push((key.into(), std::mem::take(data)));
        } else {
            *data = Data::None;
        }
    });
    taken
}

/// Puts copies where [`take_data`] has taken the originals.
///
/// # Errors
/// Another number of copies.
pub(crate) fn put_data(
    state: &mut FlatStateDict,
    wanted: &BTreeSet<u32>,
    staged: Vec<Data>,
) -> Result<()> {
    let (have, mut room) = (staged.len(), 0);
    let mut staged = staged.into_iter();
    visit(state, &mut |i, _, data| {
        if i.is_none_or(|i| wanted.contains(&i)) {
            room += 1;
            *data = staged.next().unwrap_or_default();
        }
    });
    if have == room {
        return Ok(());
    }
    let what = format!("{have} staged leaves for {room} leaves of a save");
    Err(StrategyError::Internal(what))
}

/// Stages data, and checks what the stager gives back.
async fn stage_data(originals: Vec<KeyedData>, stager: &dyn AsyncStager) -> Result<Vec<Data>> {
    // A stager may be the user's code. A leaf of another type or shape would only fail later, in the files.
    let expected: Vec<Described> = originals.iter().map(|(_, leaf)| described(leaf)).collect();
    let staged = stager.stage(originals).await?;
    if staged.len() != expected.len() {
        let what = format!(
            "{stager:?} gave back {} of {} leaves",
            staged.len(),
            expected.len()
        );
        return Err(StrategyError::Internal(what));
    }
    let on_device = staged.iter().any(|leaf| matches!(leaf, Data::Device(_)));
    if on_device || !staged.iter().map(described).eq(expected) {
        let what = format!(
            "{stager:?} gave back leaves of other types or shapes, or left some on a device"
        );
        return Err(StrategyError::Internal(what));
    }
    Ok(staged)
}

/// What a staged leaf has in common with its original: element type and shape, if it is staged at all.
type Described = Result<(DType, Dims), bool>;

fn described(leaf: &Data) -> Described {
    match leaf {
        Data::Host(t) => Ok((t.dtype(), t.shape().clone())),
        Data::Device(t) => Ok((t.dtype(), t.shape().clone())),
        Data::Lazy(_) => Err(true),
        Data::None => Err(false),
    }
}

/// Calls `f` with the data of each tensor, with its position and key, and of each tensor in objects.
fn visit(state: &mut FlatStateDict, f: &mut dyn FnMut(Option<u32>, &str, &mut Data)) {
    for (i, leaf) in (0..).zip(state.values_mut()) {
        match leaf {
            Sharded::Tensor(t) => f(Some(i), &t.key, &mut t.data),
            Sharded::Object(o) => {
                let key = o.unique_key();
                if let Payload::Value(value) = &mut o.data {
                    visit_value(value, &mut |data| f(None, &key, data));
                }
            }
        }
    }
}

/// Calls `f` with the data of each tensor in a value.
fn visit_value(value: &mut Value, f: &mut dyn FnMut(&mut Data)) {
    value.visit_mut(&mut |v| {
        let mut data = match v {
            Value::Tensor(t) => Data::Host(t.clone()),
            Value::Device(t) => Data::Device(t.clone()),
            _ => return,
        };
        f(&mut data);
        match data {
            Data::Host(t) => *v = Value::Tensor(t),
            Data::Device(t) => *v = Value::Device(t),
            Data::None | Data::Lazy(_) => {}
        }
    });
}

#[cfg(test)]
mod tests;
