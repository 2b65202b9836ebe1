//! The integration tests of `reshard-comm`, linked as one program.

mod contract;
mod deadline;
mod guide;
mod local;
mod mesh;
mod protocol;
