//! What the planners promise, seen from outside.

#[cfg(test)]
mod access;
#[cfg(test)]
mod cuts;
#[cfg(test)]
mod duplicates;
#[cfg(test)]
mod exchange;
mod exchange_of_saves;
mod flat;
#[cfg(test)]
mod hooks;
mod laws;
#[cfg(test)]
mod load;
mod metadata;
#[cfg(test)]
mod save;
