//! Optimizers whose state is two moments and a number of steps.

use burn::{
    optim::{
        Adam, AdamState, AdamW, AdamWState, AdaptiveMomentumState, SimpleOptimizer,
        adaptor::OptimizerAdaptor,
    },
    tensor::backend::Backend,
};

/// Adam and AdamW. Implement it for an optimizer of your own that keeps two moments.
pub trait Adaptive<B: Backend>: SimpleOptimizer<B> {
    /// The moments of a state.
    fn moments<const D: usize>(state: Self::State<D>) -> AdaptiveMomentumState<B, D>;

    /// The state with these moments.
    fn state<const D: usize>(moments: AdaptiveMomentumState<B, D>) -> Self::State<D>;
}

impl<B: Backend> Adaptive<B> for AdamW {
    fn moments<const D: usize>(state: Self::State<D>) -> AdaptiveMomentumState<B, D> {
        state.momentum
    }

    fn state<const D: usize>(moments: AdaptiveMomentumState<B, D>) -> Self::State<D> {
        AdamWState::new(moments)
    }
}

impl<B: Backend> Adaptive<B> for Adam {
    fn moments<const D: usize>(state: Self::State<D>) -> AdaptiveMomentumState<B, D> {
        state.momentum
    }

    fn state<const D: usize>(moments: AdaptiveMomentumState<B, D>) -> Self::State<D> {
        AdamState::new(moments)
    }
}

/// What `AdamWConfig::init` and `AdamConfig::init` return.
pub type AdaptiveOptimizer<O, M, B> = OptimizerAdaptor<O, M, B>;

/// The record of such an optimizer: the state of each parameter, by its id.
pub(crate) type Record<O, M, B> =
    <OptimizerAdaptor<O, M, B> as burn::optim::Optimizer<M, B>>::Record;
