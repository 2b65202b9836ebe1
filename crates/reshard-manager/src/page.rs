//! Compiles and runs the examples of the page *Train and resume*.
#![doc = include_str!("../../../docs/train-and-resume.md")]
