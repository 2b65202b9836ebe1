//! Copies the data that the caller may change while a save is being written.

mod blocking;
mod memory;
mod share;

pub use blocking::BlockingAsyncStager;
pub use share::Staging;

use crate::{Result, StrategyError};
use async_trait::async_trait;
use reshard_model::{DType, Data, Dims, FlatStateDict, Payload, Sharded, Value, ValueTree};
use std::{collections::BTreeSet, fmt};

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
    /// Copies the data of leaves, or begins to.
    ///
    /// # Errors
    /// No memory, or a device that fails.
    async fn stage(&self, leaves: Vec<Data>) -> Result<Vec<Data>>;

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

/// Replaces the data of leaves by copies: all objects, and the tensors that are `wanted`, by position. Other tensors lose their data,
/// so nothing of the caller's is held.
///
/// # Errors
/// Those of the stager.
pub(crate) async fn stage_leaves(
    state: &mut FlatStateDict,
    wanted: &BTreeSet<u32>,
    stager: &dyn AsyncStager,
) -> Result<()> {
    // Tensors that are not wanted lose their data here, so none of the caller's handles stays behind.
    let mut originals = Vec::new();
    visit(state, &mut |i, data| {
        if i.is_none_or(|i| wanted.contains(&i)) {
            originals.push(std::mem::take(data));
        } else {
            *data = Data::None;
        }
    });

    let staged = stage_data(originals, stager).await?;

    // The second visit meets the same leaves in the same order, so each copy gets back to its own leaf.
    let mut staged = staged.into_iter();
    visit(state, &mut |i, data| {
        if i.is_none_or(|i| wanted.contains(&i)) {
            *data = staged.next().unwrap_or_default();
        }
    });
    Ok(())
}

/// Replaces the tensors of common state by copies. Other values have no memory that the caller could change.
///
/// # Errors
/// Those of the stager.
pub async fn stage_common(common: &mut ValueTree, stager: &dyn AsyncStager) -> Result<()> {
    let mut originals = Vec::new();
    common.visit_mut(&mut |_, value| visit_value(value, &mut |data| originals.push(data.clone())));
    if originals.is_empty() {
        return Ok(());
    }
    let mut staged = stage_data(originals, stager).await?.into_iter();
    common.visit_mut(&mut |_, value| {
        visit_value(value, &mut |data| *data = staged.next().unwrap_or_default());
    });
    Ok(())
}

/// Stages data, and checks what the stager gives back.
async fn stage_data(originals: Vec<Data>, stager: &dyn AsyncStager) -> Result<Vec<Data>> {
    // A stager may be the user's code. A leaf of another type or shape would only fail later, in the files.
    let expected: Vec<Described> = originals.iter().map(described).collect();
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

/// Calls `f` with the data of each leaf, and the position of those that are tensors; with the tensors in objects,
/// too.
fn visit(state: &mut FlatStateDict, f: &mut dyn FnMut(Option<u32>, &mut Data)) {
    for (i, leaf) in (0..).zip(state.values_mut()) {
        match leaf {
            Sharded::Tensor(t) => f(Some(i), &mut t.data),
            Sharded::Object(o) => {
                let Payload::Value(value) = &mut o.data else {
                    continue;
                };
                visit_value(value, &mut |data| f(None, data));
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
