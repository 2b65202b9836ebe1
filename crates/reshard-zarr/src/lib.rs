//! Zarr arrays as checkpoints.
//!
//! A checkpoint is a directory with an array for each tensor. Megatron Core wrote such directories until 0.15.

mod array;
