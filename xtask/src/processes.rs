//! What needs ranks in real processes.

pub(crate) mod mpi;
