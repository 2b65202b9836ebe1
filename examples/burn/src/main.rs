//! Trains a small module with burn, with a checkpoint after step 10 of 20. A second job, with other random weights, resumes from that checkpoint.
//! Its parameters and moments after step 20 are those of the job that was never stopped, bit for bit.
//!
//! `cargo run -p reshard-example-burn`

use burn::{
    backend::{Autodiff, NdArray},
    module::Module,
    nn::{Linear, LinearConfig},
    optim::{AdamW, AdamWConfig, GradientsParams, Optimizer},
    tensor::{Tensor, TensorData, activation::tanh, backend::Backend},
};
use reshard::{model::Leaf, prelude::*};
use reshard_burn::{AdaptiveOptimizer, BoxError, restore, state, template};
use std::path::Path;

type B = Autodiff<NdArray>;

const STEPS: u32 = 20;
const SAVED: u32 = 10;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    fc1: Linear<B>,
    fc2: Linear<B>,
}

/// What a process holds of a training job.
struct Job {
    model: Net<B>,
    optimizer: AdaptiveOptimizer<AdamW, Net<B>, B>,
    /// How many steps it has made. It decides which batch comes next.
    step: u32,
}

impl Job {
    /// A module with random weights.
    fn new() -> Self {
        let device = Default::default();
        let model = Net {
            fc1: LinearConfig::new(4, 8).init(&device),
            fc2: LinearConfig::new(8, 2).init(&device),
        };
        Self {
            model,
            optimizer: AdamWConfig::new().init(),
            step: 0,
        }
    }

    /// Goes on to the last step, and saves a checkpoint on its way.
    fn train(mut self, place: &Path) -> Result<Self, BoxError> {
        while self.step < STEPS {
            let (input, target) = batch(self.step);
            let hidden = tanh(self.model.fc1.forward(input));
            let loss = (self.model.fc2.forward(hidden) - target)
                .powi_scalar(2)
                .mean();
            let grads = GradientsParams::from_grads(loss.backward(), &self.model);
            self.model = self.optimizer.step(0.05, self.model, grads);
            self.step += 1;
            println!("step {:2}: loss {:.5}", self.step, loss.into_scalar());
            if self.step == SAVED && !place.exists() {
                self.save(place)?;
            }
        }
        Ok(self)
    }

    fn save(&self, place: &Path) -> Result<(), BoxError> {
        let mut all = state(&self.model, &self.optimizer)?;
        all.insert("step", i64::from(self.step));
        // In PyTorch's dialect, so `dcp.load` reads it, too.
        let saved = blocking::run(save(&all, place).dialect(Dialect::Dcp))?;
        println!("{saved}");
        Ok(())
    }

    /// A job that goes on where a checkpoint was saved.
    fn resume(place: &Path) -> Result<Self, BoxError> {
        let fresh = Self::new();
        let mut wanted = template(&fresh.model)?;
        wanted.insert("step", 0);
        let loaded = blocking::load(wanted, place)?;
        let step = u32::try_from(loaded.int("step")?)?;
        let (model, optimizer) = restore(fresh.model, fresh.optimizer, loaded)?;
        Ok(Self {
            model,
            optimizer,
            step,
        })
    }

    /// All tensors that the next step depends on.
    fn tensors(&self) -> Result<Vec<(String, reshard::Tensor)>, BoxError> {
        let mut all = Vec::new();
        state(&self.model, &self.optimizer)?.visit(&mut |path, leaf| {
            if let Leaf::Value(Value::Tensor(tensor)) = leaf {
                all.push((reshard::model::Path::from(path).to_string(), tensor.clone()));
            }
        });
        Ok(all)
    }
}

/// The data of a step. A job that reads data saves its position, as this one saves its step.
fn batch(step: u32) -> (Tensor<B, 2>, Tensor<B, 2>) {
    let numbers = |n: u32| {
        (0..n)
            .map(|i| ((step * 31 + i * 7) % 13) as f32 / 13.)
            .collect::<Vec<_>>()
    };
    let device = Default::default();
    let tensor = |rows: u32, columns: u32| {
        let data = TensorData::new(numbers(rows * columns), [rows as usize, columns as usize]);
        Tensor::from_data(data, &device)
    };
    (tensor(3, 4), tensor(3, 2))
}

fn main() -> Result<(), BoxError> {
    let dir = tempfile::tempdir()?;
    let place = dir.path().join("step-10");
    let whole = Job::new().train(&place)?;

    // The process is gone. Another one begins with other random weights.
    let resumed = Job::resume(&place)?;
    assert_eq!(resumed.step, SAVED);
    let resumed = resumed.train(&place)?;

    let (want, got) = (whole.tensors()?, resumed.tensors()?);
    assert_eq!(
        want.len(),
        4 + 3 * 4,
        "4 parameters, and a step and two moments of each"
    );
    for ((name, want), (also, got)) in want.iter().zip(&got) {
        assert_eq!(name, also);
        assert_eq!(
            want.to_bytes(),
            got.to_bytes(),
            "{name} differs after a resume"
        );
    }
    println!("{} tensors are equal, bit for bit", want.len());
    Ok(())
}
