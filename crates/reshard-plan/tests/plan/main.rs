//! What the planners promise, seen from outside.

#[cfg(test)]
mod cuts;
mod laws;
#[cfg(test)]
mod load;
mod metadata;
#[cfg(test)]
mod save;
