//! Checkpoints of burn: parameters of a module, and moments and steps of its Adam or AdamW, as state dicts of reshard.
//!
//! - [`to_reshard`] and [`from_reshard`] convert the data of a tensor.
//! - [`state`] is what a training job saves, [`template`] what it asks for when it resumes, and [`restore`] makes module and record of that.
//!
//! ```
//! use burn::{
//!     backend::{Autodiff, NdArray},
//!     nn::LinearConfig,
//!     optim::{AdamWConfig, GradientsParams, Optimizer},
//!     tensor::Tensor,
//! };
//! use reshard::prelude::*;
//! use reshard_burn::{restore, state, template};
//!
//! type B = Autodiff<NdArray>;
//!
//! # fn main() -> Result<(), reshard_burn::BoxError> {
//! # let dir = tempfile::tempdir()?;
//! # let place = dir.path().join("step-1");
//! let device = Default::default();
//! let model = LinearConfig::new(4, 2).init::<B>(&device);
//! let mut optimizer = AdamWConfig::new().init();
//! let loss = model.forward(Tensor::<B, 2>::ones([3, 4], &device)).mean();
//! let grads = GradientsParams::from_grads(loss.backward(), &model);
//! let model = optimizer.step(0.01, model, grads);
//! blocking::run(save(&state(&model, &optimizer)?, &place).dialect(Dialect::Dcp))?;
//!
//! // In the next process: another module, with other random weights.
//! let fresh = LinearConfig::new(4, 2).init::<B>(&device);
//! let optimizer = AdamWConfig::new().init();
//! let loaded = blocking::load(template(&fresh)?, &place)?;
//! let (model, optimizer) = restore(fresh, optimizer, loaded)?;
//! # drop((model, optimizer));
//! # Ok(())
//! # }
//! ```
//!
//! All leaves are plain tensors. So save with `Dialect::Dcp`, which makes an item of each. The default, Megatron's dialect, would put all of them into one
//! `common.pt`, which can only be read as a whole.
//!
//! Keys are those of PyTorch's `get_state_dict`: `model.weight`, `optim.state.weight.exp_avg`, `exp_avg_sq` and `step`. burn's ids of parameters
//! are other ones in each process, so names tell parameters: the paths of fields.
//!
//! A save copies each tensor once, out of the memory of the backend. A template copies nothing.

mod adaptive;
mod convert;
mod load;
mod save;

pub use adaptive::{Adaptive, AdaptiveOptimizer};
pub use convert::{from_reshard, to_reshard};
pub use load::restore;
pub use save::{state, template};

/// Any error of reshard, or of a value that does not fit.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
