//! Values that make and take their own state.

use reshard_model::{BoxError, Data, Leaf, StateDict, Tensor, Value, ValueTree};
use reshard_strategy::{StrategyError, with_sources};

/// PyTorch's `Stateful`: a value at the top of a state dict that makes its own state when it is saved, and takes it when it is
/// loaded. An optimizer, a scheduler, a data loader, a counter.
///
/// Give it to a save or load under its key ([`Save::stateful`](crate::Save::stateful),
/// [`Load::stateful`](crate::Load::stateful)).
///
/// ```
/// use reshard::{StateDict, Stateful, ValueTree, blocking, model::BoxError};
///
/// struct Steps(i64);
///
/// impl Stateful for Steps {
///     fn state_dict(&self) -> Result<StateDict, BoxError> {
///         let mut state = StateDict::new();
///         state.insert("done", self.0);
///         Ok(state)
///     }
///
///     fn load_state_dict(&mut self, state: ValueTree) -> Result<(), BoxError> {
///         let done = state.get("done").and_then(|v| v.leaf()).and_then(|v| v.as_int());
///         self.0 = done.ok_or("there is no `done`")?;
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = dir.path().join("step-1").display().to_string();
/// let (state, steps) = (StateDict::new(), Steps(7));
/// blocking::run(reshard::save(&state, &url).stateful("steps", &steps))?;
/// let mut steps = Steps(0);
/// blocking::run(reshard::load(StateDict::new(), &url).stateful("steps", &mut steps))?;
/// assert_eq!(steps.0, 7);
/// # Ok(())
/// # }
/// ```
pub trait Stateful: Send + Sync {
    /// Its state, as a part of a state dict. A save calls it.
    ///
    /// # Errors
    /// Any. The save fails on all ranks, with the key and the rank.
    fn state_dict(&self) -> Result<StateDict, BoxError>;

    /// Its state without data, which says what to load. A load calls it before it reads.
    ///
    /// By default it has the leaves of [`state_dict`](Self::state_dict), and the load allocates memory. To load in place, take your
    /// own buffers out, and put them back in [`load_state_dict`](Self::load_state_dict).
    ///
    /// # Errors
    /// Any. The load fails on all ranks, with the key and the rank.
    fn template(&mut self) -> Result<StateDict, BoxError> {
        without_data(self.state_dict()?)
    }

    /// Takes the loaded state. A load calls it when all ranks have read.
    ///
    /// # Errors
    /// Any. The load fails on all ranks, with the key and the rank. Other values may have taken their state.
    fn load_state_dict(&mut self, state: ValueTree) -> Result<(), BoxError>;
}

/// Leaves of the same types and shapes that hold none of the same memory.
fn without_data(mut state: StateDict) -> Result<StateDict, BoxError> {
    let mut failed = None;
    state.visit_mut(&mut |_, leaf| match leaf {
        Leaf::Tensor(t) => t.data = Data::None,
        Leaf::Value(value) => value.visit_mut(&mut |value| {
            if let Value::Tensor(t) = value {
                match Tensor::zeros("template", t.dtype(), t.shape()) {
                    Ok(zeros) => *t = zeros,
                    Err(e) => failed = Some(e),
                }
            }
        }),
        Leaf::Object(_) | Leaf::Factory(_) | Leaf::Local(_) => {}
    });
    failed.map_or(Ok(state), |e| Err(e.into()))
}

/// Puts the state of a value under its key. If it fails, the state dict is as before.
pub(crate) fn insert(
    state: &mut StateDict,
    key: &str,
    made: Result<StateDict, BoxError>,
) -> Result<(), StrategyError> {
    let made = made.map_err(|e| failed(key, "state_dict", &*e))?;
    let what = if state.get(key).is_some() {
        "is in the state dict already, and also the key of a `Stateful`; give that another key"
    } else if !matches!(state, StateDict::Dict(_)) {
        "is the key of a `Stateful`, but the state is no dict, so it has no keys; put it into a dict"
    } else {
        state.insert_tree(key, made);
        return Ok(());
    };
    Err(StrategyError::Invalid(format!("{key} {what}")))
}

/// A method of the value has failed.
pub(crate) fn failed(
    key: &str,
    method: &str,
    e: &(dyn std::error::Error + 'static),
) -> StrategyError {
    let e = with_sources(e.to_string(), e);
    StrategyError::Invalid(format!("`{method}` of {key} failed: {e}"))
}
