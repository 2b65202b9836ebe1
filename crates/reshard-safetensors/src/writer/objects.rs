//! The file of objects: one after another, each as `torch.save` writes it.

use super::summed::{Part, Summed};
use crate::names::OBJECTS;
use reshard_plan::WriteItem;
use reshard_storage::{Extent, FileBody, Name};
use reshard_strategy::{FileLayout, Resolve, Result, StrategyError, WriteData, encode_object};
use reshard_torch_format::TorchSave;

/// Adds a file with these objects, in the order of their keys. There is none if there are no objects.
pub(super) fn add(
    mut objects: Vec<&WriteItem>,
    resolve: &Resolve<'_>,
    to: &mut FileLayout,
) -> Result<()> {
    if objects.is_empty() {
        return Ok(());
    }
    objects.sort_by(|a, b| a.key.cmp(&b.key));
    let (file, codec) = (to.files.len() as u32, TorchSave::default());
    let mut extents: Vec<Box<dyn Extent>> = Vec::with_capacity(objects.len());
    for (n, item) in (0..).zip(objects) {
        let WriteData::Object(payload) = resolve(item)? else {
            let what = format!("{}: a tensor was given for an object", item.key);
            return Err(StrategyError::Invalid(what));
        };
        let bytes = encode_object(&codec, &item.key, payload)?;
        let length = bytes.len() as u64;
        let blocks = Box::new(std::iter::once(Ok(bytes)));
        extents.push(Box::new(Summed::new(Part::Object, length, blocks)));
        to.items.push((item.id(), vec![(file, n)]));
    }
    to.files.push(FileBody::new(Name::new(OBJECTS)?, extents));
    Ok(())
}
