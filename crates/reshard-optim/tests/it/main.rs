//! Tests of reshard-optim through its public interface.

mod declare;
mod fixtures;
mod modules;
mod state;
