//! How Megatron Core spreads the items of a rank over files.

use reshard_plan::WriteItem;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Megatron Core's settings `thread_count` and `separation_hint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buckets {
    /// The number of buckets, of each kind.
    pub(crate) bins: u32,
    /// Keys that begin with this lie in files of their own, whose names begin with it, too.
    pub(crate) hint: Option<String>,
}

impl Buckets {
    /// The buckets that are not empty, in the order of files, each with what its name begins with.
    pub(crate) fn split<'p>(&self, items: &'p [WriteItem]) -> Vec<(&str, Vec<&'p WriteItem>)> {
        self.separate(bins(items.iter().collect(), self.bins))
    }

    /// Separates the items of files by the hint: first all files without it.
    pub(crate) fn separate<'p>(
        &self,
        files: Vec<Vec<&'p WriteItem>>,
    ) -> Vec<(&str, Vec<&'p WriteItem>)> {
        let Some(hint) = &self.hint else {
            return files.into_iter().map(|file| ("", file)).collect();
        };
        let (mut plain, mut hinted) = (Vec::new(), Vec::new());
        for file in files {
            let (with, without): (Vec<_>, Vec<_>) = file
                .into_iter()
                .partition(|item| item.key.starts_with(&**hint));
            plain.push(("", without));
            hinted.push((hint.as_str(), with));
        }
        plain.append(&mut hinted);
        plain
    }
}

/// Objects by turns; then tensors, the largest first, each into the bin with the fewest bytes. One bin keeps the order.
fn bins(items: Vec<&WriteItem>, bins: u32) -> Vec<Vec<&WriteItem>> {
    if bins <= 1 {
        return vec![items];
    }
    let mut out: Vec<Vec<&WriteItem>> = (0..bins).map(|_| Vec::new()).collect();
    let (mut tensors, objects): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|item| item.tensor().is_some());
    let turns = (0..bins as usize).cycle();
    for (object, bin) in objects.into_iter().zip(turns) {
        out[bin].push(object);
    }
    tensors.sort_by_key(|item| Reverse(item.cost()));
    let mut loads: BinaryHeap<Reverse<(u64, usize)>> =
        (0..bins as usize).map(|bin| Reverse((0, bin))).collect();
    for tensor in tensors {
        let Some(Reverse((load, bin))) = loads.pop() else {
            break;
        };
        out[bin].push(tensor);
        loads.push(Reverse((load.saturating_add(tensor.cost()), bin)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::{
        DType, Region,
        testkit::{fixture_text, ours},
    };
    use reshard_plan::{TensorProperties, TensorWrite, WriteKind};
    use serde_json::{Value, json};

    fn item(v: &Value) -> WriteItem {
        let kind = match v[1].as_u64() {
            None => WriteKind::Object { bytes_hint: 0 },
            Some(bytes) => WriteKind::Tensor(TensorWrite {
                dtype: DType::UInt8,
                global_shape: [bytes].into(),
                region: Region::whole(&[bytes]),
                properties: TensorProperties::default(),
                original_shape: None,
            }),
        };
        WriteItem {
            key: v[0].as_str().unwrap().into(),
            source: 0,
            kind,
        }
    }

    #[test]
    fn buckets_are_those_of_megatron_core() {
        let Some(file) = fixture_text("megatron/vectors_012.json") else {
            return;
        };
        let file: Value = serde_json::from_str(&file).unwrap();
        let all = file["vectors"].as_array().unwrap().iter();
        let mut seen = 0;
        for v in all.filter(|v| v["fn"] == "split_buckets") {
            let of = &v["in"];
            let items: Vec<WriteItem> = of["items"].as_array().unwrap().iter().map(item).collect();
            let buckets = Buckets {
                bins: of["bins"].as_u64().unwrap() as u32,
                hint: of["separation_hint"].as_str().map(Into::into),
            };
            let mut got = json!({});
            for (prefix, items) in buckets.split(&items) {
                let keys: Vec<&str> = items.iter().map(|i| &*i.key).collect();
                match got.get_mut(prefix) {
                    Some(files) => files.as_array_mut().unwrap().push(json!(keys)),
                    None => got[prefix] = json!([keys]),
                }
            }
            assert_eq!(got, v["out"], "{of}");
            seen += 1;
        }
        assert!(seen == 25 || !ours(), "{seen} vectors");
    }
}
