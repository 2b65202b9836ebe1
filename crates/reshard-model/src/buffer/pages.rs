/// A page is at least so large, and at most [`MOST`].
const LEAST: usize = 4 << 10;
/// No system that is known has larger pages, unless it was asked for them.
const MOST: usize = 64 << 10;

/// Fewer bytes gain nothing by huge pages.
const LARGE: usize = 4 << 20;

/// Asks for huge pages, if there is much memory: a few hundred faults instead of hundreds of thousands when it is first written,
/// and fewer walks through the tables of pages when rows of it are read in any order.
pub(crate) fn prefer_huge_pages(memory: &mut [u8]) {
    if memory.len() >= LARGE {
        advise(memory);
    }
}

/// Whole pages only, whatever their size is: the rest of the first and the last belong to others too.
fn advise(memory: &mut [u8]) {
    let page = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
        LEAST
    } else {
        MOST
    };
    let skip = memory.as_ptr().align_offset(page);
    if let Some(pages) = memory.get_mut(skip..)
        && pages.len() >= page
    {
        let len = pages.len() / page * page;
        tell(&mut pages[..len]);
    }
}

#[cfg(target_os = "linux")]
fn tell(pages: &mut [u8]) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the bytes are borrowed mutably, and the advice changes none.
    let taken = unsafe {
        madvise(
            pages.as_mut_ptr().cast(),
            pages.len(),
            Advice::LinuxHugepage,
        )
    };
    // A Linux that was built without huge pages refuses: then pages are small.
    taken.unwrap_or_default();
}

#[cfg(not(target_os = "linux"))]
fn tell(_: &mut [u8]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_changes_at_any_offset_and_length() {
        let mut memory: Vec<u8> = (0..LARGE + 5).map(|i| (i % 251) as u8).collect();
        let before = memory.clone();
        for (from, to) in [
            (0, 0),
            (0, 1),
            (1, LEAST),
            (7, 2 * MOST + 3),
            (MOST - 1, 4 * MOST),
            (3, LARGE + 5),
        ] {
            advise(&mut memory[from..to]);
            prefer_huge_pages(&mut memory[from..to]);
            assert!(memory == before);
        }
    }
}
