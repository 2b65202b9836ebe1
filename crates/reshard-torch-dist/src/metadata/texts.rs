//! Strs of a `.metadata` file: keys and relative paths, each kept once.

use super::{
    spelling::{has_letters, spell},
    worth::{Beyond, Worth, number},
};
use indexmap::IndexSet;
use std::{
    borrow::Borrow,
    collections::BTreeMap,
    hash::{Hash, Hasher},
    rc::Rc,
};

/// A str of the pickle.
#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Borrowed(&'a str),
    Owned(Rc<str>),
}

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Borrowed(s) => s,
            Self::Owned(s) => s,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Text<'_> {}

impl Hash for Text<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl<'a> Text<'a> {
    /// The same as a key, in which lone surrogates are spelled.
    pub(crate) fn key(&self, worth: &mut Worth) -> Result<Self, Beyond> {
        if !has_letters(self.as_str().as_bytes()) {
            return Ok(self.clone());
        }
        let spelled = spell(self.as_str().as_bytes()).unwrap_or_default();
        Self::owned(&spelled, worth)
    }

    pub(crate) fn owned(text: &str, worth: &mut Worth) -> Result<Self, Beyond> {
        worth.take(text.len().saturating_mul(2).saturating_add(32))?;
        Ok(Self::Owned(text.into()))
    }
}

/// Texts from this length on are known by their address first: a file of 10 MB may name one of 1 MB a million times.
const LONG: usize = 256;
/// Room that one text takes, beside itself.
const ENTRY: usize = 96;

/// Texts by number.
#[derive(Debug, Default)]
pub(crate) struct Texts<'a> {
    all: IndexSet<Text<'a>>,
    /// By address and length, and whether it is a key. Holds the texts, so that no address comes twice.
    long: BTreeMap<(usize, usize, bool), (Text<'a>, u32)>,
}

impl<'a> Texts<'a> {
    /// The number of a text.
    pub(crate) fn add(&mut self, text: &Text<'a>, worth: &mut Worth) -> Result<u32, Beyond> {
        self.known_or(text, false, worth)
    }

    /// The number of a key's spelling.
    pub(crate) fn add_key(&mut self, key: &Text<'a>, worth: &mut Worth) -> Result<u32, Beyond> {
        self.known_or(key, true, worth)
    }

    fn known_or(&mut self, text: &Text<'a>, key: bool, worth: &mut Worth) -> Result<u32, Beyond> {
        let s = text.as_str();
        let address = (s.as_ptr().addr(), s.len(), key);
        if s.len() >= LONG
            && let Some((_, i)) = self.long.get(&address)
        {
            return Ok(*i);
        }
        let i = if key { self.enter(text.key(worth)?, worth)? } else { self.enter(text.clone(), worth)? };
        if s.len() >= LONG {
            worth.take(ENTRY)?;
            self.long.insert(address, (text.clone(), i));
        }
        Ok(i)
    }

    fn enter(&mut self, text: Text<'a>, worth: &mut Worth) -> Result<u32, Beyond> {
        let i = match self.all.get_index_of(text.as_str()) {
            Some(i) => i,
            None => {
                worth.take(ENTRY)?;
                self.all.insert_full(text).0
            }
        };
        number(i)
    }

    pub(crate) fn get(&self, i: u32) -> Option<&str> {
        self.all.get_index(i as usize).map(Text::as_str)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}
