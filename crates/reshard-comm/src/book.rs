//! The examples of the guide, so that they compile and run as tests.
#![doc = include_str!("../../../docs/process-groups.md")]
