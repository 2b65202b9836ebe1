//! The pickle of a file whose tensors are only described: their elements are written later.

use super::write::{Encode, Encoder};
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
    /// A tuple.
    Tuple(Vec<Self>),
    /// A call of a function, by its module and name, with these arguments.
    Call((&'static str, &'static str), Vec<Self>),
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
    let mut encoder = Encoder::new();
    tree.survey(&mut encoder)?;
    tree.encode(&mut encoder)?;
    let records = encoder.described.records.into_iter();
    let described: BTreeMap<usize, usize> = records.map(|(own, record)| (record, own)).collect();
    let stored = |(record, bytes)| match described.get(&record) {
        Some(number) => Stored::Described(*number),
        None => Stored::Bytes(bytes),
    };
    let storages = encoder.storages.into_iter().enumerate();
    Ok(EncodedTree {
        pickle: encoder.e.finish(),
        storages: storages.map(stored).collect(),
    })
}

impl PartTree {
    /// Finds which tensors share memory, and whether one is there again.
    fn survey(&self, to: &mut Encoder) -> Result<()> {
        to.enter()?;
        match self {
            Self::Leaf(Part::Value(value)) => to.survey(value)?,
            Self::Leaf(Part::Tensor(..)) => {}
            Self::Leaf(Part::Again(..)) => drop(to.described.objects.get_or_insert_default()),
            Self::Dict(d) => {
                if let Some(class) = &d.class {
                    to.survey(&Value::Opaque(class.clone()))?;
                }
                for (key, tree) in &d.pairs {
                    to.survey(key)?;
                    tree.survey(to)?;
                }
            }
            Self::List(v) | Self::Tuple(v) | Self::Call(_, v) => {
                v.iter().try_for_each(|tree| tree.survey(to))?
            }
        }
        to.leave();
        Ok(())
    }
}

impl Encode for PartTree {
    fn encode(&self, to: &mut Encoder) -> Result<()> {
        to.enter()?;
        match self {
            Self::Leaf(Part::Value(value)) => to.value(value)?,
            Self::Leaf(Part::Tensor(tensor, storage)) => describe(to, tensor, *storage)?,
            Self::Leaf(Part::Again(tensor, storage)) => {
                match to.described.known_object(tensor, *storage) {
                    Some(number) => to.e.get(number),
                    None => describe(to, tensor, *storage)?,
                }
            }
            Self::Dict(PartDict { class: None, pairs }) => to.dict(pairs)?,
            // An object of a class of dicts: its items, then its state, as CPython writes them.
            Self::Dict(PartDict {
                class: Some(class),
                pairs,
            }) => {
                to.made(class)?;
                to.set_items(pairs)?;
                to.state(class)?;
            }
            Self::List(v) => to.list(v)?,
            Self::Tuple(v) => to.tuple(v)?,
            Self::Call((module, name), args) => {
                to.e.global(module, name)?;
                to.tuple(args)?;
                to.e.op(Op::Reduce);
                to.e.memoize();
            }
        }
        to.leave();
        Ok(())
    }
}

/// Writes the description of a tensor in a storage of the caller's.
fn describe(to: &mut Encoder, tensor: &TensorRef, storage: usize) -> Result<()> {
    let record = match to.described.records.get(&storage) {
        Some(record) => *record,
        None => {
            let record = to.add(Bytes::new());
            to.described.records.insert(storage, record);
            record
        }
    };
    let mut own = tensor.clone();
    own.storage.key = record.to_string().into();
    let number = own.emit_object(&mut to.e)?;
    if let Some(objects) = &mut to.described.objects {
        let all = objects.entry(storage).or_default();
        all.push((tensor.clone(), number));
    }
    Ok(())
}
