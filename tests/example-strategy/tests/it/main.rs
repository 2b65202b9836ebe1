//! The integration tests of `reshard-example`, linked as one program.

mod chosen;
mod contracts;
mod exchange;
mod index;
mod places;
mod plans;
mod recognised;
