//! Containers that are filled after they were made.

use super::worth::{Beyond, Worth, number};

/// Containers of one kind; each is given up when it was consumed and nobody else names it.
#[derive(Debug, Default)]
pub(crate) struct Slots<T> {
    all: Vec<T>,
    shared: Vec<bool>,
    free: Vec<u32>,
}

impl<T: Default> Slots<T> {
    /// An empty one.
    pub(crate) fn new_slot(&mut self, worth: &mut Worth) -> Result<u32, Beyond> {
        if let Some(i) = self.free.pop() {
            return Ok(i);
        }
        let i = number(self.all.len())?;
        worth.push(&mut self.all, T::default())?;
        worth.push(&mut self.shared, false)?;
        // For the list of free ones, which may grow to twice that.
        worth.take(2 * size_of::<u32>())?;
        Ok(i)
    }

    pub(crate) fn share(&mut self, i: u32) {
        self.shared[i as usize] = true;
    }

    pub(crate) fn is_shared(&self, i: u32) -> bool {
        self.shared[i as usize]
    }

    pub(crate) fn get(&self, i: u32) -> &T {
        &self.all[i as usize]
    }

    pub(crate) fn get_mut(&mut self, i: u32) -> &mut T {
        &mut self.all[i as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.all.iter_mut()
    }

    /// `clear` empties it but may keep its memory.
    pub(crate) fn release(&mut self, i: u32, clear: impl FnOnce(&mut T)) {
        if !self.shared[i as usize] {
            clear(&mut self.all[i as usize]);
            self.free.push(i);
        }
    }
}
