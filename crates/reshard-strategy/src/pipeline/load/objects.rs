//! Objects of a plan, decoded into their leaves.

use crate::{LoadCx, ReadObject, Result, StorageReader, StrategyError, decode_object};
use reshard_model::{FlatStateDict, Payload, Sharded, Value};
use reshard_plan::{LoadPlan, ReadItem, Stored};
use std::collections::BTreeMap;

/// Reads the objects of the plan, each once, and puts the decoded values into their leaves.
pub(super) async fn objects(
    template: &mut FlatStateDict,
    plan: &LoadPlan,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<()> {
    let mut leaves: BTreeMap<_, Vec<&ReadItem>> = BTreeMap::new();
    for item in &plan.items {
        if let Stored::Object(id) = item.stored {
            leaves.entry(id).or_default().push(item);
        }
    }
    let reads: Vec<ReadObject> = leaves.keys().map(|&object| ReadObject { object }).collect();
    let payloads = from.read_objects(&reads, cx.verify).await?;
    let codec = from.codec();
    for (items, payload) in leaves.into_values().zip(payloads) {
        let mut parts = None;
        for (n, item) in items.iter().enumerate() {
            let cell = matches!(template.get_index(item.dest as usize), Some((_, Sharded::Object(o))) if !o.is_item());
            let payload = if cell && from.object_lists() {
                if parts.is_none() {
                    parts = Some(elements(
                        decode_object(&*codec, &item.piece.key, payload.clone())?,
                        items.len(),
                        item,
                    )?);
                }
                Payload::Value(
                    parts.as_ref().and_then(|p: &Vec<Value>| p.get(n)).cloned().unwrap_or(Value::None),
                )
            } else {
                payload.clone()
            };
            let value = decode_object(&*codec, &item.piece.key, cx.planner.load_object(item, payload)?)?;
            if let Some((_, leaf)) = template.get_index_mut(item.dest as usize) {
                match leaf {
                    Sharded::Object(o) => o.data = Payload::Value(value),
                    Sharded::Tensor(t) => {
                        let what = format!("{} is stored as an object, not as a tensor", t.key);
                        return Err(StrategyError::Invalid(what));
                    }
                }
            }
        }
    }
    Ok(())
}

/// A cell's payload is a list with an element for each leaf of it on one rank.
fn elements(value: Value, leaves: usize, item: &ReadItem) -> Result<Vec<Value>> {
    match value {
        Value::List(v) if v.len() == leaves => Ok(v),
        Value::List(v) => {
            let (key, n) = (&item.piece.key, v.len());
            Err(StrategyError::Invalid(format!(
                "object {key} is stored as {n} values, {leaves} leaves ask for it"
            )))
        }
        _ => Err(StrategyError::corrupt(
            &item.piece.key,
            None,
            "the cell of an object array is stored without its list",
        )),
    }
}
