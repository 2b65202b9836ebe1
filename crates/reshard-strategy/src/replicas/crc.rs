//! CRC-32 of the elements of many tensors, on the I/O threads.

use crate::Result;
use indexmap::IndexMap;
use reshard_model::{Data, Layout, Region, Tensor};
use reshard_storage::run_blocking;

/// So many bytes are hashed at a time, so that they are read from memory only once.
const BLOCK: u64 = 256 << 10;
/// Smaller tensors are hashed together, up to so many bytes.
const TASK: u64 = 4 << 20;
/// At most so many bytes of a device tensor are in host memory at a time.
const FROM_DEVICE: u64 = 64 << 20;

/// The checksum of each tensor, in row-major order of its elements; `None` for what is not in memory. Views of the same elements are hashed once.
/// The texts are for errors of devices.
///
/// # Errors
/// A device that fails.
pub async fn crc32_of_all<'a>(
    tensors: impl Iterator<Item = (String, &'a Data)>,
) -> Result<Vec<Option<u32>>> {
    let mut views: IndexMap<_, (String, Data)> = IndexMap::new();
    let mut of_view = Vec::new();
    for (name, data) in tensors {
        let (Some(buffer), Some(layout)) = (data.buffer_id(), data.layout()) else {
            of_view.push(None);
            continue;
        };
        let view = (
            buffer,
            layout.item(),
            layout.start(),
            layout.shape().clone(),
            layout.strides().clone(),
        );
        let entry = views.entry(view);
        of_view.push(Some(entry.index()));
        entry.or_insert_with(|| (name, data.clone()));
    }

    let mut tasks: Vec<Vec<(String, Data)>> = Vec::new();
    let mut room = 0;
    for tensor in views.into_values() {
        let bytes = tensor.1.layout().map_or(0, Layout::bytes);
        match tasks.last_mut() {
            Some(task) if bytes <= room => {
                task.push(tensor);
                room -= bytes;
            }
            _ => {
                tasks.push(vec![tensor]);
                room = TASK.saturating_sub(bytes);
            }
        }
    }
    let hashed = run_blocking(tasks.into_iter().map(|task| {
        move || {
            let all = task.iter().map(|(name, data)| of(name, data));
            all.collect()
        }
    }));
    let hashed: Vec<Vec<Result<u32>>> = hashed.await?;
    let sums = hashed.into_iter().flatten().collect::<Result<Vec<u32>>>()?;
    let sum = |view: Option<usize>| sums.get(view?).copied();
    Ok(of_view.into_iter().map(sum).collect())
}

fn of(name: &str, data: &Data) -> Result<u32> {
    let mut crc = crc32fast::Hasher::new();
    let mut update = |t: &Tensor| t.blocks(BLOCK).for_each(|block| crc.update(&block));
    match data {
        Data::Host(t) => update(t),
        Data::Device(t) => {
            let (whole, item) = (Region::whole(t.layout().shape()), t.layout().item());
            for part in whole.blocks(FROM_DEVICE / item.max(1)) {
                update(&t.narrow(&part).to_host(name)?);
            }
        }
        Data::None | Data::Lazy(_) => {}
    }
    Ok(crc.finalize())
}
