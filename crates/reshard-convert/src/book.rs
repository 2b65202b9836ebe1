//! Compiles and runs the examples of the page *Converting*.
#![doc = include_str!("../../../docs/converting.md")]
