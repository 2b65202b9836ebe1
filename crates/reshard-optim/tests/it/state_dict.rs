//! State dicts by canonical name.

mod fixtures;
mod options;
mod toy;
