//! Reads tensors that are objects here, as a whole.

use super::{BundleReader, crc::differs, swapped::swap};
use crate::{
    dtype::Kind,
    index::{Place, Stored},
    object::Object,
    strings::{self, Order},
    variant,
};
use bytes::Bytes;
use reshard_model::Region;
use reshard_plan::ObjectId;
use reshard_storage::Name;
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
            let (name, bytes) = (self.there(place, key)?, place.range());
            let bytes = self.store.read(&name, bytes).await?;
            let found = Part {
                stored,
                region,
                place,
                name: &name,
                key,
                order: self.index.order,
            };
            parts.push((region, found.elements(bytes, verify)?));
        }
        Ok((joined(stored, parts)?, bytes))
    }
}

/// One stored part of an object.
struct Part<'r> {
    stored: &'r Stored,
    region: &'r Region,
    place: &'r Place,
    name: &'r Name,
    key: &'r str,
    order: Order,
}

/// The elements of a part, little-endian.
enum Elements {
    Strings(Vec<Bytes>),
    Bytes(Bytes),
}

impl Part<'_> {
    fn damaged(&self, what: &str) -> StrategyError {
        StrategyError::corrupt(
            self.name,
            Some(self.place.offset),
            format!("{}: {what}", self.key),
        )
    }

    fn elements(&self, bytes: Bytes, verify: bool) -> Result<Elements> {
        let elements = self.region.volume().unwrap_or(u64::MAX);
        let kind =
            Kind::of(self.stored.dtype).ok_or_else(|| self.damaged("its type is not known"))?;
        let (found, out) = match kind {
            Kind::Strings => {
                let found =
                    strings::decode(&bytes, elements, self.order).map_err(|e| self.damaged(&e))?;
                let strings = found.places.into_iter().map(|at| bytes.slice(at)).collect();
                (found.crc, Elements::Strings(strings))
            }
            Kind::Variant => {
                let crc =
                    variant::check(&bytes, elements, self.order).map_err(|e| self.damaged(&e))?;
                if self.order == Order::Big {
                    return Err(StrategyError::Undecoded {
                        what: format!("{} (a big-endian variant)", self.key),
                    });
                }
                (crc, Elements::Bytes(bytes))
            }
            Kind::Tensor(_) | Kind::Opaque { .. } => {
                let crc = crc32c::crc32c(&bytes);
                let bytes = match (self.order, kind.word()) {
                    (Order::Big, word @ 2..) => {
                        let mut bytes = bytes.to_vec();
                        swap(&mut bytes, word);
                        bytes.into()
                    }
                    _ => bytes,
                };
                (crc, Elements::Bytes(bytes))
            }
        };
        match verify && found != self.place.crc {
            true => {
                let what = differs(self.key, found, self.place.crc);
                Err(StrategyError::corrupt(
                    self.name,
                    Some(self.place.offset),
                    what,
                ))
            }
            false => Ok(out),
        }
    }
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
    let mut parts = parts;
    if let (1, Some((_, Elements::Bytes(_)))) = (parts.len(), parts.first()) {
        return match parts.pop() {
            Some((_, Elements::Bytes(bytes))) => Ok(object(bytes)),
            _ => Err(broken()),
        };
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
