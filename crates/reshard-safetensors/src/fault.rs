//! What is wrong with a text in a file.

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// A byte of the file, if it is known.
    pub(crate) offset: Option<u64>,
    pub(crate) what: String,
}

impl Fault {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            offset: None,
            what: what.into(),
        }
    }

    pub(crate) fn at(offset: u64, what: impl Into<String>) -> Self {
        Self {
            offset: Some(offset),
            what: what.into(),
        }
    }

    /// Of a parser. `from` is where its text begins in the file. A text of one line tells where in it.
    pub(crate) fn parser(e: &serde_json::Error, from: u64) -> Self {
        let offset = (e.line() == 1).then(|| from + (e.column() as u64).saturating_sub(1));
        Self {
            offset,
            what: e.to_string(),
        }
    }
}
