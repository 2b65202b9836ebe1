//! The ledger of a conversion: what becomes of each item of the source.

mod fill;

pub(crate) use fill::{Account, has_other_order};

use reshard::{
    DType,
    plan::{AnnotationKind, Cast},
};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The kind of an item in a [`Ledger`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum ItemKind {
    /// A tensor, by its key.
    Tensor,
    /// An object, by its key.
    Object,
    /// A value of Megatron Core's common state, by its path.
    Common,
    /// An entry of text of the whole checkpoint, an attribute of a dict of Python, or a record of an archive that its format does not know.
    Metadata,
    /// An attribute of a group or an array, or the names of its axes.
    Attribute,
    /// A key of a dict that is no str.
    KeyType,
    /// A dict that is no plain one, such as an `OrderedDict`.
    ContainerType,
    /// The class of a tensor in Python that is no `torch.Tensor`, or what else Python knows of a tensor or an object.
    TensorClass,
    /// Several tensors that share stored elements, by their keys, or one object at two places.
    Tie,
    /// A fact about the save that wrote the source, such as its id, or the device of a tensor. The copy is a save of its own.
    Save,
}

impl ItemKind {
    /// The name of the kind in JSON, such as `tensor`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The title of the kind in a report, in the plural.
    pub fn title(self) -> &'static str {
        match self {
            Self::Tensor => "tensors",
            Self::Object => "objects",
            Self::Common => "common",
            Self::Metadata => "metadata",
            Self::Attribute => "attributes",
            Self::KeyType => "key types",
            Self::ContainerType => "dict types",
            Self::TensorClass => "classes",
            Self::Tie => "ties",
            Self::Save => "save",
        }
    }

    /// The kind of item that an annotation is.
    pub fn of(kind: AnnotationKind) -> Self {
        match kind {
            AnnotationKind::Attribute | AnnotationKind::DimensionNames => Self::Attribute,
            AnnotationKind::KeyType => Self::KeyType,
            AnnotationKind::ContainerType => Self::ContainerType,
            AnnotationKind::TensorClass
            | AnnotationKind::TensorSubclass
            | AnnotationKind::PythonState => Self::TensorClass,
            AnnotationKind::SameObject => Self::Tie,
            AnnotationKind::Device => Self::Save,
            // Texts, attributes of dicts, and records.
            _ => Self::Metadata,
        }
    }

    /// Whether items of this kind are the state itself, so that a copy without any of them is empty.
    fn is_state(self) -> bool {
        matches!(self, Self::Tensor | Self::Object | Self::Common)
    }
}

/// A change of an item that is in the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Its elements are cast.
    Cast {
        /// Its element type in the source.
        from: DType,
        /// Its element type in the copy.
        to: DType,
    },
    /// Its elements are computed from stored ones and from scales.
    Dequantized,
    /// It has another key.
    Renamed(String),
    /// A map makes these tensors of it.
    Mapped(Vec<String>),
    /// A map leaves out so many of its elements.
    Trimmed(u64),
    /// Its elements lay in another order in memory, such as channels last, and are stored row-major.
    RowMajor,
    /// It required gradients, and the copy does not say so.
    WithoutGradient,
    /// It was stored flattened, and is stored as plain chunks.
    Unflattened,
    /// `--optimizer` stores its content by parameter.
    ByParameter,
    /// An object that is a dict became so many items.
    Split(u64),
    /// An object became a value of common state.
    IntoCommon,
    /// A value of common state became the item of this key.
    IntoItem(String),
    /// Each of the tensors has elements of its own.
    Untied,
    /// A key of a dict became text.
    AsText,
}

impl Change {
    /// Whether the copy tells less than the source did.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Cast { from, to } => !Cast::Lossless.allows(*from, *to),
            Self::Dequantized
            | Self::Untied
            | Self::AsText
            | Self::RowMajor
            | Self::WithoutGradient
            | Self::Trimmed(_)
            | Self::Split(_) => true,
            _ => false,
        }
    }

    /// The change without names of items, so that equal changes can be counted.
    fn group(&self) -> String {
        match self {
            Self::Renamed(_) => "renamed".into(),
            Self::Mapped(_) => "mapped".into(),
            Self::Trimmed(_) => "without some elements".into(),
            Self::IntoItem(_) => "stored as items".into(),
            Self::Split(_) => "split into items".into(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cast { from, to } => write!(f, "cast from {from} to {to}"),
            Self::Dequantized => f.write_str("dequantised"),
            Self::Renamed(to) => write!(f, "renamed to {to}"),
            Self::Mapped(to) => write!(f, "mapped to {}", to.join(", ")),
            Self::Trimmed(elements) => write!(f, "without {elements} of its elements"),
            Self::RowMajor => f.write_str("stored row-major"),
            Self::WithoutGradient => f.write_str("stored without requires_grad"),
            Self::Unflattened => f.write_str("stored as plain chunks"),
            Self::ByParameter => f.write_str("stored by parameter"),
            Self::Split(1) => f.write_str("split into 1 item"),
            Self::Split(items) => write!(f, "split into {items} items"),
            Self::IntoCommon => f.write_str("stored as common state"),
            Self::IntoItem(key) => write!(f, "stored as the item {key}"),
            Self::Untied => f.write_str("stored once each"),
            Self::AsText => f.write_str("stored as text"),
        }
    }
}

