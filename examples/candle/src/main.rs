//! Trains a small model with candle, with a checkpoint after step 10 of 20. A second job, with other random weights, resumes from that checkpoint.
//! Its variables and moments after step 20 are those of the job that was never stopped, bit for bit.
//!
//! `cargo run -p reshard-example-candle`

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss};
use reshard::{model::Leaf, prelude::*};
use reshard_candle::{AdamW, BoxError, Variables, restore, state, template};
use std::path::Path;

const STEPS: u32 = 20;
const SAVED: u32 = 10;

/// What a process holds of a training job.
struct Job {
    layers: (Linear, Linear),
    model: Variables,
    optimizer: AdamW,
    /// How many steps it has made. It decides which batch comes next.
    step: u32,
}

impl Job {
    /// A model with random weights.
    fn new() -> Result<Self, BoxError> {
        let map = VarMap::new();
        let build = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let layers = (
            linear(4, 8, build.pp("fc1"))?,
            linear(8, 2, build.pp("fc2"))?,
        );
        let model = Variables::new(map)?;
        let optimizer = AdamW::of(
            &model,
            ParamsAdamW {
                lr: 0.05,
                ..Default::default()
            },
        )?;
        Ok(Self {
            layers,
            model,
            optimizer,
            step: 0,
        })
    }

    /// Goes on to this step, and saves a checkpoint on its way.
    fn train(&mut self, place: &Path) -> Result<(), BoxError> {
        while self.step < STEPS {
            let (input, target) = batch(self.step)?;
            let hidden = self.layers.0.forward(&input)?.tanh()?;
            let loss = loss::mse(&self.layers.1.forward(&hidden)?, &target)?;
            self.optimizer.backward_step(&loss)?;
            self.step += 1;
            println!("step {:2}: loss {:.5}", self.step, loss.to_scalar::<f32>()?);
            if self.step == SAVED && !place.exists() {
                self.save(place)?;
            }
        }
        Ok(())
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
        let mut job = Self::new()?;
        let mut wanted = template(&job.model, &job.optimizer)?;
        wanted.insert("step", 0);
        let loaded = blocking::load(wanted, place)?;
        job.step = u32::try_from(loaded.int("step")?)?;
        restore(&mut job.model, &mut job.optimizer, loaded)?;
        Ok(job)
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
fn batch(step: u32) -> Result<(Tensor, Tensor), BoxError> {
    let numbers = |n: u32| {
        (0..n)
            .map(|i| ((step * 31 + i * 7) % 13) as f32 / 13.)
            .collect::<Vec<_>>()
    };
    let device = &Device::Cpu;
    Ok((
        Tensor::from_vec(numbers(12), (3, 4), device)?,
        Tensor::from_vec(numbers(6), (3, 2), device)?,
    ))
}

fn main() -> Result<(), BoxError> {
    let dir = tempfile::tempdir()?;
    let place = dir.path().join("step-10");
    let mut whole = Job::new()?;
    whole.train(&place)?;

    // The process is gone. Another one begins with other random weights.
    let mut resumed = Job::resume(&place)?;
    assert_eq!(resumed.step, SAVED);
    resumed.train(&place)?;

    let (want, got) = (whole.tensors()?, resumed.tensors()?);
    assert_eq!(
        want.len(),
        4 + 3 * 4,
        "4 variables, and a step and two moments of each"
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
