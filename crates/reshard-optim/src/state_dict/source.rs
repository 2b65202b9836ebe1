//! What a model and an optimizer say of themselves.

use crate::ParamId;
use reshard_model::{BoxError, Leaf, Value};

/// A parameter of a model.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in the model, with dots. Names of wrappers may be part of it.
    pub name: String,
    /// Which parameter it is. A parameter with two names (tied weights) has one id; the optimizer names it by this id.
    pub id: ParamId,
    /// Whether it is trained. A frozen parameter does not need state of an optimizer.
    pub requires_grad: bool,
    /// A [`ShardedTensor`](reshard_model::ShardedTensor) if this rank holds a part of it, else a plain tensor. Its key does not matter.
    pub data: Leaf,
}

/// A model whose parameters have names. Implement it for the variables of your framework.
pub trait ModelState {
    /// All parameters, in the order of the model. Tied weights occur once for each name.
    fn parameters(&self) -> Vec<Parameter>;

    /// Everything else to save, by name: persistent buffers, extra state. Leave out what is made anew (non-persistent buffers).
    fn buffers(&self) -> Vec<(String, Leaf)> {
        Vec::new()
    }

    /// Takes the value of a parameter or buffer, under the name that [`parameters`](Self::parameters) or [`buffers`](Self::buffers)
    /// gives it. A tensor has the shape of the local data.
    ///
    /// # Errors
    /// Any error of the model.
    fn load(&mut self, name: &str, value: Value) -> Result<(), BoxError>;
}

/// A group of parameters with common options.
#[derive(Clone, Debug, Default)]
pub struct ParamGroup {
    /// Its parameters, in the order of the optimizer.
    pub params: Vec<ParamId>,
    /// Its options: `lr`, `betas`, and so on.
    pub options: Vec<(Box<str>, Value)>,
}

/// An optimizer that keeps state for parameters.
pub trait OptimizerState {
    /// Its param groups.
    fn param_groups(&self) -> Vec<ParamGroup>;

    /// The state of a parameter by name: `exp_avg`, `step`, and so on; empty if there is none. A tensor with the local shape of a
    /// sharded parameter is declared as the parameter is. To declare one otherwise, give a
    /// [`ShardedTensor`](reshard_model::ShardedTensor). A whole tensor that is set is cut as it is declared here.
    ///
    /// For a template to load into, an optimizer that has not taken a step gives what it would have after one. PyTorch takes such a step with gradients
    /// of zero.
    fn state(&self, param: ParamId) -> Vec<(Box<str>, Leaf)>;

    /// Takes the options of a group, by its position in [`param_groups`](Self::param_groups). The group keeps options that are not
    /// given.
    ///
    /// # Errors
    /// Any error of the optimizer.
    fn load_group(&mut self, index: usize, options: Vec<(Box<str>, Value)>)
    -> Result<(), BoxError>;

    /// Takes the state of a parameter in place of what it has.
    ///
    /// # Errors
    /// Any error of the optimizer.
    fn load_state(&mut self, param: ParamId, state: Vec<(Box<str>, Value)>)
    -> Result<(), BoxError>;
}
