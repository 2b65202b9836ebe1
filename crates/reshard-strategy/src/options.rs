//! Compares the options of a collective call between all ranks.
//!
//! Ranks first exchange one digest per option. Values follow in a second step, and only for options that differ.

use crate::{Result, StrategyError, hex};
use indexmap::IndexMap;
use reshard_comm::{Comm, Rank};
use sha2::{Digest as _, Sha256};
use std::fmt;

/// The name of both collective steps.
const STEP: &str = "options";

/// Length of a value in an error message, in characters.
const MAX_SHOWN: usize = 200;

/// Number of different values of one option that an error message lists.
const MAX_VARIANTS: usize = 4;

/// The start of a SHA-256. Accidental differences are all that it has to find.
type Digest = [u8; 16];

/// The options of a collective call that all ranks must pass alike, with the values of this rank.
///
/// Every rank adds the same options in the same order. The first option is the version of reshard.
///
/// ```
/// use futures::{executor::block_on, future::join_all};
/// use reshard_comm::{Comm, LocalGroup, ProcessGroup};
/// use reshard_strategy::AgreedOptions;
///
/// let groups = LocalGroup::new(2);
/// let ranks = groups.iter().map(|group| async move {
///     let options = AgreedOptions::new().with("overwrite", group.rank().0 == 1);
///     options.agree(&Comm::new(group)).await.unwrap_err().to_string()
/// });
/// for error in block_on(join_all(ranks)) {
///     assert!(error.contains("`overwrite`: rank 0 has false, rank 1 has true"), "{error}");
/// }
/// ```
#[derive(Clone, Debug)]
pub struct AgreedOptions(Vec<(&'static str, String)>);

/// Options whose values differ between ranks, found by [`AgreedOptions::compare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differences {
    /// Positions in the list of options, in ascending order. All ranks have the same.
    positions: Vec<u32>,
    /// The names that this rank has at these positions.
    names: Vec<&'static str>,
}

impl Differences {
    /// Whether all ranks passed the same options.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Whether `name` is the only option that differs.
    pub fn is_only(&self, name: &str) -> bool {
        self.names == [name]
    }
}

impl Default for AgreedOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl AgreedOptions {
    /// Only the version of reshard.
    pub fn new() -> Self {
        Self(Vec::new()).with("version of reshard", env!("CARGO_PKG_VERSION"))
    }

    /// Adds an option. Values are compared as text.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    /// The names of the options, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, _)| *name)
    }

    /// Fails on all ranks if their options differ.
    ///
    /// # Collective
    /// Every rank calls it. Rank 0 compares, because ranks may name different coordinators.
    ///
    /// # Errors
    /// The same on every rank: [`StrategyError::Invalid`] with options, ranks and values, or an error of the group.
    pub async fn agree(&self, comm: &Comm<'_>) -> Result<()> {
        let found = self.compare(comm).await?;
        if found.is_empty() {
            return Ok(());
        }
        Err(self.refuse(comm, &found).await)
    }

    /// Finds the options that differ between ranks, for callers that allow some differences.
    ///
    /// # Collective
    /// As [`agree`](Self::agree). All ranks get the same result.
    ///
    /// # Errors
    /// Those of the group.
    pub async fn compare(&self, comm: &Comm<'_>) -> Result<Differences> {
        let mine: Vec<Digest> = self.0.iter().map(|(_, value)| digest(value)).collect();
        let positions = match comm.size() {
            1 => Vec::new(),
            _ => {
                let comm = comm.with_coordinator(Rank(0));
                comm.all_reduce(STEP, Ok(mine), |all| Ok(differing(&all)))
                    .await?
            }
        };
        let name = |position: &u32| Some(self.0.get(*position as usize)?.0);
        let names = positions.iter().filter_map(name).collect();
        Ok(Differences { positions, names })
    }

    /// Exchanges the values of options that differ, and returns the error for them.
    ///
    /// # Collective
    /// Every rank calls it, with the differences that [`compare`](Self::compare) found.
    pub async fn refuse(&self, comm: &Comm<'_>, found: &Differences) -> StrategyError {
        let mine = found.positions.iter().map(|position| {
            let option = self.0.get(*position as usize);
            option.map(|(name, value)| ((*name).to_owned(), shown(value)))
        });
        let mine: Vec<Option<(String, String)>> = mine.collect();
        let comm = comm.with_coordinator(Rank(0));
        match comm
            .all_reduce(STEP, Ok(mine), |all| Ok(message(&all)))
            .await
        {
            Ok(what) => StrategyError::Invalid(what),
            Err(e) => e.into(),
        }
    }
}

