//! Names of files of ranks.

use crate::names::own_file;
use reshard_storage::Listing;
use reshard_strategy::Detection;
use std::collections::{BTreeMap, BTreeSet};

/// The metadata of `torch_checkpointing`.
pub(crate) const METADATA: &str = "metadata.pkl";

const SAFETENSORS: &str = ".safetensors";
const ENDINGS: [&str; 5] = [".pt", ".pth", ".bin", ".ckpt", SAFETENSORS];

/// Parts of the names that DeepSpeed and Megatron Core give to files which other programs merge.
const OTHERS: [&str; 2] = ["zero_pp_rank_", "mp_rank_"];

/// The name of a file of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankName {
    /// The item: `model`, `optim`. Empty if the name has nothing but the rank.
    pub(crate) item: String,
    pub(crate) rank: u32,
    /// The number of ranks, if the name has it.
    pub(crate) world: Option<u32>,
    /// Whether the name says that the number is a rank.
    pub(crate) is_sure: bool,
    pub(crate) is_safetensors: bool,
}

impl RankName {
    /// `None` for other names.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let ending = ENDINGS.iter().find(|ending| name.ends_with(**ending))?;
        let stem = name.strip_suffix(ending)?;
        if own_file(name).is_some() || OTHERS.iter().any(|part| stem.contains(part)) {
            return None;
        }
        let is_safetensors = *ending == SAFETENSORS;
        let found = |item: String, rank, world, is_sure| {
            Some(Self {
                item,
                rank,
                world,
                is_sure,
                is_safetensors,
            })
        };
        if let Some((before, rank, after)) = numbered(stem, "rank") {
            // As verl has it: `model_world_size_4_rank_0`.
            let before = before.trim_end_matches(SEPARATORS);
            let (before, world) = match numbered(before, "world_size") {
                Some((item, world, "")) => (item, Some(world)),
                _ => (before, None),
            };
            let parts = [before, after].map(|part| part.trim_matches(SEPARATORS));
            let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            return found(parts.join("_"), rank, world, true);
        }
        let digits = stem.len() - stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (before, number) = stem.split_at_checked(stem.len() - digits)?;
        let item = before.trim_end_matches(SEPARATORS);
        found(item.into(), number.parse().ok()?, None, false)
    }
}

const SEPARATORS: [char; 3] = ['_', '-', '.'];

/// A word with a number behind it: what is before it, the number, and what is after it.
fn numbered<'n>(text: &'n str, word: &str) -> Option<(&'n str, u32, &'n str)> {
    let at = text.rfind(word)?;
    let (before, rest) = text.split_at_checked(at)?;
    if before.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let rest = rest.strip_prefix(word)?.trim_start_matches(SEPARATORS);
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, after) = rest.split_at_checked(digits)?;
    let is_end = !after.starts_with(|c: char| c.is_ascii_alphanumeric());
    Some((before, number.parse().ok().filter(|_| is_end)?, after))
}

/// Whether the files of a folder are those of ranks, by their names.
pub(crate) fn detect(top: &Listing) -> Detection {
    let all: Vec<&str> = top.names().collect();
    let named: Vec<Option<RankName>> = all.iter().map(|name| RankName::of(name)).collect();
    let of_ranks = named.iter().flatten();
    // Files of other formats have such names with the ending `.bin`.
    let is_torchs = |(name, of): (&&str, &Option<RankName>)| {
        let of = of.as_ref().filter(|of| of.is_sure && !of.is_safetensors);
        of.is_some() && !name.ends_with(".bin")
    };
    if all.iter().zip(&named).any(is_torchs)
        || of_ranks.clone().next().is_some() && top.has(METADATA)
    {
        return Detection::Yes;
    }
    // Without the word, only numbers from 0 on may be ranks, and only if there is nothing else.
    let mut series: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (name, of) in all.iter().zip(&named) {
        let is_data = ENDINGS.iter().any(|ending| name.ends_with(ending));
        match of {
            _ if name.starts_with('.') || name.ends_with(SAFETENSORS) => return Detection::No,
            Some(of) => drop(series.entry(&of.item).or_default().insert(of.rank)),
            None if is_data => return Detection::No,
            None => {}
        }
    }
    let is_whole =
        |ranks: &BTreeSet<u32>| ranks.len() > 1 && ranks.iter().copied().eq(0..ranks.len() as u32);
    match !series.is_empty() && series.values().all(is_whole) {
        true => Detection::Likely,
        false => Detection::No,
    }
}

