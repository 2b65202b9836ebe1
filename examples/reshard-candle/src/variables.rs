//! A `VarMap` as a model.

use crate::{
    BoxError,
    convert::{dtype, from_reshard, shape_of, to_reshard, unsupported},
};
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use reshard::{
    Data, Region, ShardedTensor, Value,
    model::{Dims, Leaf, TensorSource},
};
use reshard_optim::{ModelState, ParamId, Parameter};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError},
};

/// The variables of a model of candle.
#[derive(Clone)]
pub struct Variables {
    map: VarMap,
    /// Whether leaves have data: a template has none.
    with_data: bool,
}

impl Variables {
    /// The variables of this map, and those that it gets later.
    ///
    /// # Errors
    /// A variable has a type that can't be saved. The error names it.
    pub fn new(map: VarMap) -> Result<Self, BoxError> {
        let all = Self {
            map,
            with_data: true,
        };
        for (name, var) in all.by_name() {
            if dtype(var.dtype()).is_none() {
                return Err(format!("{name}: {}", unsupported(var.dtype())).into());
            }
        }
        Ok(all)
    }

    /// The same variables, declared without their data.
    pub(crate) fn without_data(&self) -> Self {
        Self {
            with_data: false,
            ..self.clone()
        }
    }

    /// All variables, sorted by name. A `VarMap` has no order, and ids must be the same on all ranks.
    pub fn by_name(&self) -> BTreeMap<String, Var> {
        // A poisoned lock means that another thread panicked while it changed the map. Its variables are whole all the same.
        let vars = self
            .map
            .data()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        vars.iter()
            .map(|(name, var)| (name.clone(), var.clone()))
            .collect()
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name().keys()).finish()
    }
}

impl ModelState for Variables {
    fn parameters(&self) -> Vec<Parameter> {
        let vars = (0..).zip(self.by_name());
        vars.map(|(id, (name, var))| Parameter {
            data: leaf(var.as_tensor(), self.with_data),
            name,
            id: ParamId(id),
            requires_grad: var.dtype().is_float(),
        })
        .collect()
    }

    fn load(&mut self, name: &str, value: Value) -> Result<(), BoxError> {
        let vars = self
            .map
            .data()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        set(
            vars.get(name).ok_or("the VarMap has no such variable")?,
            value,
        )
    }
}

/// A tensor as a leaf of a state dict; without data it is one of a template.
pub(crate) fn leaf(tensor: &Tensor, with_data: bool) -> Leaf {
    // A type that can't be saved came into the map later. Then the data say so when they are read.
    let dtype = dtype(tensor.dtype()).unwrap_or(reshard::DType::UInt8);
    let declared = |data| {
        Leaf::Tensor(ShardedTensor {
            data,
            ..ShardedTensor::template("", dtype, &shape_of(tensor))
        })
    };
    if !with_data {
        return declared(Data::None);
    }
    match to_reshard(tensor) {
        Ok(copy) => Leaf::Value(copy.into()),
        Err(why) => declared(Data::Lazy(Arc::new(Failed {
            dtype,
            shape: shape_of(tensor)[..].into(),
            why: why.to_string(),
        }))),
    }
}

/// Elements that could not be copied. A leaf can't be an error, so the save gets it when it reads them.
struct Failed {
    dtype: reshard::DType,
    shape: Dims,
    why: String,
}

impl TensorSource for Failed {
    fn dtype(&self) -> reshard::DType {
        self.dtype
    }

    fn shape(&self) -> Dims {
        self.shape.clone()
    }

    fn read(&self, _region: &Region, _out: &mut [u8]) -> Result<(), BoxError> {
        Err(self.why.clone().into())
    }
}

/// Puts loaded elements into a variable. All layers that use the variable see them.
pub(crate) fn set(var: &Var, value: Value) -> Result<(), BoxError> {
    let tensor = value.into_tensor().ok_or("it is no tensor")?;
    let loaded = tensor.dtype();
    if dtype(var.dtype()) != Some(loaded) {
        let want = var.dtype().as_str();
        return Err(format!("the variable has elements of type {want}, and the value {loaded}; load it with `.cast(…)`").into());
    }
    Ok(var.set(&from_reshard(tensor, var.device())?)?)
}
