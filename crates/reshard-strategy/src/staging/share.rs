//! What of a state need not be copied.

use super::{AsyncStager, KeyedData};
use crate::{Result, StrategyError};
use async_trait::async_trait;
use reshard_model::Data;
use std::sync::Arc;

/// Which data of a state an asynchronous save copies before the caller goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Staging {
    /// All data, except those that are read while they are written ([`Data::Lazy`]).
    #[default]
    Copy,
    /// Only memory that somebody could change while the save has a handle on it: device memory, and host memory of types that do not say
    /// [`frozen_while_shared`](reshard_model::HostBuffer::frozen_while_shared). A `Vec` and `Bytes` are not copied. Until the save has
    /// written them, such tensors can't be changed in place or lent to a load: the program gets an error, or replaces them by others.
    Share,
}

impl Staging {
    /// The stager that copies only this, by `stager`.
    pub fn over(self, stager: Arc<dyn AsyncStager>) -> Arc<dyn AsyncStager> {
        match self {
            Self::Copy => stager,
            Self::Share => Arc::new(Sharing(stager)),
        }
    }
}

/// Leaves frozen memory where it is, and has the rest copied.
#[derive(Debug)]
struct Sharing(Arc<dyn AsyncStager>);

#[async_trait]
impl AsyncStager for Sharing {
    async fn stage(&self, leaves: Vec<KeyedData>) -> Result<Vec<Data>> {
        let copied = |leaf: &Data| match leaf {
            Data::Host(t) => !t.frozen_while_shared(),
            Data::Device(_) => true,
            Data::None | Data::Lazy(_) => false,
        };
        let (mut out, mut positions, mut originals) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (key, leaf)) in leaves.into_iter().enumerate() {
            if copied(&leaf) {
                positions.push(i);
                originals.push((key, leaf));
                out.push(Data::None);
            } else {
                out.push(leaf);
            }
        }
        if positions.is_empty() {
            return Ok(out);
        }
        let staged = self.0.stage(originals).await?;
        if staged.len() != positions.len() {
            let (have, had) = (staged.len(), positions.len());
            let what = format!("{:?} gave back {have} of {had} leaves", self.0);
            return Err(StrategyError::Internal(what));
        }
        for (i, copy) in positions.into_iter().zip(staged) {
            out[i] = copy;
        }
        Ok(out)
    }

    fn should_synchronize_after_execute(&self) -> bool {
        self.0.should_synchronize_after_execute()
    }

    async fn synchronize_staging(&self) -> Result<()> {
        self.0.synchronize_staging().await
    }
}
