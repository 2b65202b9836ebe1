//! A model by names as a module: who implements [`ModelState`] need not implement [`Sharded`].

use super::{ModelState, StateDictOptions, get::model_state_dict, names::Named, set::load_model};
use crate::Sharded;
use reshard_model::{
    BoxError, Leaf, Path, ShardPlace, StateDict, Tree, ValueTree, add_prefix_for_sharding,
};

/// A model whose parameters have names, as a module of Megatron Core's kind. Its keys are the prefix and the canonical names.
///
/// A parameter that is a [`ShardedTensor`](reshard_model::ShardedTensor) stays as the model declares it. A plain tensor is a copy that all ranks
/// of the [`ShardPlace`] have.
///
/// ```
/// use reshard_model::{BoxError, Leaf, Path, ShardPlace, Tensor, Value};
/// use reshard_optim::{ByName, ModelState, Module, ParamId, Parameter, Sharded};
///
/// struct Linear { weight: Tensor }
///
/// impl ModelState for Linear {
///     fn parameters(&self) -> Vec<Parameter> {
///         let data = Leaf::Value(Value::Tensor(self.weight.clone()));
///         vec![Parameter { name: "weight".into(), id: ParamId(0), requires_grad: true, data }]
///     }
///
///     fn load(&mut self, _: &str, value: Value) -> Result<(), BoxError> {
///         self.weight = value.into_tensor().ok_or("no tensor")?;
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<(), BoxError> {
/// let linear = Linear { weight: Tensor::from_vec(&[2], vec![1f32, 2.])? };
/// let model = Module::new().with("fc", ByName(linear));
/// let state = model.sharded_state_dict("model.", &ShardPlace::new())?;
/// let Leaf::Tensor(weight) = &state.nested_values()[0] else { unreachable!() };
/// assert_eq!(&*weight.key, "model.fc.weight");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ByName<M>(pub M);

impl<M: ModelState> Sharded for ByName<M> {
    fn sharded_state_dict(&self, prefix: &str, place: &ShardPlace) -> Result<StateDict, BoxError> {
        let named = model_state_dict(&self.0, &StateDictOptions::default())?;
        let declared = named.try_map(&mut |path, leaf| match leaf {
            Leaf::Value(value) => {
                let key = format!("{prefix}{}", Path::from(path));
                StateDict::from_plain(Tree::Leaf(value), &key, place, &[]).map(Some)
            }
            sharded => {
                let mut state = Tree::Leaf(sharded);
                add_prefix_for_sharding(&mut state, prefix);
                Ok(Some(state))
            }
        })?;
        Ok(declared.unwrap_or_default())
    }

    fn load_state_dict(&mut self, state: ValueTree) -> Result<(), BoxError> {
        let options = StateDictOptions::default();
        let named = Named::all(&self.0, &options)?;
        load_model(&mut self.0, named, state, &options)?;
        Ok(())
    }
}
