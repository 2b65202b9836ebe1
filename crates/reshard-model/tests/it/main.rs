//! The integration tests of `reshard-model`, linked as one program.

mod factories;
mod memory_limit;
mod mesh;
mod plain;
mod sharded;
mod split;
mod vectors;
