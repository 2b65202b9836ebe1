//! Objects of a plan, decoded into their leaves.

use crate::{LoadCx, ReadCx, ReadObject, Result, StorageReader, StrategyError, decode_object};
use reshard_model::{FlatStateDict, Payload, Sharded, Value};
use reshard_plan::{LoadPlan, ObjectId, ReadItem, Stored};
use std::collections::BTreeMap;

/// Reads each object of the plan once, and puts the decoded values into their leaves. Objects that came through an exchange
/// are in `there` and are not read.
pub(super) async fn objects(
    template: &mut FlatStateDict,
    plan: &LoadPlan,
    mut there: BTreeMap<ObjectId, Payload>,
    from: &dyn StorageReader,
    how: &ReadCx<'_>,
    cx: &LoadCx<'_>,
) -> Result<()> {
    let mut leaves: BTreeMap<_, Vec<&ReadItem>> = BTreeMap::new();
    for item in plan.all_items() {
        if let Stored::Object(id) = item.stored {
            leaves.entry(id).or_default().push(item);
        }
    }
    let missing = leaves.keys().filter(|id| !there.contains_key(id));
    let reads: Vec<ReadObject> = missing.map(|&object| ReadObject { object }).collect();
    let mut read = from.read_objects(&reads, how).await?.into_iter();
    for (id, items) in leaves {
        let Some(payload) = there.remove(&id).or_else(|| read.next()) else {
            break;
        };
        put(template, &items, &payload, from, cx)?;
    }
    Ok(())
}

/// Puts one object into all leaves that ask for it.
fn put(
    template: &mut FlatStateDict,
    items: &[&ReadItem],
    payload: &Payload,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<()> {
    let codec = from.codec();
    // A stored list is decoded and split only when the first cell asks for it.
    let mut parts: Option<Vec<Value>> = None;
    for (n, item) in items.iter().enumerate() {
        let key = &item.piece.key;
        let Some((_, Sharded::Object(leaf))) = template.get_index_mut(item.dest as usize) else {
            let what = format!("{key} is stored as an object, not as a tensor");
            return Err(StrategyError::Invalid(what));
        };
        let payload = if leaf.is_item() || !from.object_lists() {
            payload.clone()
        } else {
            let list = match &mut parts {
                Some(list) => list,
                none => none.insert(elements(
                    decode_object(&*codec, key, payload.clone())?,
                    items.len(),
                    item,
                )?),
            };
            Payload::Value(list.get(n).cloned().unwrap_or(Value::None))
        };
        let payload = cx.planner.load_object(item, payload)?;
        leaf.data = Payload::Value(decode_object(&*codec, key, payload)?);
    }
    Ok(())
}

/// The values of a cell. Its payload must be a list with one element for each leaf that one rank has of this cell.
fn elements(value: Value, leaves: usize, item: &ReadItem) -> Result<Vec<Value>> {
    match value {
        Value::List(v) if v.len() == leaves => Ok(v),
        Value::List(v) => {
            let (key, n) = (&item.piece.key, v.len());
            Err(StrategyError::Invalid(format!(
                "object {key} is stored as {n} values, but {leaves} leaves of the template ask for it"
            )))
        }
        _ => Err(StrategyError::corrupt(
            &item.piece.key,
            None,
            "a cell of an object array must be stored as a list, but is not",
        )),
    }
}
