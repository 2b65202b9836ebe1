//! Reads tensors that are objects here, as a whole.

use super::{BundleReader, crc::differs, swapped::swap};
use crate::{
    dtype::{Enum, Kind},
    index::Stored,
    object::Object,
    strings::{self, Order},
    variant,
};
use bytes::Bytes;
use reshard_model::Region;
use reshard_plan::ObjectId;
use reshard_strategy::{Result, StrategyError};

impl BundleReader {
    /// An object, and how many bytes of it are stored.
    pub(super) async fn read_object(&self, id: ObjectId, verify: bool) -> Result<(Object, u64)> {
        let unknown = || StrategyError::Internal(format!("no object has number {}", id.0));
        let stored = self.index.objects.get(id.0 as usize).ok_or_else(unknown)?;
        let key = self.metadata.object_key(id).unwrap_or_default();
        self.sound(key, stored.parts.iter().map(|(_, place)| place))?;
        let bytes = stored
            .parts
            .iter()
            .map(|(_, place)| place.size)
            .fold(0, u64::saturating_add);
        self.limits.whole(key, bytes)?;
        let mut parts = Vec::with_capacity(stored.parts.len());
        for (region, place) in &stored.parts {
            let name = self.there(place, key)?;
            let found = self.store.read(&name, place.range()).await?;
            let damaged = |what: String| StrategyError::corrupt(&name, Some(place.offset), what);
            let count = region.volume().unwrap_or(u64::MAX);
            let (crc, found) = elements(stored.dtype, count, self.index.order, found)
                .map_err(|what| damaged(format!("{key}: {what}")))?;
            if (self.index.order, Kind::of(stored.dtype)) == (Order::Big, Some(Kind::Variant)) {
                return Err(StrategyError::Undecoded {
                    what: format!("{key} (a big-endian variant)"),
                });
            }
            if verify && crc != place.crc {
                return Err(damaged(differs(key, crc, place.crc)));
            }
            parts.push((region, found));
        }
        Ok((joined(stored, parts)?, bytes))
    }
}

/// The elements of a part, little-endian.
enum Elements {
    Strings(Vec<Bytes>),
    Bytes(Bytes),
}

/// The checksum and the elements of a part. Variants stay as they are stored. The error says what is wrong with the bytes.
fn elements(
    dtype: Enum,
    count: u64,
    order: Order,
    bytes: Bytes,
) -> Result<(u32, Elements), String> {
    Ok(match Kind::of(dtype).ok_or("its type is not known")? {
        Kind::Strings => {
            let found = strings::decode(&bytes, count, order)?;
            let strings = found.places.into_iter().map(|at| bytes.slice(at)).collect();
            (found.crc, Elements::Strings(strings))
        }
        Kind::Variant => {
            let crc = variant::check(&bytes, count, order)?;
            (crc, Elements::Bytes(bytes))
        }
        kind @ (Kind::Tensor(_) | Kind::Opaque { .. }) => {
            let crc = crc32c::crc32c(&bytes);
            let bytes = match (order, kind.word()) {
                (Order::Big, word @ 2..) => {
                    let mut bytes = bytes.to_vec();
                    swap(&mut bytes, word);
                    bytes.into()
                }
                _ => bytes,
            };
            (crc, Elements::Bytes(bytes))
        }
    })
}

/// The parts as one.
fn joined(stored: &Stored, parts: Vec<(&Region, Elements)>) -> Result<Object> {
    let object = |bytes: Bytes| Object {
        form: stored.form,
        dtype: stored.dtype,
        shape: stored.shape.clone(),
        stored: bytes,
    };
    let broken = || StrategyError::Internal("the slices of an object do not fit it".into());
    let item = Kind::of(stored.dtype).and_then(Kind::item);
    let elements = stored
        .shape
        .volume()
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(broken)?;
    let strides = Region::whole(&stored.shape).strides();
    // The number of each element of a slice, in the order in which they are stored.
    let numbers = |region: &Region| {
        let strides = strides.clone();
        region.clone().blocks(1).map(move |e| {
            let at = e
                .offsets
                .iter()
                .zip(&*strides)
                .map(|(i, n)| i * n)
                .sum::<u64>();
            at as usize
        })
    };
    if let [(_, Elements::Bytes(bytes))] = &*parts {
        return Ok(object(bytes.clone()));
    }
    match item {
        None => {
            let mut all = vec![Bytes::new(); elements];
            for (region, part) in parts {
                let Elements::Strings(strings) = part else {
                    return Err(broken());
                };
                for (n, string) in numbers(region).zip(strings) {
                    *all.get_mut(n).ok_or_else(broken)? = string;
                }
            }
            Ok(object(strings::encode(all.iter().map(|s| &**s)).0.into()))
        }
        Some(item) => {
            let item = item as usize;
            let mut all = vec![0; elements.checked_mul(item).ok_or_else(broken)?];
            for (region, part) in parts {
                let Elements::Bytes(bytes) = part else {
                    return Err(broken());
                };
                for (n, element) in numbers(region).zip(bytes.chunks_exact(item)) {
                    let to = all.get_mut(n * item..(n + 1) * item).ok_or_else(broken)?;
                    to.copy_from_slice(element);
                }
            }
            Ok(object(all.into()))
        }
    }
}
