//! Modules that know how their state is spread over ranks.

use crate::{OptimError, Result};
use reshard_model::{BoxError, ShardPlace, StateDict, Step, Tree, ValueTree};
use std::fmt;

/// Something whose state is saved and loaded in parts: a model, a layer, an optimizer. Megatron Core's `sharded_state_dict` is
/// this trait's.
///
/// ```
/// use reshard_model::{BoxError, ShardPlace, StateDict, Tensor, Value, ValueTree};
/// use reshard_optim::{Module, Sharded};
///
/// struct Linear { weight: Tensor }
///
/// impl Sharded for Linear {
///     fn sharded_state_dict(&self, prefix: &str, place: &ShardPlace) -> Result<StateDict, BoxError> {
///         let mut plain = ValueTree::new();
///         plain.insert("weight", Value::Tensor(self.weight.clone()));
///         // Tensor-parallel ranks have cut the rows.
///         Ok(StateDict::from_plain(plain, prefix, place, &[("weight", 0)])?)
///     }
///
///     fn load_state_dict(&mut self, mut state: ValueTree) -> Result<(), BoxError> {
///         let weight = state.remove("weight").and_then(|t| t.into_leaf()?.into_tensor());
///         self.weight = weight.ok_or("no weight was loaded")?;
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<(), BoxError> {
/// let linear = || -> Result<Linear, BoxError> { Ok(Linear { weight: Tensor::from_vec(&[2, 3], vec![1f32; 6])? }) };
/// let model = Module::new().with("fc1", linear()?).with("fc2", linear()?);
/// let state = model.sharded_state_dict("mlp.", &ShardPlace::new().tensor_parallel(0, 2))?;
/// let keys: Vec<&str> = state.nested_values().into_iter().filter_map(|leaf| match leaf {
///     reshard_model::Leaf::Tensor(t) => Some(&*t.key),
///     _ => None,
/// }).collect();
/// assert_eq!(keys, ["mlp.fc1.weight", "mlp.fc2.weight"]);
/// # Ok(())
/// # }
/// ```
pub trait Sharded {
    /// What this rank holds: a state to save, or a template to load into. All keys begin with `prefix`, which is empty or ends with
    /// a dot. `place` says where the rank stands.
    ///
    /// # Errors
    /// Any error of the module.
    fn sharded_state_dict(&self, prefix: &str, place: &ShardPlace) -> Result<StateDict, BoxError>;

    /// Takes what a load has made of [`sharded_state_dict`](Self::sharded_state_dict).
    ///
    /// # Errors
    /// Any error of the module.
    fn load_state_dict(&mut self, state: ValueTree) -> Result<(), BoxError>;
}

/// A module that is made of others. The state of each lies under its name, and its keys begin with that name and a dot.
#[derive(Default)]
pub struct Module<'a>(Vec<(Box<str>, Box<dyn Sharded + 'a>)>);

impl fmt::Debug for Module<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

impl<'a> Module<'a> {
    /// A module without children.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more child.
    pub fn with(mut self, name: &str, child: impl Sharded + 'a) -> Self {
        self.0.push((name.into(), Box::new(child)));
        self
    }
}

impl Sharded for Module<'_> {
    fn sharded_state_dict(&self, prefix: &str, place: &ShardPlace) -> Result<StateDict, BoxError> {
        let mut state = StateDict::new();
        for (name, child) in &self.0 {
            let prefix = format!("{prefix}{name}.");
            let failed = |source| OptimError::Module {
                name: prefix.clone(),
                source,
            };
            let part = child.sharded_state_dict(&prefix, place).map_err(failed)?;
            if state.insert_tree(&**name, part).is_some() {
                return Err(format!(
                    "two children are named {prefix}; give each a name of its own"
                )
                .into());
            }
        }
        Ok(state)
    }

    /// A child whose state was not loaded gets an empty state.
    fn load_state_dict(&mut self, mut state: ValueTree) -> Result<(), BoxError> {
        for (name, child) in &mut self.0 {
            let part = state.remove(name).unwrap_or_default();
            let failed = |source| OptimError::Module {
                name: (**name).into(),
                source,
            };
            child.load_state_dict(part).map_err(failed)?;
        }
        match &state {
            Tree::Dict(rest) if !rest.is_empty() => {
                let names: Vec<String> = rest.keys().map(Step::to_string).collect();
                Err(format!("no child takes the state of {}", names.join(", ")).into())
            }
            _ => Ok(()),
        }
    }
}
