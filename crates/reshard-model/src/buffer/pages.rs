/// A page is at least so large, and at most [`MOST`].
const LEAST: usize = 4 << 10;
/// No system that is known has larger pages, unless it was asked for them.
const MOST: usize = 64 << 10;

/// Makes the system give the pages of new memory at once, which takes half the time of giving them one by one when each is first
/// written. No byte changes; memory that is there already, and systems that can't, make it do nothing.
///
/// It pays for memory that is written from front to back soon afterwards: take a quarter of a MiB at a time, which stays in the
/// processor's cache until then.
///
/// ```
/// let mut memory = vec![0u8; 1 << 20];
/// for block in memory.chunks_mut(1 << 18) {
///     reshard_model::populate(block);
///     block.fill(1);
/// }
/// ```
pub fn populate(memory: &mut [u8]) {
    advise(memory, Advice::Give);
}

/// Fewer bytes gain nothing by huge pages.
const LARGE: usize = 4 << 20;

/// Asks for huge pages, if there is much memory: a few hundred faults instead of hundreds of thousands when it is first written,
/// and fewer walks through the tables of pages when rows of it are read in any order.
pub(crate) fn prefer_huge_pages(memory: &mut [u8]) {
    if memory.len() >= LARGE {
        advise(memory, Advice::Huge);
    }
}

#[derive(Clone, Copy)]
enum Advice {
    /// Give all pages now.
    Give,
    /// Let them be huge.
    Huge,
}

/// Whole pages only, whatever their size is: the rest of the first and the last belong to others too.
fn advise(memory: &mut [u8], advice: Advice) {
    let page = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) { LEAST } else { MOST };
    let skip = memory.as_ptr().align_offset(page);
    if let Some(pages) = memory.get_mut(skip..)
        && pages.len() >= page
    {
        let len = pages.len() / page * page;
        tell(&mut pages[..len], advice);
    }
}

#[cfg(target_os = "linux")]
fn tell(pages: &mut [u8], advice: Advice) {
    use rustix::mm::{self, madvise};
    let advice = match advice {
        Advice::Give => mm::Advice::LinuxPopulateWrite,
        Advice::Huge => mm::Advice::LinuxHugepage,
    };
    // SAFETY: the bytes are borrowed mutably, and neither advice changes one.
    let taken = unsafe { madvise(pages.as_mut_ptr().cast(), pages.len(), advice) };
    // Linux before 5.14 refuses to give, one that was built without huge pages refuses those: pages then come one by one, and small.
    taken.unwrap_or_default();
}

#[cfg(not(target_os = "linux"))]
fn tell(_: &mut [u8], _: Advice) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_changes_at_any_offset_and_length() {
        let mut memory: Vec<u8> = (0..4 * MOST).map(|i| (i % 251) as u8).collect();
        let before = memory.clone();
        for (from, to) in [(0, 0), (0, 1), (1, LEAST), (7, 2 * MOST + 3), (MOST - 1, 4 * MOST), (0, 4 * MOST)]
        {
            populate(&mut memory[from..to]);
            assert!(memory == before);
        }
        let mut memory: Vec<u8> = (0..LARGE + 5).map(|i| (i % 251) as u8).collect();
        let before = memory.clone();
        prefer_huge_pages(&mut memory[3..]);
        assert!(memory == before);
    }
}
