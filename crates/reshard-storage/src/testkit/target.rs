use reshard_model::{DType, Element, LentBuffer, LentView, Region, RegionMut, Tensor};
use std::sync::Arc;

/// A buffer to load into.
#[derive(Debug)]
pub struct Target {
    lent: Arc<LentBuffer>,
    views: Vec<LentView>,
}

impl Target {
    /// A row-major buffer of this shape, of `T` that are all 0, and parts of it that can be written.
    ///
    /// # Panics
    /// When the shape is too large, or regions overlap or don't fit.
    pub fn new<T: Element>(shape: &[u64], regions: &[Region]) -> (Self, Vec<RegionMut>) {
        let tensor = Tensor::zeros("target", dtype::<T>(), shape).unwrap();
        let (lent, views) = LentBuffer::new("target", vec![tensor])
            .map_err(|(e, _)| e)
            .unwrap();
        let wants: Vec<_> = regions.iter().map(|r| (&views[0], r.clone())).collect();
        let lent_regions = lent.regions_mut(&wants).unwrap();
        (Self { lent, views }, lent_regions)
    }

    /// A flat buffer of `len` bytes, claimed as a whole.
    ///
    /// # Panics
    /// When it is too large.
    pub fn bytes(len: u64) -> (Self, RegionMut) {
        let (target, mut lent_regions) = Self::new::<u8>(&[len], &[Region::whole(&[len])]);
        (target, lent_regions.pop().unwrap())
    }

    /// Whether no region is in use any more.
    pub fn is_free(&self) -> bool {
        Arc::strong_count(&self.lent) == 1
    }

    /// The buffer as it is now.
    ///
    /// # Panics
    /// When a region is still in use, or the elements are not `T`.
    pub fn into_vec<T: Element>(self) -> Vec<T> {
        let tensors = self
            .lent
            .reclaim(self.views)
            .map_err(|_| "a region is still in use")
            .unwrap();
        tensors
            .into_iter()
            .next()
            .unwrap()
            .into_vec()
            .map_err(|_| "other elements")
            .unwrap()
    }
}

fn dtype<T: Element>() -> DType {
    T::DTYPE
}
