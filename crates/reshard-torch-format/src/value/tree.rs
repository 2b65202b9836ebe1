//! The pickle of a file whose tensors are only described: their elements are written later.

use super::write::{BATCH, Encoder};
use crate::{Result, TensorRef, pickle::Op};
use bytes::Bytes;
use reshard_model::{Opaque, Value};
use std::collections::BTreeMap;

/// A leaf of a tree that [`encode_tree`] writes.
#[derive(Clone, Debug)]
pub enum Part {
    /// A tensor in the storage of this number, which the caller chooses; tensors may share one. The key of its storage does not matter.
    Tensor(TensorRef, usize),
    /// The same object as the last tensor of this description in this storage, if there is one.
    Again(TensorRef, usize),
    /// Anything else, which may hold tensors itself.
    Value(Value),
}

/// A tree that [`encode_tree`] writes.
#[derive(Clone, Debug)]
pub enum PartTree {
    /// A dict, or an object of a class of dicts.
    Dict(PartDict),
    /// A list.
    List(Vec<Self>),
    /// A leaf.
    Leaf(Part),
}

/// A dict of a [`PartTree`].
#[derive(Clone, Debug, Default)]
pub struct PartDict {
    /// How Python makes it and sets its state, if it is no plain dict: the object without items.
    pub class: Option<Box<Opaque>>,
    /// Its keys and values, in order.
    pub pairs: Vec<(Value, PartTree)>,
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

/// Pickles a tree as [`encode`](crate::encode) does with a value. Storages are numbered as they are met.
///
/// ```
/// use reshard_model::DType;
/// use reshard_torch_format::{Part, PartDict, PartTree, Stored, TensorRef, encode_tree};
///
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let weight = Part::Tensor(TensorRef::contiguous(DType::Float32, &[2])?, 0);
/// let mut dict = PartDict::default();
/// dict.pairs.push(("step".into(), PartTree::Leaf(Part::Value(7.into()))));
/// dict.pairs.push(("w".into(), PartTree::Leaf(weight)));
/// let file = encode_tree(&PartTree::Dict(dict))?;
/// assert_eq!(file.storages, [Stored::Described(0)]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`encode`](crate::encode).
pub fn encode_tree(tree: &PartTree) -> Result<EncodedTree> {
    let mut trees = Trees {
        encoder: Encoder::new(),
        known: BTreeMap::new(),
        described: BTreeMap::new(),
        objects: None,
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
    /// The tensors in each storage of the caller's, with their memo numbers, if one of them is there again.
    objects: Option<BTreeMap<usize, Vec<(TensorRef, u32)>>>,
}

impl Trees {
    fn survey(&mut self, tree: &PartTree) -> Result<()> {
        self.encoder.enter()?;
        match tree {
            PartTree::Leaf(Part::Value(value)) => self.encoder.survey(value)?,
            PartTree::Leaf(Part::Tensor(..)) => {}
            PartTree::Leaf(Part::Again(..)) => drop(self.objects.get_or_insert_default()),
            PartTree::Dict(d) => {
                if let Some(class) = &d.class {
                    self.encoder.survey(&Value::Opaque(class.clone()))?;
                }
                for (key, tree) in &d.pairs {
                    self.encoder.survey(key)?;
                    self.survey(tree)?;
                }
            }
            PartTree::List(v) => v.iter().try_for_each(|tree| self.survey(tree))?,
        }
        self.encoder.leave();
        Ok(())
    }

    fn tree(&mut self, tree: &PartTree) -> Result<()> {
        self.encoder.enter()?;
        match tree {
            PartTree::Leaf(Part::Value(value)) => self.encoder.value(value)?,
            PartTree::Leaf(Part::Tensor(tensor, storage)) => self.tensor(tensor, *storage)?,
            PartTree::Leaf(Part::Again(tensor, storage)) => {
                match self.known_object(tensor, *storage) {
                    Some(number) => self.encoder.e.get(number),
                    None => self.tensor(tensor, *storage)?,
                }
            }
            PartTree::Dict(PartDict { class: None, pairs }) => self.dict(pairs)?,
            PartTree::Dict(PartDict {
                class: Some(class),
                pairs,
            }) => self.object(class, pairs)?,
            PartTree::List(v) => self.list(v)?,
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
        let mut own = tensor.clone();
        own.storage.key = record.to_string().into();
        let number = own.emit_object(&mut self.encoder.e)?;
        if let Some(objects) = &mut self.objects {
            let all = objects.entry(storage).or_default();
            all.push((tensor.clone(), number));
        }
        Ok(())
    }

    /// The memo number of the last tensor of this description in this storage.
    fn known_object(&self, tensor: &TensorRef, storage: usize) -> Option<u32> {
        let mut all = self.objects.as_ref()?.get(&storage)?.iter().rev();
        all.find(|(t, _)| t == tensor).map(|(_, number)| *number)
    }

    fn list(&mut self, items: &[PartTree]) -> Result<()> {
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

    /// An object of a class of dicts: its items, then its state, as CPython writes them.
    fn object(&mut self, class: &Opaque, pairs: &[(Value, PartTree)]) -> Result<()> {
        self.encoder.made(class)?;
        for batch in pairs.chunks(BATCH) {
            if let [pair] = batch {
                self.pair(pair)?;
                self.encoder.e.op(Op::SetItem);
            } else {
                self.set_items(batch)?;
            }
        }
        self.encoder.state(class)
    }

    fn dict(&mut self, pairs: &[(Value, PartTree)]) -> Result<()> {
        self.encoder.e.op(Op::EmptyDict);
        self.encoder.e.memoize();
        if let [pair] = pairs {
            self.pair(pair)?;
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

    fn set_items(&mut self, pairs: &[(Value, PartTree)]) -> Result<()> {
        self.encoder.e.op(Op::Mark);
        pairs.iter().try_for_each(|pair| self.pair(pair))?;
        self.encoder.e.op(Op::SetItems);
        Ok(())
    }

    fn pair(&mut self, (key, value): &(Value, PartTree)) -> Result<()> {
        self.encoder.value(key)?;
        self.tree(value)
    }
}