/// The outcome of a conversion for one item of the source.
#[derive(Clone, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The copy has it as it was.
    Kept,
    /// The copy has it, with these changes.
    Changed(Vec<Change>),
    /// The copy does not have it, for this reason.
    LeftOut(Arc<str>),
    /// The copy has it although the source does not: a map adds it for Megatron Core.
    Added,
    /// A map would add it for Megatron Core if its value were known. This is the reason why it isn't.
    NotAdded(Arc<str>),
}

impl Outcome {
    /// The name of the outcome in JSON: `kept`, `changed`, `left_out`, `added` or `not_added`.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// The changes, or the reason why the item is left out or not added. `None` for an item that is kept or added.
    pub fn why(&self) -> Option<String> {
        match self {
            Self::Kept | Self::Added => None,
            Self::Changed(changes) => Some(joined(changes, Change::to_string)),
            Self::LeftOut(why) | Self::NotAdded(why) => Some(why.to_string()),
        }
    }

    /// Whether it is an outcome for an item of the source.
    fn is_of_source(&self) -> bool {
        !matches!(self, Self::Added | Self::NotAdded(_))
    }

    /// The outcome of an item that is in the copy with these changes.
    fn with(changes: Vec<Change>) -> Self {
        match &*changes {
            [] => Self::Kept,
            _ => Self::Changed(changes),
        }
    }
}

fn joined(changes: &[Change], text: impl Fn(&Change) -> String) -> String {
    changes.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// An item of the source, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerEntry {
    /// Its kind.
    pub kind: ItemKind,
    /// Its name: a key, a path, or the keys of a tie.
    pub name: Box<str>,
    /// What becomes of it.
    pub outcome: Outcome,
}

impl LedgerEntry {
    /// Whether the copy tells less of the state than the source did. Facts about the save are not state.
    pub fn is_loss(&self) -> bool {
        match &self.outcome {
            Outcome::Kept | Outcome::Added | Outcome::NotAdded(_) => false,
            Outcome::Changed(changes) => changes.iter().any(Change::is_loss),
            Outcome::LeftOut(_) => self.kind != ItemKind::Save,
        }
    }
}

/// `tensor w: cast from float32 to bfloat16`
impl fmt::Display for LedgerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ItemKind::Common => "common state",
            ItemKind::KeyType => "key",
            ItemKind::ContainerType => "dict",
            kind => kind.name(),
        };
        write!(f, "{kind} {}: ", self.name)?;
        match &self.outcome {
            Outcome::Kept => f.write_str("kept"),
            Outcome::Changed(changes) => f.write_str(&joined(changes, Change::to_string)),
            Outcome::LeftOut(why) => write!(f, "left out: {why}"),
            Outcome::Added => f.write_str("added"),
            Outcome::NotAdded(why) => write!(f, "not added: {why}"),
        }
    }
}

/// Every item of the source of a conversion, each once, with its outcome: kept, changed or left out. Also the objects and the common state that
/// a map adds for Megatron Core.
///
/// Its [`Display`](fmt::Display) is a line for each kind of item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger(Vec<LedgerEntry>);

impl Ledger {
    /// The entries, by kind and in the order of the source.
    pub fn entries(&self) -> &[LedgerEntry] {
        &self.0
    }

    /// The entries that a lossless conversion must not have.
    pub fn losses(&self) -> impl Iterator<Item = &LedgerEntry> {
        self.0.iter().filter(|entry| entry.is_loss())
    }

    /// A line for each kind of item that the source has: how many are kept, changed in which way, and left out for which reason.
    pub fn lines(&self) -> Vec<(ItemKind, String)> {
        let mut kinds: BTreeMap<ItemKind, Counts> = BTreeMap::new();
        for entry in &self.0 {
            kinds.entry(entry.kind).or_default().add(&entry.outcome);
        }
        kinds
            .into_iter()
            .map(|(kind, counts)| (kind, counts.to_string()))
            .collect()
    }

