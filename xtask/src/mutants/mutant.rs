//! What is tried: one change of the source.

/// One change of the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// As cargo-mutants calls it, with the number of the line.
    pub(crate) name: String,
    pub(crate) file: String,
    /// What is changed, without the place.
    pub(crate) what: String,
    /// The line of the source where it begins.
    pub(crate) line: String,
    pub(crate) package: String,
    /// What is replaced begins at this line and column, counted from 1.
    pub(crate) from: (usize, usize),
    /// And ends before this one.
    pub(crate) to: (usize, usize),
    pub(crate) replacement: String,
}
