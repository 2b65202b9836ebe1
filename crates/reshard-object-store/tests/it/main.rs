//! The integration tests of `reshard-object-store`, linked as one program.

mod cached;
mod clouds;
mod contract;
mod faults;
mod given;
mod http;
mod runtime;
mod services;
mod single;