    /// The number of tensors, objects and values of common state, and how many of them the copy has.
    pub(crate) fn state(&self) -> (u64, u64) {
        let of_source = self.0.iter().filter(|entry| entry.outcome.is_of_source());
        let state = of_source.filter(|entry| entry.kind.is_state());
        let stays = |entry: &&LedgerEntry| !matches!(entry.outcome, Outcome::LeftOut(_));
        let all = state.clone().count() as u64;
        (all, state.filter(stays).count() as u64)
    }

    /// Adds an item.
    fn add(&mut self, kind: ItemKind, name: impl Into<Box<str>>, outcome: Outcome) {
        let name = name.into();
        self.0.push(LedgerEntry {
            kind,
            name,
            outcome,
        });
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (kind, line)) in self.lines().into_iter().enumerate() {
            let end = if n == 0 { "" } else { "\n" };
            write!(f, "{end}{}: {line}", kind.title())?;
        }
        Ok(())
    }
}

/// So many different changes and reasons are counted on their own.
const GROUPS: usize = 8;

/// The outcomes of the items of one kind.
#[derive(Debug, Default)]
struct Counts {
    kept: u64,
    changed: BTreeMap<String, u64>,
    left_out: BTreeMap<Arc<str>, u64>,
    added: u64,
    not_added: BTreeMap<Arc<str>, u64>,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Kept => self.kept += 1,
            Outcome::Changed(changes) => {
                let group = joined(changes, Change::group);
                *self.changed.entry(group).or_default() += 1;
            }
            Outcome::LeftOut(why) => *self.left_out.entry(Arc::clone(why)).or_default() += 1,
            Outcome::Added => self.added += 1,
            Outcome::NotAdded(why) => *self.not_added.entry(Arc::clone(why)).or_default() += 1,
        }
    }
}

/// `10 kept, 2 cast from float32 to bfloat16, 1 left out: its key is not chosen`
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.kept > 0 {
            parts.push(format!("{} kept", self.kept));
        }
        if self.added > 0 {
            parts.push(format!("{} added", self.added));
        }
        let changed = self.changed.iter().map(|(how, n)| (n, how.clone()));
        let left_out = self.left_out.iter();
        let left_out = left_out.map(|(why, n)| (n, format!("left out: {why}")));
        let not_added = self.not_added.iter();
        let not_added = not_added.map(|(why, n)| (n, format!("not added: {why}")));
        for all in [
            Vec::from_iter(changed),
            Vec::from_iter(left_out),
            Vec::from_iter(not_added),
        ] {
            parts.extend(
                all.iter()
                    .take(GROUPS)
                    .map(|(n, what)| format!("{n} {what}")),
            );
            let rest = all.iter().skip(GROUPS);
            match rest.map(|(n, _)| **n).sum::<u64>() {
                0 => {}
                more => parts.push(format!("{more} in other ways")),
            }
        }
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_the_outcomes_of_its_kind() {
        let mut ledger = Ledger::default();
        let cast = |from, to| Outcome::with(vec![Change::Cast { from, to }]);
        for key in ["a", "b"] {
            ledger.add(ItemKind::Tensor, key, Outcome::Kept);
        }
        ledger.add(ItemKind::Tensor, "c", cast(DType::Float32, DType::BFloat16));
        ledger.add(ItemKind::Tensor, "d", cast(DType::BFloat16, DType::Float32));
        let why = "zarr3/1 has no place for objects";
        ledger.add(ItemKind::Object, "o", Outcome::LeftOut(why.into()));
        assert_eq!(
            ledger.to_string(),
            "tensors: 2 kept, 1 cast from bfloat16 to float32, 1 cast from float32 to bfloat16\n\
             objects: 1 left out: zarr3/1 has no place for objects"
        );
        // A wider type holds the same numbers.
        let losses: Vec<&str> = ledger.losses().map(|entry| &*entry.name).collect();
        assert_eq!(losses, ["c", "o"]);
        assert_eq!(ledger.state(), (5, 4));
    }

    #[test]
    fn many_reasons_make_one_line() {
        let mut ledger = Ledger::default();
        for n in 0..20 {
            let why = format!("reason {n:02}");
            ledger.add(ItemKind::Tensor, "t", Outcome::LeftOut(why.into()));
        }
        let line = ledger.to_string();
        assert!(
            line.ends_with("1 left out: reason 07, 12 in other ways"),
            "{line}"
        );
    }
}
