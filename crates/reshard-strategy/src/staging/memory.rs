//! Memory for copies, kept from one save for the next.

use crate::{Result, StrategyError};
use reshard_model::{
    DType, DeviceBuffer, Layout, LentBuffer, LentView, ModelError, Region, RegionMut, Tensor,
};
use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};

/// Memory that this many calls in a row did not use is freed.
pub(super) const IDLE: u64 = 4;

/// Which memory: that of a device's staging buffers, or of the host, and how many bytes.
type Kind = (Option<Box<str>>, u64);

/// One buffer for copies, on loan to the threads that fill it.
pub(super) struct Memory {
    kind: Kind,
    lent: Arc<LentBuffer>,
    views: Vec<LentView>,
}

impl Memory {
    /// New memory. A device may bring its own, from which it copies faster.
    pub(super) fn new(bytes: u64, device: Option<&Arc<dyn DeviceBuffer>>) -> Result<Self> {
        let none = |e: &dyn fmt::Display| {
            StrategyError::Invalid(format!(
                "no memory for the {bytes} bytes that are to be staged: {e}"
            ))
        };
        let pinned = match device {
            Some(device) => device.staging(bytes).map_err(|e| none(&e))?,
            None => None,
        };
        let tensor = match pinned {
            Some(memory) => Layout::contiguous(1, &[bytes])
                .ok_or_else(|| none(&"it does not fit 64 bits"))
                .and_then(|l| Ok(Tensor::with_layout(DType::UInt8, l, memory)?))?,
            None => Tensor::zeros("staging", DType::UInt8, &[bytes]).map_err(|e| none(&e))?,
        };
        Self::lend(kind(bytes, device), tensor).map_err(|(e, _)| e.into())
    }

    /// Takes the memory of a tensor, or gives the tensor back if somebody uses it.
    fn lend(kind: Kind, tensor: Tensor) -> Result<Self, (ModelError, Vec<Tensor>)> {
        let (lent, views) = LentBuffer::new("staging", vec![tensor])?;
        Ok(Self { kind, lent, views })
    }

    /// Parts of it. They must be disjoint. Call it once.
    pub(super) fn parts(&self, parts: impl Iterator<Item = Range<u64>>) -> Result<Vec<RegionMut>> {
        let fault = || StrategyError::Internal("staging memory has no view".into());
        let view = self.views.first().ok_or_else(fault)?;
        let wants: Vec<_> = parts
            .map(|part| (view, Region::new([part.start], [part.end - part.start])))
            .collect();
        Ok(self.lent.regions_mut(&wants)?)
    }

    /// The filled memory. All parts must be gone.
    pub(super) fn filled(self) -> Result<(Kept, Tensor)> {
        let fault = || StrategyError::Internal("staging memory is still being filled".into());
        let tensors = self.lent.reclaim(self.views).map_err(|_| fault())?;
        let tensor = tensors.into_iter().next().ok_or_else(fault)?;
        let kept = Kept {
            kind: self.kind,
            tensor: tensor.clone(),
        };
        Ok((kept, tensor))
    }
}

fn kind(bytes: u64, device: Option<&Arc<dyn DeviceBuffer>>) -> Kind {
    (device.map(|device| device.device().into()), bytes)
}

/// Memory that a save may still be using.
pub(super) struct Kept {
    kind: Kind,
    tensor: Tensor,
}

/// Memory that is kept for the next save.
#[derive(Default)]
pub(super) struct Pool {
    /// Each with the number of the last call that took it.
    kept: BTreeMap<Kind, Vec<(Tensor, u64)>>,
    /// Calls so far.
    calls: u64,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.kept.iter().map(|(kind, kept)| (kind, kept.len())))
            .finish()
    }
}

impl Pool {
    /// Memory of so many bytes that no save is using.
    pub(super) fn take(
        &mut self,
        bytes: u64,
        device: Option<&Arc<dyn DeviceBuffer>>,
    ) -> Option<Memory> {
        let kind = kind(bytes, device);
        let kept = self.kept.get_mut(&kind)?;
        for i in (0..kept.len()).rev() {
            let (tensor, last) = kept.swap_remove(i);
            match Memory::lend(kind.clone(), tensor) {
                Ok(memory) => return Some(memory),
                Err((_, back)) => kept.extend(back.into_iter().map(|tensor| (tensor, last))),
            }
        }
        None
    }

    /// Keeps what a call has used, and gives back what has been of no use for long.
    pub(super) fn put(&mut self, used: Vec<Kept>) {
        self.calls += 1;
        let now = self.calls;
        for Kept { kind, tensor } in used {
            self.kept.entry(kind).or_default().push((tensor, now));
        }
        self.kept.retain(|_, kept| {
            kept.retain(|(_, last)| now - last < IDLE);
            !kept.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_allocated_is_an_error() {
        let e = Memory::new(u64::MAX / 2, None).err().unwrap().to_string();
        assert!(e.contains("9223372036854775807 bytes"), "{e}");
    }
}
