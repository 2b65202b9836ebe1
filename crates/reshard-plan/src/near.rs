//! What somebody may have meant.

use crate::Metadata;

/// How many suggestions.
const SHOWN: usize = 3;
/// How many letters of keys are compared, for all missing keys together; what a key costs by itself counts too.
const BUDGET: usize = 16 << 20;
const EACH: usize = 40;
/// Keys of more bytes are nobody's slip of the pen, and comparing them is slow.
const LONGEST: usize = 1024;

/// Finds stored keys that look like missing ones, in bounded time.
#[derive(Debug)]
pub(crate) struct Near<'m> {
    keys: Vec<&'m str>,
    /// Of comparing a key with all of them.
    cost: usize,
    left: usize,
}

impl<'m> Near<'m> {
    pub(crate) fn new(metadata: &'m Metadata) -> Self {
        let keys: Vec<&str> = metadata
            .entries()
            .map(|e| e.key())
            .filter(|k| k.len() <= LONGEST)
            .collect();
        let cost = keys.iter().map(|k| k.len() + EACH).sum();
        Self {
            keys,
            cost,
            left: BUDGET,
        }
    }

    /// Up to three keys: cells of an array of objects and those with a dotted part more or less in front first, then those a
    /// few letters away.
    pub(crate) fn of(&mut self, missing: &str) -> Vec<String> {
        let ends_with = |long: &str, short: &str| {
            long.strip_suffix(short)
                .is_some_and(|front| front.ends_with('.'))
        };
        if self.left < self.cost || missing.len() > LONGEST {
            return Vec::new();
        }
        self.left -= self.cost;
        let mut found: Vec<(usize, &str)> = Vec::new();
        let limit = (missing.chars().count() / 4).clamp(1, 4);
        for &key in &self.keys {
            let cell = key
                .strip_prefix(missing)
                .is_some_and(|rest| rest.starts_with("/shard_"));
            let distance = if cell || ends_with(key, missing) || ends_with(missing, key) {
                Some(0)
            } else {
                distance(missing, key, limit)
            };
            found.extend(distance.map(|d| (d, key)));
        }
        nearest(found).map(Into::into).collect()
    }
}

/// The words that look like a wrong one, the most similar first: those that differ in at most a quarter of its letters, and at most in four. Case does not
/// count.
/// For short lists of short names.
///
/// ```
/// assert_eq!(reshard_plan::similar("safetensor", ["torch_dist", "safetensors"]), ["safetensors"]);
/// ```
pub fn similar<'w>(wrong: &str, words: impl IntoIterator<Item = &'w str>) -> Vec<&'w str> {
    if wrong.is_empty() || wrong.len() > LONGEST {
        return Vec::new();
    }
    let limit = (wrong.chars().count() / 4).clamp(1, 4);
    let lower = wrong.to_lowercase();
    let near = |word: &'w str| Some((distance(&lower, &word.to_lowercase(), limit)?, word));
    nearest(words.into_iter().filter_map(near).collect()).collect()
}

/// The first few by distance, each once.
fn nearest(mut found: Vec<(usize, &str)>) -> impl Iterator<Item = &str> {
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(|(_, word)| word).take(SHOWN)
}

/// Letters to insert, delete or replace, if no more than `limit`.
fn distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit * 4 {
        return None;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let front = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[front..], &b[front..]);
    let back = a
        .iter()
        .rev()
        .zip(b.iter().rev())
        .take_while(|(x, y)| x == y)
        .count();
    let (a, b) = (&a[..a.len() - back], &b[..b.len() - back]);
    if a.len().min(b.len()) > 64 {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let cost = (diagonal + usize::from(x != y))
                .min(row[j] + 1)
                .min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row.last().copied().filter(|d| *d <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::DType;

    #[test]
    fn a_prefix_more_or_less_and_a_slip_of_the_pen_are_found() {
        let mut b = Metadata::builder();
        for key in [
            "module.layer.weight",
            "layer.bias",
            "optimizer.step",
            "layer.weights",
        ] {
            b.add_tensor(key, DType::Float32, &[1], Default::default())
                .unwrap();
        }
        let m = b.finish(None).unwrap();
        let mut near = Near::new(&m);
        assert_eq!(
            near.of("layer.weight"),
            ["module.layer.weight", "layer.weights"]
        );
        assert_eq!(near.of("model.layer.bias"), ["layer.bias"]);
        assert_eq!(near.of("optimiser.step"), ["optimizer.step"]);
        assert!(near.of("nothing.like.it").is_empty());
    }

    #[test]
    fn the_key_of_an_array_of_objects_leads_to_its_cells() {
        let mut b = Metadata::builder();
        b.add_object("rng/shard_0_2").unwrap();
        b.add_object("rng/shard_1_2").unwrap();
        let m = b.finish(None).unwrap();
        assert_eq!(Near::new(&m).of("rng"), ["rng/shard_0_2", "rng/shard_1_2"]);
    }

    #[test]
    fn keys_of_100_kb_are_not_compared() {
        let long = "x".repeat(100_000);
        let mut b = Metadata::builder();
        for i in 0..200 {
            b.add_object(&format!("{long}{i}")).unwrap();
        }
        b.add_object("step").unwrap();
        let m = b.finish(None).unwrap();
        let mut near = Near::new(&m);
        assert!(near.keys == ["step"] && near.cost < 100);
        let left = near.left;
        assert!(near.of(&format!("{long}y")).is_empty());
        assert_eq!((near.left, near.of("stop")), (left, vec!["step".into()]));
    }

    #[test]
    fn letters_compared_for_all_missing_keys_have_a_limit() {
        let mut b = Metadata::builder();
        for i in 0..1000 {
            b.add_object(&format!("{i:0>1000}")).unwrap();
        }
        let m = b.finish(None).unwrap();
        let mut near = Near::new(&m);
        let missing = format!("{:0>1000}", "00x");
        let hints: Vec<usize> = (0..30).map(|_| near.of(&missing).len()).collect();
        assert!(
            hints[..16].iter().all(|n| *n == 3) && hints[16..].iter().all(|n| *n == 0),
            "{hints:?}"
        );
    }

    #[test]
    fn distance_counts_insertions_deletions_and_replacements() {
        assert_eq!(distance("kitten", "sitting", 4), Some(3));
        assert_eq!(distance("", "abc", 4), Some(3));
        assert_eq!(distance("äö", "ä", 1), Some(1));
        assert_eq!(distance("kitten", "sitting", 2), None);
    }
}
