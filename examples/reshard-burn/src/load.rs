//! From a loaded state dict to a module and its optimizer.

use crate::{
    Adaptive, AdaptiveOptimizer, BoxError,
    adaptive::Record,
    convert::{dtype, from_reshard},
};
use burn::{
    module::{AutodiffModule, ModuleMapper, Param, ParamId},
    optim::{AdaptiveMomentumState, Optimizer, record::AdaptorRecord},
    tensor::{
        BasicOps, Bool, Int, Tensor, TensorKind,
        backend::{AutodiffBackend, Backend},
    },
};
use reshard::ValueTree;

/// The module and the optimizer with what was loaded. Gradients are tracked where they were before. What else the job saved, such as the number of
/// its batch, stays with the caller.
///
/// # Errors
/// A parameter is missing, or has another type or shape. The error names it.
pub fn restore<B, M, O>(
    module: M,
    optimizer: AdaptiveOptimizer<O, M, B>,
    mut loaded: ValueTree,
) -> Result<(M, AdaptiveOptimizer<O, M, B>), BoxError>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
    O: Adaptive<B::InnerBackend>,
{
    let mut part = |name: &str| {
        loaded
            .remove(name)
            .ok_or_else(|| format!("what was loaded has no `{name}`"))
    };
    let (model, mut optim) = (part("model")?, part("optim")?);
    let moments = optim
        .remove("state")
        .ok_or("what was loaded has no `optim.state`")?;
    let mut loader = Loader::<O, M, B> {
        path: Vec::new(),
        model,
        moments,
        record: Record::<O, M, B>::default(),
        failed: None,
    };
    let module = module.map(&mut loader);
    match loader.failed {
        Some(failed) => Err(failed),
        None => Ok((module, optimizer.load_record(loader.record))),
    }
}

/// Goes through a module and puts loaded values in place of its own.
struct Loader<O: Adaptive<B::InnerBackend>, M: AutodiffModule<B>, B: AutodiffBackend> {
    path: Vec<String>,
    model: ValueTree,
    moments: ValueTree,
    record: Record<O, M, B>,
    failed: Option<BoxError>,
}

/// A loaded tensor in place of `old`.
fn replaced<A, const D: usize, K>(
    from: &mut ValueTree,
    name: &str,
    old: &Tensor<A, D, K>,
) -> Result<Tensor<A, D, K>, BoxError>
where
    A: Backend,
    K: TensorKind<A> + BasicOps<A>,
{
    let tree = from.remove(name).ok_or("it was not loaded")?;
    let tensor = tree
        .into_leaf()
        .and_then(reshard::Value::into_tensor)
        .ok_or("it is no tensor")?;
    if dtype(old.dtype()) != Some(tensor.dtype()) {
        return Err(format!(
            "the module has elements of type {:?}, and the value {}",
            old.dtype(),
            tensor.dtype()
        )
        .into());
    }
    let data = from_reshard(tensor)?;
    if data.shape[..] != old.dims()[..] {
        return Err(format!(
            "the module has the shape {:?}, and the value {:?}",
            old.dims(),
            data.shape
        )
        .into());
    }
    Ok(Tensor::from_data_dtype(data, &old.device(), old.dtype()))
}

impl<O: Adaptive<B::InnerBackend>, M: AutodiffModule<B>, B: AutodiffBackend> Loader<O, M, B> {
    /// A parameter with its loaded value. After an error, which is kept, it stays as it is.
    fn parameter<const D: usize, K>(&mut self, old: Tensor<B, D, K>) -> Tensor<B, D, K>
    where
        K: TensorKind<B> + BasicOps<B>,
    {
        let name = self.path.join(".");
        match replaced(&mut self.model, &name, &old) {
            Ok(new) => new,
            Err(e) => {
                self.failed
                    .get_or_insert_with(|| format!("model.{name}: {e}").into());
                old
            }
        }
    }

    /// Reads the state of a parameter, if it has any.
    fn moments<const D: usize>(&mut self, id: ParamId, of: Tensor<B::InnerBackend, D>) {
        let name = self.path.join(".");
        let Some(mut state) = self.moments.remove(&name) else {
            return;
        };
        let mut read = || -> Result<_, BoxError> {
            let step = state.take_tensor("step")?.to_vec::<f32>()?;
            let time = match step[..] {
                // A whole number that a float32 holds.
                [step] if (0. ..=16_777_216.).contains(&step) && step.fract() == 0. => {
                    step as usize
                }
                _ => return Err(format!("`step` is {step:?}, and no number of steps").into()),
            };
            let (first, second) = (
                replaced(&mut state, "exp_avg", &of)?,
                replaced(&mut state, "exp_avg_sq", &of)?,
            );
            Ok(AdaptiveMomentumState::new(time, first, second))
        };
        match read() {
            Ok(moments) => drop(
                self.record
                    .insert(id, AdaptorRecord::from_state(O::state(moments))),
            ),
            Err(e) => drop(
                self.failed
                    .get_or_insert_with(|| format!("optim.state.{name}: {e}").into()),
            ),
        }
    }
}

impl<O: Adaptive<B::InnerBackend>, M: AutodiffModule<B>, B: AutodiffBackend> ModuleMapper<B>
    for Loader<O, M, B>
{
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let id = param.id;
        param.map(|old| {
            self.moments(id, old.clone().inner());
            let tracked = old.is_require_grad();
            self.parameter(old).detach().set_require_grad(tracked)
        })
    }

    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Int>>,
    ) -> Param<Tensor<B, D, Int>> {
        param.map(|old| self.parameter(old))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Bool>>,
    ) -> Param<Tensor<B, D, Bool>> {
        param.map(|old| self.parameter(old))
    }
}
