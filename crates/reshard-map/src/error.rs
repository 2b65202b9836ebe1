use reshard_model::{Dims, ErrorKind};

/// Result of this crate's functions.
pub type Result<T, E = MapError> = std::result::Result<T, E>;

/// What can be wrong with a map, or with a checkpoint that it is applied to.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The text is no TOML, or has something that no map has.
    #[error("the map can't be read: {0}")]
    Syntax(String),
    /// A rule contradicts itself.
    #[error("rule {rule}{}: {what}", verb_of(verb))]
    Rule {
        /// Its number; the first rule is 1.
        rule: usize,
        /// What it does, or an empty string if it does not say so.
        verb: &'static str,
        /// What is wrong, and what to write instead.
        what: String,
    },
    /// A parameter is missing, unknown or makes no sense.
    #[error("parameter `{name}`: {what}")]
    Parameter {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A rule can't be applied to a tensor or object.
    #[error("rule {rule}{}: {key}{}: {what}", verb_of(verb), shape_of(shape.as_deref()))]
    Apply {
        /// Its number; the first rule is 1.
        rule: usize,
        /// What it does.
        verb: &'static str,
        /// The key to which it was applied.
        key: String,
        /// The shape of the tensor before the rule. `None` for objects, and for keys that are not there.
        shape: Option<Dims>,
        /// What is wrong, and what to do.
        what: String,
    },
    /// No rule matches any key of the checkpoint, or a map that refuses unmapped tensors matches fewer keys than its inverse.
    #[error(
        "the map matches {}none of the keys of the checkpoint, the first of which is {key}{}",
        if *inverse { "few or " } else { "" },
        if *inverse { "; they look like the other side of this map" } else { "" }
    )]
    NoMatch {
        /// The first key.
        key: String,
        /// Whether the inverse of the map matches more keys.
        inverse: bool,
    },
    /// No rule maps these tensors, and the map refuses such tensors.
    #[error(
        "the map does not know {} of the checkpoint's tensors: {}{}; `--unmapped keep|drop` (`Map::with_unmapped`) keeps or drops them",
        keys.len(), listed(keys),
        if *inverse { "; the keys look like the other side of this map" } else { "" }
    )]
    Unmapped {
        /// Their keys in the checkpoint, in order.
        keys: Vec<Box<str>>,
        /// Whether the inverse of the map matches more keys.
        inverse: bool,
    },
    /// The rules drop all that the checkpoint has.
    #[error("the map drops all {0} tensors and objects of the checkpoint, so nothing would remain")]
    Empty(usize),
    /// A rule has no inverse.
    #[error(
        "the map has no inverse, because of rule {rule}{}: {why}. Change the rule, or give it `direction = \"forward\"`, so that \
         the inverse leaves it out",
        verb_of(verb)
    )]
    NoInverse {
        /// Its number; the first rule is 1.
        rule: usize,
        /// What it does.
        verb: &'static str,
        /// The reason.
        why: String,
    },
    /// A mapping leaves out elements of a tensor, or casts them with a loss, so nothing can bring them back.
    #[error("the mapping has no inverse: {key}: {why}")]
    Lossy {
        /// The key in the source.
        key: String,
        /// The reason.
        why: String,
    },
    /// A limit is exceeded.
    #[error("{what}: more than {limit}; if you mean so many, raise `Limits::{option}`")]
    Limit {
        /// What is too much.
        what: String,
        /// The limit.
        limit: u64,
        /// The field of [`Limits`] that raises it.
        option: &'static str,
    },
    /// No map of this name is shipped.
    #[error("no map is named {name:?}; those that are: {}", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
}

/// The message with its causes.
impl std::fmt::Debug for MapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

impl MapError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Limit { .. } => ErrorKind::Limit,
            Self::Unknown { .. } => ErrorKind::NotFound,
            Self::NoInverse { .. } | Self::Lossy { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    /// An item of the checkpoint that no map can be applied to.
    pub(crate) fn of_item(key: &str, shape: Option<Dims>, what: String) -> Self {
        Self::Apply {
            rule: 0,
            verb: "",
            key: key.into(),
            shape,
            what,
        }
    }
}

/// Keys as a message lists them: at most 20.
fn listed(keys: &[Box<str>]) -> String {
    const SHOWN: usize = 20;
    match keys.split_at_checked(SHOWN) {
        Some((shown, more @ [_, ..])) => {
            format!("{}, and {} more", shown.join(", "), more.len())
        }
        _ => keys.join(", "),
    }
}

fn verb_of(verb: &str) -> String {
    match verb {
        "" => String::new(),
        verb => format!(" ({verb})"),
    }
}

fn shape_of(shape: Option<&[u64]>) -> String {
    shape.map_or_else(String::new, |s| format!(" of shape {}", Dims::from(s)))
}

/// How much a map may ask for. Maps and checkpoints may come from strangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pieces of which all tensors together are made. So many take about 100 MB of memory by default. A piece with many axes, loops
    /// or casts counts as several.
    pub pieces: usize,
    /// Names of tensors and objects.
    pub names: usize,
    /// Bytes of all names together, after any of the rules.
    pub name_bytes: u64,
    /// Steps of all rules together: bytes of keys compared with parts of patterns, keys that change (512 each, and 200 for a capture), and
    /// pieces that are cut. The default takes about three seconds.
    pub steps: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pieces: 1 << 18,
            names: 1 << 20,
            name_bytes: 1 << 28,
            steps: 1 << 30,
        }
    }
}

/// Why an operation on a tensor can't be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It makes no sense, for this reason.
    Wrong(String),
    /// It would make more pieces than the limit.
    Pieces,
}

impl Fault {
    pub(crate) fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong(what.into())
    }
}
