//! Saves the parameters of a module of burn, and loads them into another one of the same shape.

use burn::{
    backend::NdArray,
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    nn::{Linear, LinearConfig},
    tensor::{Tensor, TensorData, backend::Backend},
};
use futures::executor::block_on;
use reshard::{StateDict, Value, blocking, model::Leaf};
use reshard_optim::{
    ModelState, ParamId, Parameter, StateDictOptions, get_model_state_dict, set_model_state_dict,
};
use std::{collections::BTreeMap, error::Error};

type BoxError = Box<dyn Error + Send + Sync>;

/// A module of burn whose parameters are 32-bit floats. `None` only while it is rebuilt.
struct Named<M>(Option<M>);

/// Lists parameters with their names: the path of fields.
#[derive(Default)]
struct Lister {
    path: Vec<String>,
    found: Vec<(String, u64, reshard::Tensor)>,
}

impl<B: Backend> ModuleVisitor<B> for Lister {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let data = param.val().to_data();
        let shape: Vec<u64> = data.shape.iter().map(|n| *n as u64).collect();
        let values = data
            .to_vec::<f32>()
            .expect("this module has 32-bit floats only");
        let tensor = reshard::Tensor::from_vec(&shape, values).expect("burn's shape fits its data");
        self.found
            .push((self.path.join("."), param.id.val(), tensor));
    }
}

/// Puts loaded values in place of those that a module has.
struct Loader<'a> {
    path: Vec<String>,
    values: &'a BTreeMap<String, reshard::Tensor>,
}

impl<B: Backend> ModuleMapper<B> for Loader<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(loaded) = self.values.get(&self.path.join(".")) else {
            return param;
        };
        let shape: Vec<usize> = loaded.shape().iter().map(|n| *n as usize).collect();
        let values = loaded.to_vec::<f32>().expect("its type was checked");
        param.map(|old| Tensor::from_data(TensorData::new(values, shape), &old.device()))
    }
}

impl<M: Module<NdArray>> ModelState for Named<M> {
    fn parameters(&self) -> Vec<Parameter> {
        let mut lister = Lister::default();
        if let Some(module) = &self.0 {
            module.visit(&mut lister);
        }
        let param = |(name, id, data): (String, u64, reshard::Tensor)| Parameter {
            name,
            id: ParamId(id),
            requires_grad: true,
            data: Leaf::Value(data.into()),
        };
        lister.found.into_iter().map(param).collect()
    }

    fn load(&mut self, name: &str, value: Value) -> Result<(), BoxError> {
        let tensor = value.into_tensor().ok_or("a parameter is a tensor")?;
        if tensor.dtype() != reshard::DType::Float32 {
            return Err(
                format!("this module has 32-bit floats, and not {}", tensor.dtype()).into(),
            );
        }
        let values = BTreeMap::from([(name.to_owned(), tensor)]);
        let mut loader = Loader {
            path: Vec::new(),
            values: &values,
        };
        self.0 = self.0.take().map(|module| module.map(&mut loader));
        Ok(())
    }
}

#[derive(Module, Debug)]
struct Net<B: Backend> {
    fc1: Linear<B>,
    fc2: Linear<B>,
}

/// Two layers with random weights.
fn model() -> Named<Net<NdArray>> {
    let device = Default::default();
    Named(Some(Net {
        fc1: LinearConfig::new(4, 8).init(&device),
        fc2: LinearConfig::new(8, 2).init(&device),
    }))
}

fn state(model: &dyn ModelState) -> Result<StateDict, BoxError> {
    Ok(block_on(get_model_state_dict(
        model,
        &StateDictOptions::default(),
    ))?)
}

fn main() -> Result<(), BoxError> {
    let dir = tempfile::tempdir()?;
    let url = dir.path().join("checkpoint").display().to_string();
    let (trained, mut fresh) = (model(), model());
    blocking::save(&state(&trained)?, &url)?;

    // The state of the fresh module says which tensors are wanted.
    let loaded = blocking::load(state(&fresh)?, &url)?;
    let options = StateDictOptions::default();
    block_on(set_model_state_dict(&mut fresh, loaded, &options))?;

    for (was, is) in trained.parameters().iter().zip(fresh.parameters()) {
        let same = match (&was.data, &is.data) {
            (Leaf::Value(a), Leaf::Value(b)) => a == b,
            _ => false,
        };
        println!("{}: {}", was.name, if same { "equal" } else { "different" });
        assert!(same, "{} differs", was.name);
    }
    Ok(())
}
