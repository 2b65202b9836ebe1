//! What things really take of memory, drawn from a [`Budget`] before they are built.

use crate::{
    Budget,
    pickle::{Built, Refusal},
};

/// What an allocator takes for a block of so many bytes: it keeps notes of its own, and has no blocks below 32 bytes.
#[inline(always)]
pub(crate) fn block(bytes: usize) -> u64 {
    if bytes == 0 {
        0
    } else {
        ((bytes as u64).saturating_add(8 + 15) & !15).max(32)
    }
}

/// The same for so many items of a type.
#[inline(always)]
pub(crate) fn blocks_of<T>(items: usize) -> u64 {
    block(items.saturating_mul(size_of::<T>()))
}

/// Makes room for more items, drawn from the budget at the capacity that it takes.
#[inline(always)]
pub(crate) fn make_room<T>(items: &mut Vec<T>, more: usize, budget: &mut Budget) -> Built<()> {
    if items.capacity() - items.len() < more {
        grow(items, more, budget)
    } else {
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn grow<T>(items: &mut Vec<T>, more: usize, budget: &mut Budget) -> Built<()> {
    let (len, had) = (items.len(), items.capacity());
    let need = len.saturating_add(more);
    // A long one grows by less: what it does not need is drawn, too.
    let spare = if len < 1 << 16 { len } else { len / 4 };
    let wanted = if len == 0 {
        need
    } else {
        need.max(len.saturating_add(spare)).max(4)
    };
    budget.give_back(blocks_of::<T>(had));
    budget.take(blocks_of::<T>(wanted))?;
    let room = items.try_reserve_exact(wanted - len);
    room.map_err(|_| Refusal::unsupported("holding more than fits into memory"))
}

/// A list for so many items, drawn from the budget.
pub(crate) fn list_of<T>(items: usize, budget: &mut Budget) -> Built<Vec<T>> {
    let mut out = Vec::new();
    make_room(&mut out, items, budget)?;
    Ok(out)
}
