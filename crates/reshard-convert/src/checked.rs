//! Tensors that are checked while they are read, and what is left to check after that.

use crate::{
    Snapshot,
    chunks::{Chunk, Chunks},
    sums,
};
use reshard::{
    DType, Region, TensorHandle,
    model::{BoxError, Dims, ModelError, SourceError, TensorSource},
    storage::Progress,
    strategy::StrategyError,
};
use std::{collections::BTreeSet, sync::Arc};

/// So many bytes are read at a time of what is left.
const BLOCK: u64 = 8 << 20;

/// A stored tensor, and what was seen of it.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) tensor: TensorHandle,
    pub(crate) chunks: Chunks,
    /// Which stored elements it has, if others may have the same ones.
    pub(crate) identity: Option<String>,
    /// Told of the bytes that were seen.
    pub(crate) progress: Progress,
}

/// Checks that what was written is what the source has.
pub(crate) async fn last_check(
    last: Option<(Vec<Arc<Watched>>, Snapshot)>,
) -> Result<(), StrategyError> {
    let Some((watched, snapshot)) = last else {
        return Ok(());
    };
    // If files were replaced, that is the reason for all that is wrong.
    snapshot.check().await?;
    check_rest(watched).await
}

/// Reads what was not seen as a whole of these tensors once more, and checks it.
async fn check_rest(watched: Vec<Arc<Watched>>) -> Result<(), StrategyError> {
    let whole = |w: &&Arc<Watched>| w.chunks.rest().next().is_none();
    let seen = watched.iter().filter(whole);
    // A target that stores the same elements once has read them once.
    let mut sound: BTreeSet<&str> = seen.filter_map(|w| w.identity.as_deref()).collect();
    for w in &watched {
        match &w.identity {
            Some(identity) if !sound.insert(identity) => {}
            _ => w.check_rest().await?,
        }
    }
    Ok(())
}

impl Watched {
    async fn check_rest(&self) -> Result<(), StrategyError> {
        for chunk in self.chunks.rest() {
            let checked = self.check(chunk).await;
            checked.map_err(|source| ModelError::Source {
                key: self.chunks.key().into(),
                what: "it is damaged, or can't be read once more".into(),
                source,
            })?;
        }
        Ok(())
    }

    async fn check(&self, chunk: &Chunk) -> Result<(), BoxError> {
        let told = |e: reshard::Error| SourceError::new(e.kind(), e);
        let mut sum = chunk.empty;
        let elements = BLOCK / self.tensor.dtype().size().max(1);
        for block in chunk.region.clone().blocks(elements) {
            let read = self.tensor.read(block).await.map_err(told)?;
            for bytes in read.blocks(BLOCK) {
                sum = sums::extended(sum, &bytes);
            }
        }
        let compared = self.chunks.compare(chunk, sum);
        compared.map_err(|e| SourceError::new(e.kind(), e).into())
    }
}

/// A piece of a tensor whose chunks are checked.
pub(crate) struct Checked {
    pub(crate) source: Arc<dyn TensorSource>,
    pub(crate) watched: Arc<Watched>,
    /// Where the piece lies in the tensor.
    pub(crate) at: Dims,
}

impl TensorSource for Checked {
    fn dtype(&self) -> DType {
        self.source.dtype()
    }

    fn shape(&self) -> Dims {
        self.source.shape()
    }

    fn block(&self) -> Option<u64> {
        self.source.block()
    }

    fn identity(&self) -> Option<String> {
        self.source.identity()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        self.source.read(region, out)?;
        let seen = self.watched.chunks.see(&region.shifted(&self.at), out);
        seen.map_err(|e| SourceError::new(e.kind(), e))?;
        self.watched.progress.add(out.len() as u64);
        Ok(())
    }
}
