//! Tensors that share stored elements.

use super::Checkpoint;
use reshard_storage::Name;
use std::collections::{BTreeMap, BTreeSet};

/// Several tensors whose elements are stored in the same bytes, such as an embedding and an output layer with tied weights.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tie {
    /// The keys of the tensors, sorted.
    pub keys: Vec<String>,
    /// Whether all have the same elements in the same order. Otherwise they are different parts, or views, of one storage.
    pub is_whole: bool,
}

/// A file, and where a range of it begins and ends.
type StoredRange = (Name, u64, u64);

impl Checkpoint {
    /// The tensors that share stored elements. Only formats that can store elements once for several tensors have any: files of `torch.save`.
    pub fn ties(&self) -> Vec<Tie> {
        let reader = &self.opened.reader;
        let mut stored: BTreeMap<StoredRange, Vec<(&str, String)>> = BTreeMap::new();
        for tensor in self.metadata().tensors() {
            for (chunk, _) in tensor.chunks() {
                let Some(elements) = reader.shared_elements(chunk) else {
                    continue;
                };
                if let [part] = &*reader.locate_chunk(chunk) {
                    let at = (part.file.clone(), part.range.start, part.range.end);
                    stored.entry(at).or_default().push((tensor.key(), elements));
                }
            }
        }
        let mut ties = Vec::new();
        for all in stored.into_values() {
            let mut same: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
            for (key, elements) in &all {
                same.entry(elements.clone()).or_default().insert(key);
            }
            // Views of one storage are tied, too, but not by all of their elements.
            if same.len() > 1 {
                ties.extend(Tie::of(all.iter().map(|(key, _)| *key).collect(), false));
            }
            ties.extend(same.into_values().filter_map(|keys| Tie::of(keys, true)));
        }
        ties
    }
}

impl Tie {
    /// A tie of these tensors, if there are several.
    fn of(keys: BTreeSet<&str>, is_whole: bool) -> Option<Self> {
        (keys.len() > 1).then(|| Self {
            keys: keys.into_iter().map(String::from).collect(),
            is_whole,
        })
    }
}
