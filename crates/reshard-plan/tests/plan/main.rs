//! What the planners promise, seen from outside.

#[cfg(test)]
mod cuts;
#[cfg(test)]
mod duplicates;
mod hooks;
#[cfg(test)]
mod laws;
mod load;
#[cfg(test)]
mod metadata;
#[cfg(test)]
mod save;
