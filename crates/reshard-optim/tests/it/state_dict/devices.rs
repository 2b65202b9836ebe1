//! Tensors on devices: where they are in a state dict, and how they get to host memory.

use super::toy::{Held, ToyModel, ToyOptimizer, on_ranks};
use futures::executor::block_on;
use reshard::{
    DType, Data, StateDict, Tensor, Value,
    model::{
        DeviceBuffer, DeviceTensor, Layout, Leaf, Path, Step,
        testkit::{FakeDevice, LostDevice},
    },
};
use reshard_optim::{
    ModelState, OptimError, OptimizerState, ParamGroup, ParamId, Parameter, StateDictOptions,
    get_model_state_dict, get_state_dict,
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn copied(tensor: &Tensor) -> DeviceTensor {
    let memory = FakeDevice::new(tensor.nbytes());
    let layout = Layout::contiguous(tensor.dtype().size(), tensor.shape()).unwrap();
    memory.copy_from_host(&layout, &tensor.to_bytes()).unwrap();
    DeviceTensor::new(tensor.dtype(), tensor.shape(), memory).unwrap()
}

fn on_device(leaf: Leaf) -> Leaf {
    match leaf {
        Leaf::Value(Value::Tensor(t)) => Leaf::Value(Value::Device(copied(&t))),
        Leaf::Tensor(mut t) => {
            t.data = Data::Device(copied(t.data.host().unwrap()));
            Leaf::Tensor(t)
        }
        other => other,
    }
}

/// A model, or its optimizer, whose tensors lie on a device.
struct OnDevice<T>(T);

impl ModelState for OnDevice<ToyModel> {
    fn parameters(&self) -> Vec<Parameter> {
        let moved = |mut p: Parameter| {
            p.data = on_device(p.data);
            p
        };
        self.0.parameters().into_iter().map(moved).collect()
    }

    fn buffers(&self) -> Vec<(String, Leaf)> {
        let all = self.0.buffers().into_iter();
        all.map(|(name, leaf)| (name, on_device(leaf))).collect()
    }

    fn load(&mut self, name: &str, value: Value) -> Result<(), BoxError> {
        self.0.load(name, value)
    }
}

impl OptimizerState for OnDevice<ToyOptimizer> {
    fn param_groups(&self) -> Vec<ParamGroup> {
        self.0.param_groups()
    }

    fn state(&self, param: ParamId) -> Vec<(Box<str>, Leaf)> {
        let all = self.0.state(param).into_iter();
        all.map(|(name, leaf)| (name, on_device(leaf))).collect()
    }

    fn load_group(
        &mut self,
        index: usize,
        options: Vec<(Box<str>, Value)>,
    ) -> Result<(), BoxError> {
        self.0.load_group(index, options)
    }

    fn load_state(
        &mut self,
        param: ParamId,
        state: Vec<(Box<str>, Value)>,
    ) -> Result<(), BoxError> {
        self.0.load_state(param, state)
    }
}

/// `a` is cut by rows, and `c` is whole on each rank.
fn model(rank: u64, ranks: u64) -> ToyModel {
    let mut a = Held::zeros("a", 0, DType::Float32, &[5, 2]);
    a.local = Tensor::from_vec(&[5, 2], (0..10).map(|n| n as f32).collect()).unwrap();
    let mut c = Held::zeros("c", 9, DType::Int64, &[2]);
    c.local = Tensor::from_vec(&[2], vec![7i64, 8]).unwrap();
    ToyModel {
        prefix: String::new(),
        params: vec![a.of_rank(rank, ranks)],
        buffers: vec![c],
    }
}

/// The paths of tensors on devices, and the bytes of those in host memory.
fn tensors(state: &StateDict) -> (Vec<String>, Vec<(String, Vec<u8>)>) {
    let (mut devices, mut host) = (Vec::new(), Vec::new());
    state.visit(&mut |path, leaf| {
        let path = Path::from(path).to_string();
        match leaf {
            Leaf::Value(Value::Device(_)) => devices.push(path),
            Leaf::Value(Value::Tensor(t)) => host.push((path, t.to_bytes().to_vec())),
            Leaf::Tensor(t) => match t.data.host() {
                Some(t) => host.push((path, t.to_bytes().to_vec())),
                None => devices.push(path),
            },
            _ => {}
        }
    });
    (devices, host)
}

#[test]
fn tensors_stay_on_their_device_unless_they_are_to_be_in_host_memory() {
    let in_host = model(0, 1);
    let optimizer = ToyOptimizer::of(&in_host, &[&[0]]);
    let of_host = block_on(get_state_dict(&in_host, &[&optimizer], &Default::default()));
    let wanted = tensors(&of_host.unwrap().into_state_dict("model", "optim"));
    assert_eq!((wanted.0.len(), wanted.1.len()), (0, 5));

    for cpu_offload in [false, true] {
        let options = StateDictOptions {
            cpu_offload,
            ..StateDictOptions::default()
        };
        let (model, optimizer) = (OnDevice(model(0, 1)), OnDevice(optimizer.clone()));
        let dicts = block_on(get_state_dict(&model, &[&optimizer], &options)).unwrap();
        let (devices, host) = tensors(&dicts.into_state_dict("model", "optim"));
        match cpu_offload {
            true => assert_eq!((devices, host), wanted),
            false => {
                let paths: Vec<String> = wanted.1.iter().map(|(path, _)| path.clone()).collect();
                assert_eq!((devices, host), (paths, Vec::new()));
            }
        }
    }
}

#[test]
fn whole_tensors_of_devices_are_in_the_coordinator_s_host_memory() {
    let states = on_ranks(2, async |rank, comm| {
        let options = StateDictOptions {
            full_state_dict: true,
            cpu_offload: true,
            comm,
            ..StateDictOptions::default()
        };
        let model = OnDevice(model(rank, 2));
        get_model_state_dict(&model, &options).await.unwrap()
    });
    let (devices, host) = tensors(&states[0]);
    assert!(devices.is_empty(), "{devices:?}");
    let elements: Vec<u8> = (0..10).flat_map(|n| (n as f32).to_le_bytes()).collect();
    assert_eq!(host[0], ("a".into(), elements));
    assert_eq!(tensors(&states[1]), (Vec::new(), Vec::new()));
}

/// A model whose only parameter can't be copied.
struct Lost;

impl ModelState for Lost {
    fn parameters(&self) -> Vec<Parameter> {
        let lost = DeviceTensor::new(DType::UInt8, &[8], std::sync::Arc::new(LostDevice)).unwrap();
        vec![Parameter {
            name: "net.lost".into(),
            id: ParamId(0),
            requires_grad: true,
            data: Leaf::Value(Value::Device(lost)),
        }]
    }

    fn buffers(&self) -> Vec<(String, Leaf)> {
        Vec::new()
    }

    fn load(&mut self, _: &str, _: Value) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn a_device_that_does_not_answer_is_an_error_that_names_the_tensor() {
    let options = StateDictOptions {
        cpu_offload: true,
        ..StateDictOptions::default()
    };
    let error = block_on(get_model_state_dict(&Lost, &options)).unwrap_err();
    assert!(matches!(error, OptimError::Model(_)), "{error}");
    assert!(error.to_string().contains("net.lost"), "{error}");
    // Nobody asks for a copy without it.
    let state = block_on(get_model_state_dict(&Lost, &Default::default())).unwrap();
    assert!(state.at(&[Step::from("net.lost")]).is_some());
}
