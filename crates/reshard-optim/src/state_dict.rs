//! State dicts by name, as PyTorch's `torch.distributed.checkpoint.state_dict` makes them.
//!
//! A model and its optimizers become dicts whose keys are *canonical names* (PyTorch's FQNs): they do not depend on how the job is
//! parallelised, nor on what wraps the model. So a job with other ranks and other wrappers loads them. You implement [`ModelState`] and
//! [`OptimizerState`]; the six functions are PyTorch's.
//!
//! | PyTorch | here |
//! | --- | --- |
//! | `get_model_state_dict`, `get_optimizer_state_dict`, `get_state_dict` | the same names; the last one returns [`StateDicts`] |
//! | `set_model_state_dict`, `set_optimizer_state_dict`, `set_state_dict` | the same names; each returns [`IncompatibleKeys`] |
//! | `StateDictOptions` | [`StateDictOptions`], field by field |

mod by_name;
mod changes;
mod declared;
mod flat;
mod full;
mod get;
mod names;
mod options;
mod plain;
mod set;
mod source;

pub use by_name::ByName;
pub use flat::{flatten_optimizer_state_dict, unflatten_optimizer_state_dict};
pub use get::{StateDicts, get_model_state_dict, get_optimizer_state_dict, get_state_dict};
pub use options::{FqnModifier, StateDictOptions};
pub use set::{IncompatibleKeys, set_model_state_dict, set_optimizer_state_dict, set_state_dict};
pub use source::{ModelState, OptimizerState, ParamGroup, Parameter};

/// The parts of an optimizer's state dict.
pub(crate) const STATE: &str = "state";
pub(crate) const GROUPS: &str = "param_groups";
pub(crate) const PARAMS: &str = "params";
