//! Clients that are handed over, and differ from `InMemory` in one thing.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod conditions;
mod files;
mod listings;
mod memory;
mod quotes;
mod requests;
mod service;

use reshard_storage::Name;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}
