//! Consolidated metadata without some of their nodes.

use super::json;
use crate::names::ZMETADATA;
use bytes::Bytes;
use reshard_strategy::Refused;
use serde_json::{Map, Value};

/// The text of a `zarr.json` or a `.zmetadata` without the nodes that are gone, by their paths in the group. `None` if it has none of them.
///
/// # Errors
/// It is no JSON object.
pub(crate) fn without_nodes(
    file: &str,
    text: &[u8],
    is_gone: impl Fn(&str) -> bool,
) -> Result<Option<Bytes>, Refused> {
    let mut fields = json::parse(file, text)?;
    let is_v2 = file == ZMETADATA;
    let holder = match is_v2 {
        true => Some(&mut fields),
        false => (fields.get_mut(super::v3::CONSOLIDATED)).and_then(Value::as_object_mut),
    };
    let nodes = holder.and_then(|of: &mut Map<_, _>| of.get_mut("metadata")?.as_object_mut());
    let Some(nodes) = nodes else {
        return Ok(None);
    };
    let before = nodes.len();
    nodes.retain(|name, _| {
        // In v2 a node has a file for what describes it, and another one for attributes.
        let path = match (is_v2, name.rsplit_once('/')) {
            (false, _) => name.as_str(),
            (true, Some((path, _))) => path,
            (true, None) => "",
        };
        !is_gone(path)
    });
    if nodes.len() == before {
        return Ok(None);
    }
    let text = serde_json::to_vec(&fields);
    let text = text.map_err(|e| Refused::damaged(format!("{file} can't be written again: {e}")))?;
    Ok(Some(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn nodes_go_from_consolidated_metadata_and_all_else_stays() {
        let node = json!({"zarr_format": 3, "node_type": "array", "fill_value": 0.1});
        let of = |nodes: Value| json!({"zarr_format": 3, "attributes": {"of": "them"}, "consolidated_metadata": {"kind": "inline", "metadata": nodes}});
        let text = |value: Value| Some(Bytes::from(value.to_string()));
        let gone = |path: &str| path == "a" || path.starts_with("g/");
        let found = without_nodes(
            "zarr.json",
            of(json!({"a": node, "g/b": node, "ab": node}))
                .to_string()
                .as_bytes(),
            gone,
        );
        assert_eq!(found.unwrap(), text(of(json!({"ab": node}))));
        let v2 = json!({"metadata": {".zgroup": 1, "a/.zarray": 2, "a/.zattrs": 3, "b/.zarray": 4}, "zarr_consolidated_format": 1});
        let found = without_nodes(".zmetadata", v2.to_string().as_bytes(), gone);
        let left =
            json!({"metadata": {".zgroup": 1, "b/.zarray": 4}, "zarr_consolidated_format": 1});
        assert_eq!(found.unwrap(), text(left));
        // Nothing is written again that names none of them, or has no consolidated metadata.
        for text in [
            of(json!({"b": node})),
            json!({"zarr_format": 3}),
            json!({"metadata": 1}),
        ] {
            for file in ["zarr.json", ".zmetadata"] {
                assert_eq!(
                    without_nodes(file, text.to_string().as_bytes(), gone).unwrap(),
                    None
                );
            }
        }
        assert!(without_nodes(".zmetadata", b"NaN", gone).is_err());
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn no_text_makes_it_panic(text in prop::collection::vec(any::<u8>(), 0..100)) {
            for file in ["zarr.json", ".zmetadata"] {
                drop(without_nodes(file, &text, |path| path.len() % 2 == 0));
            }
        }
    }
}
