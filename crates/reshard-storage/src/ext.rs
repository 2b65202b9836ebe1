use crate::{Depth, Entry, Leftover, Listing, Name, Result, Store};
use std::time::SystemTime;

/// What follows from what every [`Store`] does.
pub trait StoreExt: Store {
    /// All files, those in folders too, sorted by name.
    fn files(&self) -> impl Future<Output = Result<Vec<Entry>>> + Send {
        async { Ok(self.list(None, Depth::All).await?.files) }
    }

    /// What lies in the place itself: for looking at one that may hold anything.
    fn top(&self) -> impl Future<Output = Result<Listing>> + Send {
        self.list(None, Depth::One)
    }

    /// Length of a file; `None` when there is none.
    fn len(&self, name: &Name) -> impl Future<Output = Result<Option<u64>>> + Send {
        async { Ok(self.head(name).await?.map(|head| head.bytes)) }
    }

    /// Whether there is such a file.
    fn exists(&self, name: &Name) -> impl Future<Output = Result<bool>> + Send {
        async { Ok(self.head(name).await?.is_some()) }
    }

    /// When a file last changed; `None` when there is none, or the store can't tell.
    fn modified(&self, name: &Name) -> impl Future<Output = Result<Option<SystemTime>>> + Send {
        async { Ok(self.head(name).await?.and_then(|head| head.modified)) }
    }

    /// [`Recovery::leftovers`](crate::Recovery::leftovers); none where there is nothing to repair.
    fn leftovers(&self) -> impl Future<Output = Result<Vec<Leftover>>> + Send {
        async {
            match self.recovery() {
                Some(recovery) => recovery.leftovers().await,
                None => Ok(Vec::new()),
            }
        }
    }

    /// [`Recovery::remove_leftover`](crate::Recovery::remove_leftover), where there is something to repair.
    fn remove_leftover(&self, attempt: &str) -> impl Future<Output = Result<()>> + Send {
        async move {
            match self.recovery() {
                Some(recovery) => recovery.remove_leftover(attempt).await,
                None => Ok(()),
            }
        }
    }

    /// [`Recovery::finish_replacing`](crate::Recovery::finish_replacing), where there is something to repair.
    fn finish_replacing(&self, attempt: &str, files: &[Name]) -> impl Future<Output = Result<()>> + Send {
        async move {
            match self.recovery() {
                Some(recovery) => recovery.finish_replacing(attempt, files).await,
                None => Ok(()),
            }
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
