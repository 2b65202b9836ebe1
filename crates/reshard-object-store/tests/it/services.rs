//! What services answer, and seldom do, against servers in this process.

#![cfg(all(feature = "aws", feature = "azure", feature = "gcp", feature = "http"))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod clients;
mod pause;
mod s3;
mod server;
