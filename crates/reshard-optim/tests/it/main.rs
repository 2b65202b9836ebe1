//! Tests of reshard-optim through its public interface.

mod declare;
mod fixtures;
mod formats;
mod modules;
mod state;
