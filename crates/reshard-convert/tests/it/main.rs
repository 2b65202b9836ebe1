//! The integration tests of `reshard-convert`, linked as one program.

mod formats;
mod library;
mod optimizer;
