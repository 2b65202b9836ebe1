//! Finds the data of planned items.

use crate::{
    Blocks, Elements, Result, StorageWriter, StrategyError, ahead::running_ahead,
    elements::check_planned, encode_object, other_kind,
};
use reshard_model::{FlatStateDict, ObjectCodec, Payload, Sharded, Value};
use reshard_plan::{SavePlanner, WriteData, WriteItem, WriteKind};
use std::{collections::BTreeMap, sync::Arc};

/// The state of this rank, in which the data of planned items are found.
pub(super) struct Source {
    pub(super) writer: Arc<dyn StorageWriter>,
    planner: Arc<dyn SavePlanner>,
    state: FlatStateDict,
    cells: Cells,
    /// How many bytes may be copied from devices before they are written.
    copy_ahead: u64,
}

impl Source {
    pub(super) fn new(
        (writer, planner): (Arc<dyn StorageWriter>, Arc<dyn SavePlanner>),
        state: FlatStateDict,
        copy_ahead: u64,
    ) -> Self {
        Self {
            writer,
            planner,
            cells: Cells::of(&state),
            state,
            copy_ahead,
        }
    }

    /// The data of an item that this rank has. Copies from devices may run ahead.
    pub(super) fn resolve(&self, item: &WriteItem) -> Result<WriteData> {
        self.bounded(item, self.copy_ahead)
    }

    fn bounded(&self, item: &WriteItem, ahead: u64) -> Result<WriteData> {
        let leaves = (&self.state, &self.cells);
        let found = resolve(&*self.writer, &*self.planner, leaves, item)?;
        Ok(match found {
            WriteData::Tensor(data) => WriteData::Tensor(running_ahead(data, ahead)),
            object => object,
        })
    }

    /// The bytes of an item that this rank gives to another one: the elements in row-major order, or the encoded object. What is held for
    /// others is bounded by the exchange, so nothing runs ahead.
    ///
    /// # Errors
    /// The planner finds no data, or the format has no codec.
    pub(super) fn blocks(&self, item: &WriteItem) -> Result<Blocks> {
        match (&item.kind, self.bounded(item, 0)?) {
            (WriteKind::Tensor(t), WriteData::Tensor(data)) => {
                Ok(Elements::of(item, t, data)?.blocks())
            }
            (WriteKind::Object { .. }, WriteData::Object(payload)) => {
                let bytes = encode_object(&*codec(&*self.writer)?, &item.key, payload)?;
                Ok(Box::new(std::iter::once(Ok(bytes))))
            }
            _ => Err(other_kind(item)),
        }
    }
}

/// The data of an item in a state.
fn resolve(
    writer: &dyn StorageWriter,
    planner: &dyn SavePlanner,
    (state, cells): (&FlatStateDict, &Cells),
    item: &WriteItem,
) -> Result<WriteData> {
    // A format trusts the plan, so planners that contradict it are found here, for all formats.
    let one = |item: &WriteItem| -> Result<WriteData> {
        let found = planner.lookup_object(item, state)?;
        let data = planner.transform_object(item, found)?;
        check_planned(item, &data)?;
        Ok(data)
    };
    match item.kind {
        WriteKind::Object { .. } if writer.object_lists() => cells.list(item, &one),
        _ => one(item),
    }
}

/// Replaces the estimated lengths of objects by those of their encodings, one object after the other, so that a policy counts them.
pub(super) fn measure_objects(
    writer: &dyn StorageWriter,
    planner: &dyn SavePlanner,
    state: &FlatStateDict,
    items: &mut [WriteItem],
) -> Result<()> {
    let Some(codec) = writer.codec() else {
        return Ok(());
    };
    let cells = Cells::of(state);
    for item in items.iter_mut().filter(|item| item.tensor().is_none()) {
        let WriteData::Object(payload) = resolve(writer, planner, (state, &cells), item)? else {
            return Err(other_kind(item));
        };
        let bytes_hint = writer.object_bytes(&encode_object(&*codec, &item.key, payload)?);
        item.kind = WriteKind::Object { bytes_hint };
    }
    Ok(())
}

/// The lengths of all encoded objects of a state, as its leaves have them.
pub(super) fn object_lengths(
    writer: &dyn StorageWriter,
    state: &FlatStateDict,
) -> Result<Vec<u64>> {
    let Some(codec) = writer.codec() else {
        return Ok(Vec::new());
    };
    let objects = state.values().filter_map(|leaf| match leaf {
        Sharded::Object(o) => Some(o),
        Sharded::Tensor(_) => None,
    });
    objects
        .map(|o| match &o.data {
            Payload::None => Ok(0),
            data => encode_object(&*codec, &o.key, data.clone()).map(|b| writer.object_bytes(&b)),
        })
        .collect()
}

/// The codec by which objects go to other ranks.
pub(super) fn codec(writer: &dyn StorageWriter) -> Result<Arc<dyn ObjectCodec>> {
    writer.codec().ok_or_else(|| StrategyError::Unsupported {
        strategy: writer.key().to_string(),
        what: "bringing objects to another rank".into(),
    })
}

