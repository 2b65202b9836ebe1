//! From a module and its optimizer to a state dict.

use crate::{
    Adaptive, AdaptiveOptimizer, BoxError,
    adaptive::Record,
    convert::{dtype, to_reshard, unsupported},
};
use burn::{
    module::{AutodiffModule, ModuleVisitor, Param},
    optim::{AdaptiveMomentumState, Optimizer},
    tensor::{
        BasicOps, Bool, Int, Tensor, TensorKind,
        backend::{AutodiffBackend, Backend},
    },
};
use reshard::{ShardedTensor, StateDict, Value, model::Leaf};

/// A copy of all parameters, moments and steps, under PyTorch's keys. Save it with `Dialect::Dcp`.
///
/// # Errors
/// A parameter has elements that can't be saved. The error names it.
pub fn state<B, M, O>(
    module: &M,
    optimizer: &AdaptiveOptimizer<O, M, B>,
) -> Result<StateDict, BoxError>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
    O: Adaptive<B::InnerBackend>,
{
    let mut lister = Lister::<O, M, B>::new(Some(optimizer.to_record()));
    module.visit(&mut lister);
    lister.finish()
}

/// What [`state`] has after a step in which each trained parameter had a gradient, without elements: what a load is asked for.
///
/// # Errors
/// As [`state`].
pub fn template<B, M>(module: &M) -> Result<StateDict, BoxError>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let mut lister = Lister::<burn::optim::AdamW, M, B>::new(None);
    module.visit(&mut lister);
    lister.finish()
}

/// Goes through a module and makes leaves of what it finds.
struct Lister<O: Adaptive<B::InnerBackend>, M: AutodiffModule<B>, B: AutodiffBackend> {
    path: Vec<String>,
    /// `None` for a template.
    record: Option<Record<O, M, B>>,
    model: StateDict,
    moments: StateDict,
    failed: Option<BoxError>,
}

impl<O: Adaptive<B::InnerBackend>, M: AutodiffModule<B>, B: AutodiffBackend> Lister<O, M, B> {
    fn new(record: Option<Record<O, M, B>>) -> Self {
        Self {
            path: Vec::new(),
            record,
            model: StateDict::new(),
            moments: StateDict::new(),
            failed: None,
        }
    }

    fn finish(self) -> Result<StateDict, BoxError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let (mut optim, mut out) = (StateDict::new(), StateDict::new());
        optim.insert_tree("state", self.moments);
        out.insert_tree("model", self.model);
        out.insert_tree("optim", optim);
        Ok(out)
    }

    /// A tensor of the module or of the optimizer. `None` after an error, which is kept.
    fn leaf<A, const D: usize, K>(&mut self, key: &str, tensor: Tensor<A, D, K>) -> Option<Leaf>
    where
        A: Backend,
        K: TensorKind<A> + BasicOps<A>,
    {
        let made = if self.record.is_some() {
            to_reshard(tensor.into_data()).map(|tensor| Leaf::Value(Value::Tensor(tensor)))
        } else {
            let shape: Vec<u64> = tensor.dims().iter().map(|n| *n as u64).collect();
            let dtype = dtype(tensor.dtype()).ok_or_else(|| unsupported(tensor.dtype()).into());
            dtype.map(|dtype| Leaf::Tensor(ShardedTensor::template(key, dtype, &shape)))
        };
        made.map_err(|e| {
            self.failed
                .get_or_insert_with(|| format!("{key}: {e}").into())
        })
        .ok()
    }

    fn parameter<const D: usize, K>(&mut self, tensor: Tensor<B, D, K>)
    where
        K: TensorKind<B> + BasicOps<B>,
    {
        let name = self.path.join(".");
        if let Some(leaf) = self.leaf(&format!("model.{name}"), tensor) {
            self.model.insert(name, leaf);
        }
    }

    fn moments<const D: usize>(&mut self, of: AdaptiveMomentumState<B::InnerBackend, D>) {
        let name = self.path.join(".");
        let key = |part: &str| format!("optim.state.{name}.{part}");
        // A number in a tensor without axes, as in PyTorch.
        let step = match reshard::Tensor::from_vec(&[], vec![of.time as f32]) {
            Ok(step) if self.record.is_some() => Leaf::Value(step.into()),
            _ => Leaf::Tensor(ShardedTensor::template(
                &key("step"),
                reshard::DType::Float32,
                &[],
            )),
        };
        let mut moments = StateDict::new();
        moments.insert("step", step);
        for (part, tensor) in [("exp_avg", of.moment_1), ("exp_avg_sq", of.moment_2)] {
            if let Some(leaf) = self.leaf(&key(part), tensor) {
                moments.insert(part, leaf);
            }
        }
        self.moments.insert_tree(name, moments);
    }
}

impl<O: Adaptive<B::InnerBackend>, M: AutodiffModule<B>, B: AutodiffBackend> ModuleVisitor<B>
    for Lister<O, M, B>
{
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let tensor = param.val();
        let moments = match &self.record {
            // A parameter that had no gradient has no state.
            Some(record) => record
                .get(&param.id)
                .map(|state| O::moments(state.clone().into_state::<D>())),
            None => tensor.is_require_grad().then(|| {
                AdaptiveMomentumState::new(0, tensor.clone().inner(), tensor.clone().inner())
            }),
        };
        self.parameter(tensor);
        if let Some(moments) = moments {
            self.moments(moments);
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.parameter(param.val());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.parameter(param.val());
    }
}
