//! The pickle of a file whose tensors are only described: their elements are written later.

use super::write::{BATCH, Encoder};
use crate::{Error, Result, TensorRef, pickle::Op};
use bytes::Bytes;
use indexmap::IndexMap;
use reshard_model::{Step, Tree, Value};
use std::collections::BTreeMap;

/// A leaf of a tree that [`encode_tree`] writes.
#[derive(Clone, Debug)]
pub enum Part {
    /// A tensor in the storage of this number, which the caller chooses; tensors may share one. The key of its storage does not matter.
    Tensor(TensorRef, usize),
    /// Anything else, which may hold tensors itself.
    Value(Value),
}

/// Where the bytes of a record come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The caller's storage of this number.
    Described(usize),
    /// Those of a tensor in a value.
    Bytes(Bytes),
}

/// A tree as `torch.save` splits it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EncodedTree {
    /// The record `data.pkl`.
    pub pickle: Vec<u8>,
    /// The records `data/0`, `data/1`, …
    pub storages: Vec<Stored>,
}

/// Pickles a tree as [`encode`](crate::encode) does with a value. A key of a dict that is an index becomes an int. Storages are numbered as
/// they are met.
///
/// ```
/// use reshard_model::{DType, Tree};
/// use reshard_torch_format::{Part, Stored, TensorRef, encode_tree};
///
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let mut tree = Tree::new();
/// tree.insert("step", Part::Value(7.into()));
/// tree.insert("w", Part::Tensor(TensorRef::contiguous(DType::Float32, &[2])?, 0));
/// let file = encode_tree(&tree)?;
/// assert_eq!(file.storages, [Stored::Described(0)]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`encode`](crate::encode).
pub fn encode_tree(tree: &Tree<Part>) -> Result<EncodedTree> {
    let mut trees = Trees {
        encoder: Encoder::new(),
        known: BTreeMap::new(),
        described: BTreeMap::new(),
    };
    trees.survey(tree)?;
    trees.tree(tree)?;
    let Trees {
        encoder, described, ..
    } = trees;
    let stored = |(n, bytes)| match described.get(&n) {
        Some(number) => Stored::Described(*number),
        None => Stored::Bytes(bytes),
    };
    Ok(EncodedTree {
        pickle: encoder.e.finish(),
        storages: encoder
            .storages
            .into_iter()
            .enumerate()
            .map(stored)
            .collect(),
    })
}

struct Trees {
    encoder: Encoder,
    /// The record of each storage of the caller's, and the other way round.
    known: BTreeMap<usize, usize>,
    described: BTreeMap<usize, usize>,
}

impl Trees {
    fn survey(&mut self, tree: &Tree<Part>) -> Result<()> {
        self.encoder.enter()?;
        match tree {
            Tree::Leaf(Part::Value(value)) => self.encoder.survey(value)?,
            Tree::Leaf(Part::Tensor(..)) => {}
            Tree::Dict(d) => d.values().try_for_each(|tree| self.survey(tree))?,
            Tree::List(v) => v.iter().try_for_each(|tree| self.survey(tree))?,
        }
        self.encoder.leave();
        Ok(())
    }

    fn tree(&mut self, tree: &Tree<Part>) -> Result<()> {
        self.encoder.enter()?;
        match tree {
            Tree::Leaf(Part::Value(value)) => self.encoder.value(value)?,
            Tree::Leaf(Part::Tensor(tensor, storage)) => self.tensor(tensor, *storage)?,
            Tree::Dict(d) => self.dict(d)?,
            Tree::List(v) => self.list(v)?,
        }
        self.encoder.leave();
        Ok(())
    }

    fn tensor(&mut self, tensor: &TensorRef, storage: usize) -> Result<()> {
        let record = match self.known.get(&storage) {
            Some(record) => *record,
            None => {
                let record = self.encoder.add(Bytes::new());
                self.known.insert(storage, record);
                self.described.insert(record, storage);
                record
            }
        };
        let mut tensor = tensor.clone();
        tensor.storage.key = record.to_string().into();
        tensor.emit(&mut self.encoder.e)
    }

    fn list(&mut self, items: &[Tree<Part>]) -> Result<()> {
        self.encoder.e.op(Op::EmptyList);
        self.encoder.e.memoize();
        if let [only] = items {
            self.tree(only)?;
            self.encoder.e.op(Op::Append);
            return Ok(());
        }
        for batch in items.chunks(BATCH) {
            self.encoder.e.op(Op::Mark);
            batch.iter().try_for_each(|item| self.tree(item))?;
            self.encoder.e.op(Op::Appends);
        }
        Ok(())
    }

    fn dict(&mut self, dict: &IndexMap<Step, Tree<Part>>) -> Result<()> {
        self.encoder.e.op(Op::EmptyDict);
        self.encoder.e.memoize();
        let pairs = Vec::from_iter(dict);
        if let [pair] = &*pairs {
            self.pair(*pair)?;
            self.encoder.e.op(Op::SetItem);
            return Ok(());
        }
        for batch in pairs.chunks(BATCH) {
            self.set_items(batch)?;
        }
        // CPython looks for more after each full group, and writes an empty one when there is none.
        if !pairs.is_empty() && pairs.len().is_multiple_of(BATCH) {
            self.set_items(&[])?;
        }
        Ok(())
    }

    fn set_items(&mut self, pairs: &[(&Step, &Tree<Part>)]) -> Result<()> {
        self.encoder.e.op(Op::Mark);
        pairs.iter().try_for_each(|pair| self.pair(*pair))?;
        self.encoder.e.op(Op::SetItems);
        Ok(())
    }

    fn pair(&mut self, (key, value): (&Step, &Tree<Part>)) -> Result<()> {
        match key {
            Step::Key(key) => self.encoder.e.str(key),
            Step::Index(n) => {
                let n = i64::try_from(*n)
                    .map_err(|_| Error::encode(format!("the key {n} of a dict")))?;
                self.encoder.e.int(n);
            }
        }
        self.tree(value)
    }
}
