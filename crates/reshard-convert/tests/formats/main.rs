//! Conversions between formats.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod held;
mod matrix;
mod states;
