//! AdamW whose moments and steps can be saved.

use crate::{
    BoxError, Variables,
    variables::{leaf, set},
};
use candle_core::{Var, backprop::GradStore};
use candle_nn::{Optimizer, ParamsAdamW};
use reshard::{DType, ShardedTensor, Tensor, Value, model::Leaf};
use reshard_optim::{OptimizerState, ParamGroup, ParamId};

/// AdamW. It computes what `candle_nn::AdamW` does, bit for bit, as long as each variable has a gradient in each step. A variable that had none
/// in some step counts its own steps, as in PyTorch.
///
/// `candle_nn::AdamW` keeps its moments to itself, so a job that uses it can't be resumed. This one is an [`OptimizerState`].
#[derive(Clone, Debug)]
pub struct AdamW {
    vars: Vec<Slot>,
    params: ParamsAdamW,
    /// Whether leaves have data: a template has none.
    with_data: bool,
}

/// What is kept for a variable.
#[derive(Clone, Debug)]
struct Slot {
    id: ParamId,
    var: Var,
    exp_avg: Var,
    exp_avg_sq: Var,
    step: u32,
}

impl Slot {
    fn new(id: ParamId, var: Var) -> candle_core::Result<Self> {
        let zeros = || Var::zeros(var.shape(), var.dtype(), var.device());
        Ok(Self {
            id,
            exp_avg: zeros()?,
            exp_avg_sq: zeros()?,
            step: 0,
            var,
        })
    }
}

impl AdamW {
    /// For all variables of the model that have floating-point elements. Their ids are those that the model gives them.
    ///
    /// # Errors
    /// There is no memory for the moments.
    pub fn of(model: &Variables, params: ParamsAdamW) -> candle_core::Result<Self> {
        Self::over(model.by_name().into_values(), params)
    }

    /// The ids are the positions.
    fn over(all: impl IntoIterator<Item = Var>, params: ParamsAdamW) -> candle_core::Result<Self> {
        let all = (0..).map(ParamId).zip(all);
        let floats = all.filter(|(_, var)| var.dtype().is_float());
        let vars = floats
            .map(|(id, var)| Slot::new(id, var))
            .collect::<candle_core::Result<_>>()?;
        Ok(Self {
            vars,
            params,
            with_data: true,
        })
    }

    /// Its settings.
    pub fn params(&self) -> &ParamsAdamW {
        &self.params
    }

    /// The same state, declared without its data.
    pub(crate) fn without_data(&self) -> Self {
        Self {
            with_data: false,
            ..self.clone()
        }
    }

    /// Where the state of a parameter is. Ids are in order.
    fn position(&self, param: ParamId) -> Option<usize> {
        self.vars.binary_search_by_key(&param, |slot| slot.id).ok()
    }
}

impl Optimizer for AdamW {
    type Config = ParamsAdamW;

    /// The ids of the variables are their positions. To save a model with it, use [`AdamW::of`].
    fn new(vars: Vec<Var>, params: ParamsAdamW) -> candle_core::Result<Self> {
        Self::over(vars, params)
    }

    fn step(&mut self, grads: &GradStore) -> candle_core::Result<()> {
        let ParamsAdamW {
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
        } = self.params;
        for slot in &mut self.vars {
            let Some(grad) = grads.get(&slot.var) else {
                continue;
            };
            slot.step += 1;
            let exponent = i32::try_from(slot.step).unwrap_or(i32::MAX); // by then the corrections are 1 for long

            // The moments, and from them the step without their bias towards zero.
            let exp_avg = ((slot.exp_avg.as_tensor() * beta1)? + (grad * (1. - beta1))?)?;
            let exp_avg_sq =
                ((slot.exp_avg_sq.as_tensor() * beta2)? + (grad.sqr()? * (1. - beta2))?)?;
            let first = (&exp_avg * (1. / (1. - beta1.powi(exponent))))?;
            let second = (&exp_avg_sq * (1. / (1. - beta2.powi(exponent))))?;
            let change = ((first / (second.sqrt()? + eps)?)? * lr)?;

            let decayed = (slot.var.as_tensor() * (1. - lr * weight_decay))?;
            slot.var.set(&(decayed - change)?)?;
            slot.exp_avg.set(&exp_avg)?;
            slot.exp_avg_sq.set(&exp_avg_sq)?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.params.lr
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.params.lr = lr;
    }
}

impl OptimizerState for AdamW {
    fn param_groups(&self) -> Vec<ParamGroup> {
        let ParamsAdamW {
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
        } = self.params;
        let betas = Value::Tuple(vec![beta1.into(), beta2.into()]);
        let options = [
            ("lr", lr.into()),
            ("betas", betas),
            ("eps", eps.into()),
            ("weight_decay", weight_decay.into()),
        ];
        vec![ParamGroup {
            params: self.vars.iter().map(|slot| slot.id).collect(),
            options: options
                .map(|(name, value): (&str, Value)| (name.into(), value))
                .into(),
        }]
    }

    fn state(&self, param: ParamId) -> Vec<(Box<str>, Leaf)> {
        let Some(slot) = self.position(param).map(|i| &self.vars[i]) else {
            return Vec::new();
        };
        // A number in a tensor without axes, as in PyTorch.
        let step = match Tensor::from_vec(&[], vec![slot.step as f32]) {
            Ok(step) if self.with_data => Leaf::Value(step.into()),
            _ => Leaf::Tensor(ShardedTensor::template("", DType::Float32, &[])),
        };
        let moment = |var: &Var| leaf(var.as_tensor(), self.with_data);
        vec![
            ("step".into(), step),
            ("exp_avg".into(), moment(&slot.exp_avg)),
            ("exp_avg_sq".into(), moment(&slot.exp_avg_sq)),
        ]
    }

    fn load_group(
        &mut self,
        _index: usize,
        options: Vec<(Box<str>, Value)>,
    ) -> Result<(), BoxError> {
        for (name, value) in options {
            let number = |value: &Value| {
                value
                    .as_float()
                    .ok_or_else(|| format!("the option `{name}` is no number"))
            };
            match &*name {
                "lr" => self.params.lr = number(&value)?,
                "eps" => self.params.eps = number(&value)?,
                "weight_decay" => self.params.weight_decay = number(&value)?,
                "betas" => match value.as_seq() {
                    Some([first, second]) => {
                        (self.params.beta1, self.params.beta2) = (number(first)?, number(second)?)
                    }
                    _ => return Err("the option `betas` has two numbers".into()),
                },
                _ => {} // options of PyTorch's that change nothing here, such as `foreach`
            }
        }
        Ok(())
    }

    fn load_state(
        &mut self,
        param: ParamId,
        state: Vec<(Box<str>, Value)>,
    ) -> Result<(), BoxError> {
        let position = self
            .position(param)
            .ok_or("the optimizer has no such parameter")?;
        let slot = &mut self.vars[position];
        for (name, value) in state {
            match &*name {
                "step" => {
                    let step = value
                        .as_tensor()
                        .ok_or("`step` is no tensor")?
                        .to_vec::<f32>()?;
                    match step[..] {
                        // A whole number that a float32 holds.
                        [step] if (0. ..=16_777_216.).contains(&step) && step.fract() == 0. => {
                            slot.step = step as u32
                        }
                        _ => {
                            return Err(
                                format!("`step` is {step:?}, and no number of steps").into()
                            );
                        }
                    }
                }
                "exp_avg" => set(&slot.exp_avg, value)?,
                "exp_avg_sq" => set(&slot.exp_avg_sq, value)?,
                other => return Err(format!("AdamW has no state `{other}`").into()),
            }
        }
        Ok(())
    }
}
