//! a crate that names only the facade has all built-in strategies
