//! One tensor of optimizer state, declared as its parameter is.

use crate::{ModelParam, OptimError, Result, param::Declared};
use reshard_model::{
    DType, Data, DeviceTensor, Dims, Leaf, ReplicaId, ShardedTensor, ShardedTensorFactory, Tensor,
};
use std::ops::Range;

/// A tensor of optimizer state. It has the shape of its parameter, or is a range of its elements.
#[derive(Clone, Debug, derive_setters::Setters)]
#[setters(generate = false)]
pub struct OptimTensor {
    data: Data,
    dtype: DType,
    shape: Dims,
    /// As the range of the parameter's elements in row-major order that it holds. It has one axis.
    #[setters(generate, strip_option, rename = "flattened")]
    range: Option<Range<u64>>,
    /// As another replica than the parameter is. A distributed optimizer cuts what data-parallel ranks have copies of, so that each of
    /// its parts is a main replica.
    #[setters(generate, into, strip_option, rename = "with_replica_id")]
    replica_id: Option<ReplicaId>,
}

impl OptimTensor {
    fn of(data: Data, dtype: DType, shape: Dims) -> Self {
        Self {
            data,
            dtype,
            shape,
            range: None,
            replica_id: None,
        }
    }

    /// Of a template: a load allocates it.
    pub fn template(dtype: DType, shape: &[u64]) -> Self {
        Self::of(Data::None, dtype, shape.into())
    }
}

impl From<Tensor> for OptimTensor {
    fn from(t: Tensor) -> Self {
        let (dtype, shape) = (t.dtype(), t.shape().clone());
        Self::of(Data::Host(t), dtype, shape)
    }
}

impl From<DeviceTensor> for OptimTensor {
    fn from(t: DeviceTensor) -> Self {
        let (dtype, shape) = (t.dtype(), t.shape().clone());
        Self::of(Data::Device(t), dtype, shape)
    }
}

/// Declares a tensor of optimizer state as its parameter is declared: Megatron Core's function of the same name. The key is
/// `prefix`, a dot, and the parameter's key. Type, data and flattened range are the tensor's own, and the replica id if it has one; the rest is the parameter's. If the
/// parameter is a factory, so is the result: it builds the state as it built the parameter.
///
/// # Errors
/// [`OptimError::Shape`]; [`OptimError::TransposedAndFlattened`]; whatever the factory says when it builds the state.
pub fn make_sharded_optimizer_tensor(
    model_param: &ModelParam,
    optim_param: impl Into<OptimTensor>,
    prefix: &str,
) -> Result<Leaf> {
    let state = optim_param.into();
    let key = format!("{prefix}.{}", model_param.key());
    if state.range.is_some() && model_param.transposed {
        return Err(OptimError::TransposedAndFlattened {
            key,
            id: model_param.id,
        });
    }
    let differs = |model: &&Dims| state.range.is_none() && **model != state.shape;
    if let Some(model) = model_param.shape.as_ref().filter(differs) {
        return Err(OptimError::Shape {
            key,
            id: model_param.id,
            state: state.shape,
            model: model.clone(),
        });
    }
    Ok(match &model_param.declared {
        Declared::Tensor(model) => {
            let tensor = ShardedTensor {
                key: key.into(),
                data: state.data,
                dtype: state.dtype,
                flattened_range: state.range,
                replica_id: state.replica_id.unwrap_or_else(|| model.replica_id.clone()),
                ..model.clone()
            };
            Leaf::Tensor(tensor.validated()?)
        }
        Declared::Factory(model) => {
            // A factory learns the type from its data, so a template needs some.
            let data = match state.data {
                Data::None => Data::Host(Tensor::zeros(&key, state.dtype, &state.shape)?),
                data => data,
            };
            let factory = ShardedTensorFactory {
                key: key.into(),
                data,
                flattened_range: state.range,
                replica_id: state.replica_id.unwrap_or_else(|| model.replica_id.clone()),
                ..model.clone()
            };
            // What it refuses is known here, where the parameter is.
            factory.build()?;
            Leaf::Factory(factory)
        }
    })
}
