//! The state of a training job.

use crate::{AdamW, BoxError, Variables};
use futures::executor::block_on;
use reshard::{StateDict, ValueTree};
use reshard_optim::{StateDictOptions, get_state_dict, set_state_dict};

/// A copy of all variables, moments and steps, under PyTorch's keys. Save it with `Dialect::Dcp`.
///
/// # Errors
/// Two variables have one name, or the optimizer is of another model.
pub fn state(model: &Variables, optimizer: &AdamW) -> Result<StateDict, BoxError> {
    let options = StateDictOptions::default();
    let dicts = block_on(get_state_dict(model, &[optimizer], &options))?;
    Ok(dicts.into_state_dict("model", "optim"))
}

/// What [`state`] has, without elements: what a load is asked for. Nothing is copied.
///
/// # Errors
/// As [`state`].
pub fn template(model: &Variables, optimizer: &AdamW) -> Result<StateDict, BoxError> {
    state(&model.without_data(), &optimizer.without_data())
}

/// Puts what was loaded into the variables and the optimizer. What else the job saved, such as the number of its batch, stays with the caller.
///
/// # Errors
/// A key is missing, or a value has another type or shape. The error names it. Values that came before it may be loaded already.
pub fn restore(
    model: &mut Variables,
    optimizer: &mut AdamW,
    mut loaded: ValueTree,
) -> Result<(), BoxError> {
    let mut part = |name: &str| {
        loaded
            .remove(name)
            .ok_or_else(|| format!("what was loaded has no `{name}`"))
    };
    let (of_model, of_optimizer) = (part("model")?, part("optim")?);
    let options = StateDictOptions::default();
    block_on(set_state_dict(
        model,
        &mut [optimizer],
        of_model,
        of_optimizer,
        &options,
    ))?;
    Ok(())
}
