//! `example://NAME`: a scheme of this crate's own. The store behind it is reshard-storage's `MemoryStore`, the model for stores: it
//! does what a store must do, and no more.

use crate::NAME;
use reshard_storage::{StoreScheme, testkit::MemoryStore};
use std::sync::Arc;

inventory::submit! {
    StoreScheme::new(NAME, env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), |url| Ok(Arc::new(MemoryStore::at(url))))
}