/// The leaves of each cell of an object array. If one rank has several leaves of a cell, they are stored as one list.
pub(super) struct Cells(BTreeMap<String, Vec<u32>>);

impl Cells {
    pub(super) fn of(state: &FlatStateDict) -> Self {
        let mut out: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (i, leaf) in state.values().enumerate() {
            if let Sharded::Object(o) = leaf
                && !o.is_item()
            {
                out.entry(o.unique_key()).or_default().push(i as u32);
            }
        }
        Self(out)
    }

    /// For formats that make no list of the leaves of a cell: refuses several leaves, because all but the first would be
    /// lost.
    pub(super) fn one_leaf_each(&self, state: &FlatStateDict) -> Result<()> {
        for (key, sources) in &self.0 {
            let leaves = sources.iter().filter_map(|i| state.get_index(*i as usize));
            let is_main =
                |leaf: &Sharded| matches!(leaf, Sharded::Object(o) if o.replica_id.is_main());
            let main: Vec<_> = leaves
                .filter(|(_, leaf)| is_main(leaf))
                .map(|(path, _)| path)
                .collect();
            if let [first, second, ..] = &main[..] {
                let what = format!(
                    "{first} and {second} are both {key}, but this format stores one leaf of it per rank"
                );
                return Err(StrategyError::Invalid(what));
            }
        }
        Ok(())
    }

    fn list(
        &self,
        item: &WriteItem,
        one: &dyn Fn(&WriteItem) -> Result<WriteData>,
    ) -> Result<WriteData> {
        // A planner may have renamed the item, so its source, not its key, names the cell.
        let Some(sources) = self.0.values().find(|v| v.contains(&item.source)) else {
            return one(item);
        };
        let mut values = Vec::new();
        for &source in sources {
            match one(&WriteItem {
                source,
                ..item.clone()
            })? {
                WriteData::Object(Payload::Value(v)) => values.push(v),
                // An encoded payload is carried over as it was stored, including its list.
                encoded if sources.len() == 1 => return Ok(encoded),
                _ => {
                    let what = format!(
                        "{}: several leaves of one cell can't be stored as encoded bytes; decode them first",
                        item.key
                    );
                    return Err(StrategyError::Invalid(what));
                }
            }
        }
        Ok(WriteData::Object(Payload::Value(Value::List(values))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use reshard_model::{Path, ShardedObject};

    #[test]
    fn two_leaves_of_one_cell_are_refused_where_no_list_is_made_of_them() {
        let leaf = |replica: u32| {
            let object = ShardedObject::new("rng", Value::from(1), &[2], &[1], replica).unwrap();
            Sharded::Object(object)
        };
        let check = |leaves: [Sharded; 2]| {
            let paths = ["a", "b"].map(|name| Path(vec![name.into()]));
            let state: FlatStateDict = paths.into_iter().zip(leaves).collect();
            Cells::of(&state)
                .one_leaf_each(&state)
                .map_err(|e| e.to_string())
        };
        assert_eq!(check([leaf(0), leaf(1)]), Ok(()), "one is a replica");
        let e = check([leaf(0), leaf(0)]).unwrap_err();
        assert!(e.contains("a and b are both rng/shard_1_2"), "{e}");
    }

    #[test]
    fn several_leaves_of_a_cell_are_a_list_unless_they_are_encoded() {
        let item = WriteItem {
            key: "o".into(),
            source: 3,
            kind: WriteKind::Object { bytes_hint: 1 },
        };
        let encoded = || Payload::Encoded {
            codec: "c",
            bytes: Bytes::from_static(b"e"),
        };
        let list = |sources: &[u32], encoded_from: u32| {
            let cells = Cells(BTreeMap::from([("o".to_owned(), sources.to_vec())]));
            let one = |item: &WriteItem| {
                let value = Payload::Value(Value::from(i64::from(item.source)));
                Ok(WriteData::Object(if item.source < encoded_from {
                    value
                } else {
                    encoded()
                }))
            };
            cells.list(&item, &one).map_err(|e| e.to_string())
        };
        let numbers =
            |numbers: &[i64]| Value::List(numbers.iter().map(|n| Value::from(*n)).collect());
        let is_list = |found, expected: &[i64]| matches!(found, Ok(WriteData::Object(Payload::Value(v))) if v == numbers(expected));
        assert!(is_list(list(&[3], 9), &[3]));
        assert!(is_list(list(&[1, 3], 9), &[1, 3]));
        assert!(matches!(
            list(&[3], 0),
            Ok(WriteData::Object(Payload::Encoded { .. }))
        ));
        for sources in [&[3, 5][..], &[1, 3]] {
            let e = list(sources, 3).unwrap_err();
            assert!(
                e.contains("o: several leaves of one cell can't be stored as encoded bytes"),
                "{e}"
            );
        }
        // Of another cell.
        assert!(
            matches!(list(&[1, 2], 9), Ok(WriteData::Object(Payload::Value(v))) if v == Value::from(3))
        );
    }
}
