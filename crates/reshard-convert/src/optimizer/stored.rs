//! The state of one name in a bucket, wherever it lies.

use reshard::{DType, model::TensorSource};
use reshard_optim::BucketId;
use std::sync::Arc;

/// A bucket with the prefix of its optimizer.
pub(super) type At = (String, BucketId);

/// The state of one name in a bucket: elements of one axis.
pub(super) struct Stored {
    pub(super) dtype: DType,
    pub(super) from: Arc<dyn TensorSource>,
    /// The bucket's first element there.
    pub(super) start: u64,
}
