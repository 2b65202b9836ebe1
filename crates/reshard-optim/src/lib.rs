//! Parameters and optimizer state.
//!
//! An optimizer's state belongs to parameters, and lies on ranks as they do. So it is declared from what the model declares:
//! [`param_id_to_sharded_param_map`] finds the parameters, [`make_sharded_optimizer_tensor`] declares one tensor,
//! [`sharded_optim_state`] a whole state dict. These are Megatron Core's functions, with a [`ParamId`] where it uses the identity of a
//! tensor.
//!
//! [`stored_optimizers`] recognises the six forms in which Megatron Core's distributed optimizer is stored; [`BucketLayout`] says what
//! the forms by bucket leave out. `reshard-convert` rewrites them by parameter.
//!
//! [`get_state_dict`], [`set_state_dict`] and their siblings are PyTorch's helpers: state dicts by canonical name, over [`ModelState`] and
//! [`OptimizerState`].
//!
//! [`Sharded`] is the trait of modules that know how their state is spread over ranks; [`Module`] is made of others. [`ByName`] makes such a
//! module of any [`ModelState`].
//!
//! ```
//! use reshard_model::{ShardedTensor, StateDict, Tensor, Value, ValueTree, Tree, Leaf};
//! use reshard_optim::{ParamId, param_id_to_sharded_param_map, sharded_optim_state};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The model: rows 2..4 of 8, in half precision.
//! let mut model = StateDict::new();
//! let weight = ShardedTensor::declare("fc.weight", reshard_model::DType::BFloat16, &[2, 3], &[(0, 1, 4)], 0)?;
//! model.insert("weight", weight);
//!
//! // PyTorch's form: the state of parameter 0, and the groups.
//! let momentum = Tensor::from_vec(&[2, 3], vec![0f32; 6])?;
//! let state = Value::Dict(vec![("exp_avg".into(), Value::Tensor(momentum)), ("step".into(), Value::Int(7))]);
//! let optimizer = Value::Dict(vec![("state".into(), Value::Dict(vec![(Value::Int(0), state)]))]);
//! let mut optimizer: StateDict = ValueTree::from(optimizer).map(&mut Leaf::Value);
//!
//! let params = param_id_to_sharded_param_map(&model, [(ParamId(0), "weight")])?;
//! sharded_optim_state(&mut optimizer, &params)?;
//! let Some(Tree::Leaf(Leaf::Tensor(t))) = optimizer.at(&["state".into(), 0.into(), "exp_avg".into()]) else { unreachable!() };
//! assert_eq!((&*t.key, &t.global_shape), ("optimizer.state.exp_avg.fc.weight", &[8, 3].into()));
//! # Ok(())
//! # }
//! ```

mod bucket;
mod error;
mod format;
mod key;
mod module;
mod param;
mod state;
mod state_dict;
mod tensor;

pub use bucket::{BucketLayout, BucketParam, BucketPiece};
pub use error::{OptimError, Result};
pub use format::{
    ParseShardingTypeError, ShardingType, StoredKey, StoredOptimizer, stored_optimizers,
};
pub use key::{BucketId, OptimizerKey};
pub use module::{Module, Sharded};
pub use param::{ModelParam, ParamId, ShardedParams, param_id_to_sharded_param_map};
pub use reshard_model::ShardPlace;
pub use state::{
    chained_optim_state, fp32_from_fp16_params, optim_state_to_sharding_state, restore_optim_state,
    sharded_optim_state, take_common_step,
};
pub use state_dict::{
    ByName, FqnModifier, IncompatibleKeys, ModelState, OptimizerState, ParamGroup, Parameter,
    StateDictOptions, StateDicts, flatten_optimizer_state_dict, get_model_state_dict,
    get_optimizer_state_dict, get_state_dict, set_model_state_dict, set_optimizer_state_dict,
    set_state_dict, unflatten_optimizer_state_dict,
};
pub use tensor::{OptimTensor, make_sharded_optimizer_tensor};
