//! Which files a save writes, and what other programs see in them.

use super::{as_others_read, files, header_of, numbers, open, piece, save, store, whole};
use reshard_model::{DType, Region, ShardedTensor, Tensor};
use reshard_safetensors::{INDEX, RECORD, SafetensorsConfig};
use serde_json::{Value, json};

fn names(found: &super::Files) -> Vec<&str> {
    found.keys().map(String::as_str).collect()
}

#[test]
fn a_small_model_is_one_file_without_an_index() {
    let place = store();
    let config = SafetensorsConfig::default();
    save(
        &place,
        &config,
        vec![vec![whole("b", &[3]), whole("a", &[2, 2])]],
    );
    let found = files(&place);
    assert_eq!(names(&found), ["model.safetensors", RECORD]);
    let (header, data) = header_of(&found["model.safetensors"]);
    let want = json!({
        "__metadata__": { "format": "pt" },
        "a": { "dtype": "I32", "shape": [2, 2], "data_offsets": [0, 16] },
        "b": { "dtype": "I32", "shape": [3], "data_offsets": [16, 28] },
    });
    assert_eq!(Value::from(header), want);
    assert_eq!(data.len(), 28);
}

#[test]
fn a_large_model_has_an_index_as_transformers_writes_it() {
    let place = store();
    // Room for a header and the entries of two small tensors. d alone is larger than a file may be.
    let config = SafetensorsConfig::default().with_max_shard_size(340);
    let sizes = [("a", 2), ("b", 3), ("c", 1), ("d", 90), ("e", 1)];
    save(
        &place,
        &config,
        vec![sizes.map(|(key, n)| whole(key, &[n])).into()],
    );
    let found = files(&place);
    let file = |n: u32| format!("model-{n:05}-of-00004.safetensors");
    let text = String::from_utf8(found[INDEX].clone()).unwrap();
    let want = format!(
        "{{\n  \"metadata\": {{\n    \"total_size\": 388\n  }},\n  \"weight_map\": {{\n    \"a\": \"{0}\",\n    \"b\": \"{0}\",\n    \"c\": \"{1}\",\n    \"d\": \"{2}\",\n    \"e\": \"{3}\"\n  }}\n}}\n",
        file(1),
        file(2),
        file(3),
        file(4)
    );
    assert_eq!(text, want);
    for (key, n) in sizes {
        let index: Value = serde_json::from_str(&text).unwrap();
        let file = index["weight_map"][key].as_str().unwrap();
        let all = numbers(&[n], &Region::whole(&[n]));
        assert_eq!(as_others_read(&found[file], key), (vec![n], all));
    }
}

#[test]
fn wide_elements_come_first_so_that_all_are_aligned() {
    let place = store();
    let tensor =
        |key: &str, dtype, n| ShardedTensor::full(key, Tensor::zeros(key, dtype, &[n]).unwrap());
    let leaves = vec![
        tensor("a", DType::Bool, 3),
        tensor("b", DType::BFloat16, 5),
        tensor("c", DType::Float64, 1),
        tensor("d", DType::Float32, 1),
    ];
    save(&place, &SafetensorsConfig::default(), vec![leaves]);
    let found = files(&place);
    let (header, _) = header_of(&found["model.safetensors"]);
    let at = |key: &str| header[key]["data_offsets"][0].as_u64().unwrap();
    assert_eq!(["c", "d", "b", "a"].map(at), [0, 8, 12, 22]);
}

#[test]
fn scalars_and_empty_tensors_are_kept() {
    for sharded in [false, true] {
        let place = store();
        let config = SafetensorsConfig::default().with_sharded(sharded);
        let leaves = vec![whole("scalar", &[]), whole("empty", &[0, 3])];
        save(&place, &config, vec![leaves]);
        let reader = open(&place);
        let shape = |key: &str| reader.metadata().tensor(key).unwrap().shape().to_vec();
        assert_eq!(shape("scalar"), [0u64; 0]);
        assert_eq!(shape("empty"), [0, 3]);
    }
}

#[test]
fn a_model_without_elements_is_a_file_all_the_same() {
    for sharded in [false, true] {
        for leaves in [vec![], vec![whole("empty", &[0, 3])]] {
            let (place, count) = (store(), leaves.len());
            let config = SafetensorsConfig::default().with_sharded(sharded);
            save(&place, &config, vec![leaves, vec![]]);
            let found = files(&place);
            let name = found.keys().find(|name| name.ends_with(".safetensors"));
            let (header, data) = header_of(&found[name.unwrap()]);
            assert_eq!((header.len(), data.len()), (1 + count, 0));
            assert_eq!(open(&place).metadata().tensor_count(), count);
        }
    }
}

#[test]
fn ranks_write_their_pieces_to_files_of_their_own_if_asked_to() {
    let place = store();
    let config = SafetensorsConfig::default().with_sharded(true);
    let half = |rank: u64| {
        let mut leaves = vec![piece("w", &[4, 2], Region::new([2 * rank, 0], [2, 2]))];
        if rank == 1 {
            leaves.push(whole("only", &[]));
        }
        leaves
    };
    save(&place, &config, vec![half(0), half(1)]);
    let found = files(&place);
    let file = |n: u32| format!("shard-{n:05}-model-00001-of-00001.safetensors");
    assert_eq!(names(&found), [RECORD, &file(1), &file(2)]);
    let (header, _) = header_of(&found[&file(2)]);
    let metadata = &header["__metadata__"];
    assert_eq!(metadata["DCP_VERSION"], "1.0");
    let info: Value =
        serde_json::from_str(metadata["DCP_SHARDING_INFO"].as_str().unwrap()).unwrap();
    let want = json!({ "only": { "saved_offsets": [] }, "w": { "saved_offsets": [2, 0] } });
    assert_eq!(info, want);
    assert_eq!(
        as_others_read(&found[&file(2)], "w"),
        (vec![2, 2], vec![4, 5, 6, 7])
    );
}

#[test]
fn a_type_that_the_format_lacks_is_bytes_if_asked_to() {
    let place = store();
    let config = SafetensorsConfig::default().with_types_as_bytes(true);
    let data = Tensor::zeros("z", DType::Complex128, &[3, 2]).unwrap();
    save(&place, &config, vec![vec![ShardedTensor::full("z", data)]]);
    let found = files(&place);
    let (header, _) = header_of(&found["model.safetensors"]);
    assert_eq!(
        (&header["z"]["dtype"], &header["z"]["shape"]),
        (&json!("U8"), &json!([3, 2, 16]))
    );
    let reader = open(&place);
    let z = reader.metadata().tensor("z").unwrap();
    assert_eq!(
        (z.dtype(), z.shape().to_vec()),
        (DType::Complex128, vec![3, 2])
    );
}

/// So a header that one of them writes over it is another one, even of the same tensors.
#[test]
fn a_header_ends_with_more_spaces_than_other_programs_add() {
    for n in 1..=64 {
        let place = store();
        let key = "k".repeat(n);
        save(
            &place,
            &SafetensorsConfig::default(),
            vec![vec![whole(&key, &[2])]],
        );
        let file = &files(&place)["model.safetensors"];
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        assert!(file[..8 + length].ends_with(&[b' '; 8]), "{key}");
    }
}
