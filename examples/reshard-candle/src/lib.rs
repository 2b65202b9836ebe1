//! Checkpoints of candle: variables, moments of AdamW, and steps, as state dicts of reshard.
//!
//! - [`to_reshard`] and [`from_reshard`] convert a tensor.
//! - [`Variables`] is a `VarMap` as a model of [`reshard_optim`].
//! - [`AdamW`] computes what `candle_nn::AdamW` computes, and gives its state away, which that one does not.
//! - [`state`] is what a training job saves, [`template`] what it asks for when it resumes, and [`restore`] puts that back.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss};
//! use reshard::prelude::*;
//! use reshard_candle::{AdamW, Variables, restore, state, template};
//!
//! # fn main() -> Result<(), reshard_candle::BoxError> {
//! # let dir = tempfile::tempdir()?;
//! # let place = dir.path().join("step-1");
//! let map = VarMap::new();
//! let layer = linear(4, 2, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu).pp("fc"))?;
//! let mut model = Variables::new(map)?;
//! let mut optimizer = AdamW::of(&model, ParamsAdamW::default())?;
//!
//! let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
//! let loss = loss::mse(&layer.forward(&x)?, &Tensor::zeros((3, 2), DType::F32, &Device::Cpu)?)?;
//! optimizer.backward_step(&loss)?;
//! blocking::run(save(&state(&model, &optimizer)?, &place).dialect(Dialect::Dcp))?;
//!
//! let loaded = blocking::load(template(&model, &optimizer)?, &place)?;
//! restore(&mut model, &mut optimizer, loaded)?;
//! # Ok(())
//! # }
//! ```
//!
//! All leaves are plain tensors. So save with `Dialect::Dcp`, which makes an item of each: then any number of ranks can resume, with
//! the parts that they ask for. The default, Megatron's dialect, would put all of them into one `common.pt`, which can only be read as a whole.
//!
//! Keys are those of PyTorch's `get_state_dict`: `model.fc.weight`, `optim.state.fc.weight.exp_avg`, `exp_avg_sq` and `step`.
//!
//! A save copies each tensor once, out of candle's storage. So the job may change its variables as soon as [`state`] has returned, also if an
//! `AsyncSaver` writes. A template copies nothing. A load copies each tensor once, into the variable that layers share.

mod adamw;
mod convert;
mod job;
mod variables;

pub use adamw::AdamW;
pub use convert::{from_reshard, to_reshard};
pub use job::{restore, state, template};
pub use variables::Variables;

/// Any error of candle, of reshard, or of a value that does not fit.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
