//! Which tensors of a source can be checked while they are read.

use crate::{
    checked::Watched,
    chunks::{Chunk, Chunks, Room},
};
use reshard::{
    Checkpoint,
    megatron::INTEGRITY,
    storage::{Name, Progress, StoreExt as _},
};
use std::{collections::BTreeMap, sync::Arc};

/// Tensors of more chunks are not checked while they are read, because each block is held against each chunk.
const MOST_CHUNKS: usize = 1_000;

/// The same of all tensors, because a chunk takes some memory.
const MOST_CHUNKS_OF_ALL: usize = 100_000;

/// Stored tensors that are checked while they are read, by key.
pub(crate) type Checks = BTreeMap<String, Arc<Watched>>;

/// The chosen tensors with the checksums of their chunks, if all of them can be checked while they are read. If something is damaged, the check
/// of the whole source tells what.
pub(crate) async fn checks(
    source: &Checkpoint,
    chosen: impl Fn(&str) -> bool,
    progress: &Progress,
) -> Option<Checks> {
    // By this file, whole files are checked.
    let integrity = Name::new(INTEGRITY).ok()?;
    if source.store().exists(&integrity).await.ok()? {
        return None;
    }
    let (mut out, mut count, room) = (Checks::new(), 0, Room::default());
    for t in source.metadata().tensors().filter(|t| chosen(t.key())) {
        count += t.chunk_count();
        if t.chunk_count() > MOST_CHUNKS
            || count > MOST_CHUNKS_OF_ALL
            || t.original_shape().is_some()
        {
            return None;
        }
        let sums = source.element_checksums(t.key()).await.ok()??;
        let tensor = source.tensor(t.key()).ok()?;
        let stored = tensor.chunks().into_iter().zip(sums);
        let chunks = stored.map(|(stored, (region, says))| {
            let place = stored.parts.into_iter().next();
            Chunk::new(region, says, place)
        });
        let chunks = chunks.collect::<Option<_>>()?;
        let watched = Watched {
            identity: tensor.source(..).ok()?.identity(),
            chunks: Chunks::new(t.key(), t.dtype().size(), chunks, room.clone()),
            tensor,
            progress: progress.clone(),
        };
        out.insert(t.key().to_owned(), Arc::new(watched));
    }
    Some(out)
}
