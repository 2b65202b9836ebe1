//! The integration tests of `reshard-comm-tcp`, linked as one program.

mod common;
mod contract;
mod hostile;
mod jobs;
mod leaving;
mod many;
mod meeting;
mod processes;
mod torch;
