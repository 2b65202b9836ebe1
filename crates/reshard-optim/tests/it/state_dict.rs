//! State dicts by canonical name.

mod by_name;
mod devices;
mod fixtures;
mod optimizers;
mod options;
mod shardings;
mod toy;