fn digest(value: &str) -> Digest {
    let mut out = Digest::default();
    out.iter_mut()
        .zip(Sha256::digest(value))
        .for_each(|(to, from)| *to = from);
    out
}

/// The positions at which not all ranks have the same digest. If versions differ, other options may not be comparable.
fn differing(all: &[Vec<Digest>]) -> Vec<u32> {
    let count = all.iter().map(Vec::len).max().unwrap_or(0);
    let differs = |at: &usize| all.iter().any(|of| of.get(*at) != all[0].get(*at));
    let found: Vec<u32> = (0..count)
        .filter(differs)
        .filter_map(|at| u32::try_from(at).ok())
        .collect();
    match found.first() {
        Some(0) => vec![0],
        _ => found,
    }
}

/// A value as an error message shows it. Long values are cut, with a digest that still tells them apart.
fn shown(value: &str) -> String {
    match value.char_indices().nth(MAX_SHOWN) {
        None => value.to_owned(),
        Some((cut, _)) => {
            let sum = hex(&digest(value));
            format!("{}… ({} bytes, SHA-256 {sum}…)", &value[..cut], value.len())
        }
    }
}

/// Names each option that differs, with the value of every rank. `all` has the same options for each rank.
fn message(all: &[Vec<Option<(String, String)>>]) -> String {
    let mut what = "ranks have different options, and all must pass the same:".to_owned();
    for at in 0..all.first().map_or(0, Vec::len) {
        let mut values: IndexMap<&str, Vec<Rank>> = IndexMap::new();
        let mut option = "an option of another version";
        for (rank, of) in (0..).map(Rank).zip(all) {
            let value = match of.get(at).and_then(Option::as_ref) {
                Some((name, value)) => {
                    option = name;
                    value
                }
                None => "no such option",
            };
            values.entry(value).or_default().push(rank);
        }
        what = format!("{what}\n  `{option}`: ");
        let has = values.iter().take(MAX_VARIANTS).map(|(value, ranks)| {
            let have = if ranks.len() == 1 { "has" } else { "have" };
            format!("{} {have} {value}", Rank::list(ranks))
        });
        what += &has.collect::<Vec<_>>().join(", ");
        if values.len() > MAX_VARIANTS {
            what += ", and other ranks have still other values";
        }
    }
    what
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(of: &[&str]) -> Vec<Option<(String, String)>> {
        let option = |(i, value): (usize, &&str)| Some((format!("o{i}"), (*value).to_owned()));
        of.iter().enumerate().map(option).collect()
    }

    #[test]
    fn ranks_with_equal_values_are_named_together() {
        let all = [
            options(&["a", "x"]),
            options(&["b", "y"]),
            options(&["a", "z"]),
        ];
        let lines = message(&all);
        assert!(
            lines.contains("\n  `o0`: ranks 0, 2 have a, rank 1 has b\n"),
            "{lines}"
        );
        assert!(
            lines.ends_with("\n  `o1`: rank 0 has x, rank 1 has y, rank 2 has z"),
            "{lines}"
        );
    }

    #[test]
    fn other_versions_are_the_only_difference_that_is_named() {
        let [a, b] = ["a", "b"].map(digest);
        assert_eq!(differing(&[vec![a, a], vec![a, a]]), [0; 0]);
        assert_eq!(differing(&[vec![a, a, a], vec![a, b, a]]), [1]);
        assert_eq!(differing(&[vec![a, a], vec![a, a, b]]), [2]);
        assert_eq!(differing(&[vec![a, a], vec![b, b, b]]), [0]);
    }

    #[test]
    fn long_values_are_cut_and_still_differ() {
        let long = "ä".repeat(MAX_SHOWN);
        assert_eq!(shown(&long), long);
        let [a, b] = ["a", "b"].map(|end| shown(&format!("{long}{end}")));
        assert!(a != b && a.len() < 2 * MAX_SHOWN + 100, "{a}");
    }
}
