//! The integration tests of `reshard-crash`, linked as one program.

mod buckets;
mod cache;
mod convert;
mod kill;
mod network;
mod ranks;
mod removal;
mod resume;
mod retention;
mod retire;
mod swap;
mod wire;
