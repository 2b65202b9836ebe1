//! The example of the front page, so that it compiles and runs as a test.
#![doc = include_str!("../../../README.md")]
