//! Conversions between formats.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bucket;
mod dialects;
mod held;
mod mapped;
mod matrix;
mod once;
mod random;
mod states;
mod types;
