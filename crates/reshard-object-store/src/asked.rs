//! What one reader has asked of folders.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// So many answers are read of a listing of a folder first.
pub(crate) const PAGES: usize = 4;

/// How a folder is asked next.
#[derive(Clone, Copy, Debug)]
struct Next {
    /// So many answers are read of its next listing.
    pages: usize,
    /// So many of its objects are asked for alone before that.
    alone: usize,
}

/// What one reader has asked of folders, by their paths.
///
/// A folder may have millions of objects, of which a few are wanted, or all. So one whose listing is longer than some answers is listed again only
/// after as many objects have been asked for alone, and twice as far. Then all listings take at most 4 requests, and 2 for each object that is asked for alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct AskedFolders(Arc<Mutex<BTreeMap<String, Next>>>);

impl AskedFolders {
    pub(crate) fn is_new(&self, folder: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !all.contains_key(folder)
    }

    /// So many answers are to be read of a listing of the folder. `None`: an object is to be asked for alone, as are `first` of them before anything is listed.
    pub(crate) fn pages(&self, folder: &str, first: usize) -> Option<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = all.entry(folder.into()).or_insert(Next {
            pages: PAGES,
            alone: first,
        });
        if let Some(left) = next.alone.checked_sub(1) {
            next.alone = left;
            return None;
        }
        let pages = next.pages;
        *next = Next {
            pages: pages.saturating_mul(2),
            alone: pages,
        };
        Some(pages)
    }
}
