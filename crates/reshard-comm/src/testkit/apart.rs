use crate::{Cause, ProcessGroup, Rank, Result};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// A group within one process whose ranks do as if they did not share memory: messages are joined, as on a wire.
#[derive(Clone, Debug)]
pub struct Apart(Arc<dyn ProcessGroup>);

impl Apart {
    /// Around another group.
    pub fn new(inner: Arc<dyn ProcessGroup>) -> Self {
        Self(inner)
    }
}

#[async_trait]
impl ProcessGroup for Apart {
    fn rank(&self) -> Rank {
        self.0.rank()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn abort(&self, cause: Cause) {
        self.0.abort(cause);
    }

    fn silent(&self) -> Vec<Rank> {
        self.0.silent()
    }

    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        self.0.all_to_all(to).await
    }

    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Arc<dyn ProcessGroup>>> {
        let part = self.0.split(color, order).await?;
        Ok(part.map(|inner| Arc::new(Self(inner)) as Arc<dyn ProcessGroup>))
    }
}
