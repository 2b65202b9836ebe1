use reshard_model::{Claim, DType, Element, Landing, LandingView, Region, Tensor};
use std::sync::Arc;

/// A buffer to load into.
#[derive(Debug)]
pub struct Target {
    landing: Arc<Landing>,
    views: Vec<LandingView>,
}

impl Target {
    /// A row-major buffer of this shape, of `T` that are all 0, and claims of regions of it.
    ///
    /// # Panics
    /// When the shape is too large, or regions overlap or don't fit.
    pub fn new<T: Element>(shape: &[u64], regions: &[Region]) -> (Self, Vec<Claim>) {
        let tensor = Tensor::zeros("target", dtype::<T>(), shape).unwrap();
        let (landing, views) = Landing::new("target", vec![tensor]).map_err(|(e, _)| e).unwrap();
        let wants: Vec<_> = regions.iter().map(|r| (&views[0], r.clone())).collect();
        let claims = landing.claim(&wants).unwrap();
        (Self { landing, views }, claims)
    }

    /// A flat buffer of `len` bytes, claimed as a whole.
    ///
    /// # Panics
    /// When it is too large.
    pub fn bytes(len: u64) -> (Self, Claim) {
        let (target, mut claims) = Self::new::<u8>(&[len], &[Region::whole(&[len])]);
        (target, claims.pop().unwrap())
    }

    /// Whether no claim is in use any more.
    pub fn is_free(&self) -> bool {
        Arc::strong_count(&self.landing) == 1
    }

    /// The buffer as it is now.
    ///
    /// # Panics
    /// When a claim is still in use, or the elements are not `T`.
    pub fn into_vec<T: Element>(self) -> Vec<T> {
        let tensors = self.landing.reclaim(self.views).map_err(|_| "a claim is still in use").unwrap();
        tensors.into_iter().next().unwrap().into_vec().map_err(|_| "other elements").unwrap()
    }
}

fn dtype<T: Element>() -> DType {
    T::DTYPE
}
