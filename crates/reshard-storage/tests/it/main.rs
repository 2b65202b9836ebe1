//! The integration tests of `reshard-storage`, linked as one program.

mod contract;
mod crash;
mod durable;
mod exchange;
mod guide;
mod local;
mod local_reads;
mod parts;
mod read_into;
mod replace;
mod throttled;
