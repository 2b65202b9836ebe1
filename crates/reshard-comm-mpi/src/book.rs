//! The examples of the page, so that they compile.
#![doc = include_str!("../../../docs/ranks.md")]
