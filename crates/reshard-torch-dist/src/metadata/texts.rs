//! Strs of a `.metadata` file, each kept once. What is built names them by number, so that none of it holds on to the file.

use super::{
    fields::FIELDS,
    spelling::{has_letters, spell},
    worth::{Beyond, Worth, number},
};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::{collections::BTreeMap, hash::BuildHasher};

/// Room that one text takes in the table of hashes, which is made anew as it grows.
const ENTRY: usize = 24;
/// An entry of the map of spellings.
const SPELLED: usize = 48;

/// Texts by number. Those of [`FIELDS`] come first.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    /// All of them, one after the other.
    all: String,
    ends: Vec<End>,
    numbers: HashTable<u32>,
    hasher: RandomState,
    /// Of each text that may be another one as a key: that one, once somebody has asked. Others are keys as they are.
    keys: BTreeMap<u32, Option<u32>>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: usize,
    hash: u64,
}

fn text<'t>(all: &'t str, ends: &[End], i: u32) -> Option<&'t str> {
    let i = i as usize;
    let start = if i == 0 { 0 } else { ends.get(i - 1)?.at };
    all.get(start..ends.get(i)?.at)
}

impl Texts {
    /// Those of the fields.
    pub(crate) fn new(worth: &mut Worth) -> Result<Self, Beyond> {
        let mut texts = Self::default();
        for (_, name) in FIELDS {
            texts.add(name, worth)?;
        }
        Ok(texts)
    }

    /// The number of a text. Looking for it takes steps by its length, so it is done once for each time that the file holds it.
    pub(crate) fn add(&mut self, new: &str, worth: &mut Worth) -> Result<u32, Beyond> {
        let hash = self.hasher.hash_one(new);
        let Self {
            all,
            ends,
            numbers,
            keys,
            ..
        } = self;
        if let Some(i) = numbers.find(hash, |i| text(all, ends, *i) == Some(new)) {
            return Ok(*i);
        }
        let i = number(ends.len())?;
        worth.take(ENTRY)?;
        worth.push_str(all, new)?;
        let at = all.len();
        worth.push(ends, End { at, hash })?;
        let rehash = |i: &u32| ends.get(*i as usize).map_or(0, |e| e.hash);
        numbers.try_reserve(1, rehash).map_err(|_| worth.none())?;
        numbers.insert_unique(hash, i, rehash);
        if has_letters(new.as_bytes()) {
            worth.take(SPELLED)?;
            keys.insert(i, None);
        }
        Ok(i)
    }

    /// The number of a text's spelling as a key, in which lone surrogates are told from letters.
    pub(crate) fn key(&mut self, i: u32, worth: &mut Worth) -> Result<u32, Beyond> {
        match self.keys.get(&i) {
            None => Ok(i),
            Some(None) => {
                let plain = self.get(i).unwrap_or_default().as_bytes();
                // A spelling is at most twice as long.
                worth.take(plain.len().saturating_mul(2))?;
                let spelled = spell(plain).unwrap_or_default().into_owned();
                let key = self.add(&spelled, worth)?;
                self.keys.insert(i, Some(key));
                Ok(key)
            }
            Some(Some(key)) => Ok(*key),
        }
    }

    pub(crate) fn get(&self, i: u32) -> Option<&str> {
        text(&self.all, &self.ends, i)
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of memory that are drawn for it.
    pub(crate) fn takes(&self) -> usize {
        self.all.capacity()
            + self.ends.capacity() * size_of::<End>()
            + self.ends.len() * ENTRY
            + self.keys.len() * SPELLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_torch_format::Limits;

    fn texts(memory: u64) -> (Texts, Worth) {
        let mut worth = Worth::of(
            &Limits {
                memory: Some(memory),
                ..Limits::default()
            },
            0,
        );
        (Texts::new(&mut worth).unwrap(), worth)
    }

    #[test]
    fn equal_texts_are_kept_once() {
        let (mut texts, mut worth) = texts(1 << 20);
        let all: Vec<String> = (0..1000)
            .map(|i| format!("{}{i}", "é".repeat(i % 7)))
            .collect();
        let numbers: Vec<u32> = all
            .iter()
            .map(|t| texts.add(t, &mut worth).unwrap())
            .collect();
        let len = texts.all.len();
        for (text, i) in all.iter().zip(&numbers) {
            assert_eq!(texts.add(text, &mut worth), Ok(*i));
            assert_eq!(texts.get(*i), Some(&text[..]));
        }
        assert_eq!((texts.all.len(), texts.len()), (len, 1000 + FIELDS.len()));
        assert_eq!(texts.get(texts.len() as u32), None);
        let known = texts.len();
        let field = texts.add("offsets", &mut worth).unwrap() as usize;
        assert_eq!((FIELDS[field].1, texts.len()), ("offsets", known));
    }

    #[test]
    fn what_is_kept_of_a_text_is_drawn_from_the_budget() {
        let (mut texts, mut worth) = texts(100_000);
        let long = "x".repeat(60_000);
        texts.add(&long, &mut worth).unwrap();
        texts.add(&long, &mut worth).unwrap();
        assert!(texts.add(&"y".repeat(60_000), &mut worth).is_err());
    }

    #[test]
    fn a_key_is_spelled_once() {
        let (mut texts, mut worth) = texts(100_000);
        let raw = texts.add(&"\\ud800".repeat(2000), &mut worth).unwrap();
        let key = texts.key(raw, &mut worth).unwrap();
        assert_eq!(texts.get(key), Some(&"\\\\ud800".repeat(2000)[..]));
        for _ in 0..100 {
            assert_eq!(texts.key(raw, &mut worth), Ok(key));
        }
        let plain = texts.add("a\\b", &mut worth).unwrap();
        assert_eq!(texts.key(plain, &mut worth), Ok(plain));
        // What is a key of one text is a text itself, and as such has another key.
        assert_ne!(texts.key(key, &mut worth), Ok(key));
    }
}
