//! Saves the variables of candle, and loads them into another model of the same shape.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap, linear};
use futures::executor::block_on;
use reshard::{StateDict, Value, blocking, model::Leaf};
use reshard_optim::{
    ModelState, ParamId, Parameter, StateDictOptions, get_model_state_dict, set_model_state_dict,
};
use std::{collections::HashMap, error::Error, sync::MutexGuard};

type BoxError = Box<dyn Error + Send + Sync>;

/// The variables of a model of candle, in 32-bit floats.
struct Variables(VarMap);

impl Variables {
    fn named(&self) -> MutexGuard<'_, HashMap<String, Var>> {
        // A poisoned lock means that another thread panicked while it changed the map.
        self.0.data().lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn to_reshard(tensor: &Tensor) -> Result<reshard::Tensor, BoxError> {
    let shape: Vec<u64> = tensor.dims().iter().map(|n| *n as u64).collect();
    let values = tensor.flatten_all()?.to_vec1::<f32>()?;
    Ok(reshard::Tensor::from_vec(&shape, values)?)
}

fn from_reshard(tensor: &reshard::Tensor) -> Result<Tensor, BoxError> {
    let shape: Vec<usize> = tensor.shape().iter().map(|n| *n as usize).collect();
    let values = tensor.to_vec::<f32>()?;
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

impl ModelState for Variables {
    fn parameters(&self) -> Vec<Parameter> {
        let vars = self.named();
        let mut names: Vec<&String> = vars.keys().collect();
        // A hash map has no order; ids must be the same on all ranks.
        names.sort();
        let param = |(id, name): (u64, &String)| {
            let data = to_reshard(vars[name].as_tensor()).ok()?;
            Some(Parameter {
                name: name.clone(),
                id: ParamId(id),
                requires_grad: true,
                data: Leaf::Value(data.into()),
            })
        };
        (0..).zip(names).filter_map(param).collect()
    }

    fn load(&mut self, name: &str, value: Value) -> Result<(), BoxError> {
        let tensor = value.into_tensor().ok_or("a variable is a tensor")?;
        let vars = self.named();
        let var = vars.get(name).ok_or("candle has no such variable")?;
        Ok(var.set(&from_reshard(&tensor)?)?)
    }
}

/// Two layers with random weights.
fn model() -> Result<Variables, BoxError> {
    let vars = VarMap::new();
    let build = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    linear(4, 8, build.pp("fc1"))?;
    linear(8, 2, build.pp("fc2"))?;
    Ok(Variables(vars))
}

fn state(model: &Variables) -> Result<StateDict, BoxError> {
    Ok(block_on(get_model_state_dict(
        model,
        &StateDictOptions::default(),
    ))?)
}

fn main() -> Result<(), BoxError> {
    let dir = tempfile::tempdir()?;
    let url = dir.path().join("checkpoint").display().to_string();
    let (trained, mut fresh) = (model()?, model()?);
    blocking::save(&state(&trained)?, &url)?;

    // The state of the fresh model says which tensors are wanted.
    let loaded = blocking::load(state(&fresh)?, &url)?;
    let options = StateDictOptions::default();
    block_on(set_model_state_dict(&mut fresh, loaded, &options))?;

    for (name, var) in trained.named().iter() {
        let same = to_reshard(&fresh.named()[name])? == to_reshard(var)?;
        println!("{name}: {}", if same { "equal" } else { "different" });
        assert!(same, "{name} differs");
    }
    Ok(())
}
