//! The template's buffers, on loan to a load.

use crate::{Result, StrategyError};
use reshard_model::{Data, FlatStateDict, LentBuffer, LentView, Region, Sharded, ShardedTensor, Tensor};
use reshard_plan::{LoadPlan, Stored};
use std::{collections::BTreeMap, sync::Arc};

/// Leaves that something is loaded into, by position in the template.
fn wanted(plan: &LoadPlan) -> std::collections::BTreeSet<u32> {
    let read = plan.items.iter().filter(|i| matches!(i.stored, Stored::Chunk(_))).map(|i| i.dest);
    read.chain(plan.fills.iter().map(|f| f.dest)).collect()
}

fn tensor_mut(template: &mut FlatStateDict, i: u32) -> Option<&mut ShardedTensor> {
    match template.get_index_mut(i as usize) {
        Some((_, Sharded::Tensor(t))) => Some(t),
        _ => None,
    }
}

/// Leaves without a buffer get one; those that are empty or missing too, so that every leaf of the result has data.
pub(super) fn allocate(template: &mut FlatStateDict, plan: &LoadPlan) -> Result<()> {
    let missing: std::collections::BTreeSet<u32> = plan.missing.iter().copied().collect();
    for (i, leaf) in template.values_mut().enumerate() {
        if let Sharded::Tensor(t) = leaf
            && matches!(t.data, Data::None)
            && !missing.contains(&(i as u32))
        {
            t.data = Data::Host(Tensor::zeros(&t.key, t.dtype, &t.local_shape)?);
        }
    }
    Ok(())
}

pub(super) type Devices = BTreeMap<u32, Data>;

/// Device leaves are filled through a host copy.
pub(super) fn to_host(template: &mut FlatStateDict, plan: &LoadPlan) -> Result<Devices> {
    let mut out = Devices::new();
    for i in wanted(plan) {
        let Some(t) = tensor_mut(template, i) else { continue };
        if let Data::Device(d) = &t.data {
            // What no read covers (a partial fill) must stay as it was.
            let host = d.to_host(&t.key)?;
            out.insert(i, std::mem::replace(&mut t.data, Data::Host(host)));
        }
    }
    Ok(out)
}

pub(super) fn copy_to_devices(template: &mut FlatStateDict, devices: Devices) -> Result<()> {
    let mut first = Ok(());
    for (i, device) in devices {
        let Some(t) = tensor_mut(template, i) else { continue };
        let host = std::mem::replace(&mut t.data, device);
        if let (Data::Device(d), Data::Host(h)) = (&t.data, host)
            && first.is_ok()
        {
            first = d.fill(&t.key, &h);
        }
    }
    Ok(first?)
}

pub(super) fn back_to_devices(template: &mut FlatStateDict, devices: Devices) {
    for (i, device) in devices {
        if let Some(t) = tensor_mut(template, i) {
            t.data = device;
        }
    }
}

/// The template's buffers, on loan. Leaves that are views of one buffer lie in one [`LentBuffer`].
pub(super) struct Lent {
    pub(super) buffers: Vec<(Arc<LentBuffer>, Vec<LentView>, Vec<u32>)>,
}

impl Lent {
    pub(super) fn take(template: &mut FlatStateDict, plan: &LoadPlan) -> Result<Self> {
        let mut groups: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (i, leaf) in template.values().enumerate() {
            if let Sharded::Tensor(ShardedTensor { data: Data::Host(h), .. }) = leaf {
                groups.entry(h.buffer_id()).or_default().push(i as u32);
            }
        }
        let wanted = wanted(plan);
        let mut out = Self { buffers: Vec::new() };
        for (_, leaves) in groups {
            if !leaves.iter().any(|i| wanted.contains(i)) {
                continue;
            }
            let mut key = String::new();
            let mut handles = Vec::new();
            for &i in &leaves {
                let Some(t) = tensor_mut(template, i) else { continue };
                if let Data::Host(h) = std::mem::take(&mut t.data) {
                    handles.push(h);
                }
                if key.is_empty() {
                    key = t.key.to_string();
                }
            }
            match LentBuffer::new(&key, handles) {
                Ok((lent, views)) => out.buffers.push((lent, views, leaves)),
                Err((e, handles)) => {
                    restore(template, &leaves, handles);
                    out.give_back(template)?;
                    return Err(e.into());
                }
            }
        }
        Ok(out)
    }

    pub(super) fn give_back(&mut self, template: &mut FlatStateDict) -> Result<()> {
        let mut lost = Vec::new();
        for (lent, views, leaves) in self.buffers.drain(..) {
            match lent.reclaim(views) {
                Ok(handles) => restore(template, &leaves, handles),
                Err(_) => lost.extend(leaves),
            }
        }
        match lost.first().and_then(|&i| template.get_index(i as usize)) {
            None => Ok(()),
            Some((_, leaf)) => {
                let what = format!("the buffer of {} is still being read into by a store", leaf.key());
                Err(StrategyError::Invalid(what))
            }
        }
    }
}

fn restore(template: &mut FlatStateDict, leaves: &[u32], handles: Vec<Tensor>) {
    for (&i, h) in leaves.iter().zip(handles) {
        if let Some(t) = tensor_mut(template, i) {
            t.data = Data::Host(h);
        }
    }
}

/// The part of a leaf's local tensor that a region of the plan means: prepended axes are of extent 1 and not in it.
pub(super) fn local(template: &FlatStateDict, item: u32, region: &Region) -> Region {
    let prepended = match template.get_index(item as usize) {
        Some((_, Sharded::Tensor(t))) => t.prepend_axis_num,
        _ => 0,
    };
    let cut = |d: &[u64]| d.get(prepended..).unwrap_or(&[]).into();
    Region { offsets: cut(&region.offsets), lengths: cut(&region.lengths) }
}