/// Ranks in a message: `rank 3`, `ranks 0, 2 and 5`. Runs are shortened, and so is a long list.
pub(crate) fn ranks(all: impl IntoIterator<Item = u32>) -> String {
    const MOST: usize = 12;
    let sorted: BTreeSet<u32> = all.into_iter().collect();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in &sorted {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let mut parts: Vec<String> = Vec::new();
    for (first, last) in runs {
        match last - first {
            0 => parts.push(first.to_string()),
            1 => parts.extend([first.to_string(), last.to_string()]),
            _ => parts.push(format!("{first} to {last}")),
        }
    }
    let more = parts.len().saturating_sub(MOST);
    parts.truncate(MOST);
    let word = if sorted.len() == 1 { "rank" } else { "ranks" };
    match (&*parts, more) {
        (_, 1..) => format!("{word} {} and {more} more", parts.join(", ")),
        ([first @ .., last], _) if !first.is_empty() => {
            format!("{word} {} and {last}", first.join(", "))
        }
        _ => format!("{word} {}", parts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_storage::{Entry, Name};

    fn of(names: &[&str]) -> Detection {
        let entry = |name: &&str| Entry {
            name: Name::new(*name).unwrap(),
            bytes: 1,
        };
        detect(&Listing::of(names.iter().map(entry).collect()))
    }

    #[test]
    fn names_give_item_and_rank() {
        for (name, item, rank, world, is_sure) in [
            ("model_world_size_4_rank_3.pt", "model", 3, Some(4), true),
            (
                "extra_state_world_size_16_rank_10.pt",
                "extra_state",
                10,
                Some(16),
                true,
            ),
            ("rank0.pt", "", 0, None, true),
            ("optim-rank-00007.pth", "optim", 7, None, true),
            ("rank2_model.pt", "model", 2, None, true),
            ("model_0.pt", "model", 0, None, false),
            ("model_1.safetensors", "model", 1, None, false),
            ("shard7.bin", "shard", 7, None, false),
        ] {
            let found = RankName::of(name).unwrap();
            let found = (&*found.item, found.rank, found.world, found.is_sure);
            assert_eq!(found, (item, rank, world, is_sure), "{name}");
        }
        for not in [
            "model.pt",
            "rank.pt",
            "frank1x.txt",
            "pytorch_model-00001-of-00002.bin",
            "zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "mp_rank_00_model_states.pt",
            "model_99999999999.pt",
        ] {
            assert_eq!(RankName::of(not), None, "{not}");
        }
    }

    #[test]
    fn only_folders_of_ranks_are_recognised() {
        for (names, want) in [
            (&["rank0.pt", "config.json"][..], Detection::Yes),
            (&["model_0.pt", "metadata.pkl"], Detection::Yes),
            (&["model_0.safetensors", "metadata.pkl"], Detection::Yes),
            (
                &["model_0.pt", "model_1.pt", "optim_0.pt", "optim_1.pt"],
                Detection::Likely,
            ),
            (&["epoch_1.pt", "epoch_2.pt"], Detection::No),
            (&["model_0.pt", "model_2.pt"], Detection::No),
            (&["model_0.pt"], Detection::No),
            (
                &["rng_state_0.pth", "rng_state_1.pth", "model.safetensors"],
                Detection::No,
            ),
            (
                &["rng_state_0.pth", "rng_state_1.pth", "optimizer.pt"],
                Detection::No,
            ),
            (
                &["model_0.safetensors", "model_1.safetensors"],
                Detection::No,
            ),
            (&["metadata.pkl"], Detection::No),
        ] {
            assert_eq!(of(names), want, "{names:?}");
        }
    }

    #[test]
    fn ranks_are_told_in_few_words() {
        assert_eq!(ranks([3]), "rank 3");
        assert_eq!(ranks([2, 0, 3]), "ranks 0, 2 and 3");
        assert_eq!(ranks([1, 2, 3, 7]), "ranks 1 to 3 and 7");
        assert_eq!(
            ranks((0..100).map(|n| 2 * n)).len(),
            "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 88 more".len()
        );
    }
}
