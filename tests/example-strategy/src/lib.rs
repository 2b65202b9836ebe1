//! a strategy and a store of a third party
