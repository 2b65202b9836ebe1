//! What ranks read and write for each other.

mod check;
mod cut;
mod read;
mod save;
mod share;

pub use check::ExchangeGroup;
pub use read::{Exchange, ExchangeAlgo, Receive, Serve, Wanted, exchange_groups};
pub use save::{
    Give, Held, Offered, SaveExchange, place_item, save_exchange_groups, share_writes, take_items,
};
pub use share::{Demand, share_reads};
