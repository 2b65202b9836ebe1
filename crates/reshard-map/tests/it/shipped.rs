//! The maps between Megatron Core and Hugging Face's transformers, on tiny models that a NumPy script has laid out.

use crate::memory::Memory;
use reshard_map::{Map, MapFile, Source};
use reshard_model::DType;
use serde_json::Value;
use std::collections::BTreeMap;

struct Fixture {
    map: Map,
    megatron: Memory,
    hf: Memory,
}

fn fixture(name: &str, change: &[(&str, u64)]) -> Fixture {
    let path = format!("{}/tests/fixtures/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let numbers = |v: &Value| -> Vec<u64> {
        v.as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_u64().unwrap())
            .collect()
    };
    let side = |side: &str| {
        let mut out = Memory::default();
        for (key, tensor) in json[side].as_object().unwrap() {
            let values = numbers(&tensor["values"]);
            let bytes = values
                .iter()
                .flat_map(|n| (*n as f32).to_le_bytes())
                .collect();
            out.put(
                Source::new(key, DType::Float32, numbers(&tensor["shape"])),
                bytes,
            );
        }
        out
    };
    let given = json["parameters"].as_object().unwrap().iter();
    let mut given: BTreeMap<String, u64> = given
        .map(|(name, n)| (name.clone(), n.as_u64().unwrap()))
        .collect();
    given.extend(change.iter().map(|(name, n)| ((*name).to_owned(), *n)));
    Fixture {
        map: MapFile::named(name).unwrap().bind(&given).unwrap(),
        megatron: side("megatron"),
        hf: side("hf"),
    }
}

#[test]
fn megatrons_layout_becomes_that_of_transformers_byte_for_byte() {
    for name in MapFile::names() {
        let Fixture { map, megatron, hf } = fixture(name, &[]);
        let got = megatron.mapped(&megatron.apply(&map).unwrap());
        assert_eq!(
            got.tensors.keys().collect::<Vec<_>>(),
            hf.tensors.keys().collect::<Vec<_>>(),
            "{name}"
        );
        assert!(got.tensors == hf.tensors, "{name}");
    }
}

#[test]
fn the_layout_of_transformers_becomes_megatrons_byte_for_byte() {
    for name in MapFile::names() {
        let Fixture { map, megatron, hf } = fixture(name, &[]);
        let got = hf.mapped(&hf.apply(&map.inverse().unwrap()).unwrap());
        assert_eq!(
            got.tensors.keys().collect::<Vec<_>>(),
            megatron.tensors.keys().collect::<Vec<_>>(),
            "{name}"
        );
        assert!(got.tensors == megatron.tensors, "{name}");
    }
}

#[test]
fn layers_may_have_tensors_of_their_own() {
    for name in MapFile::names() {
        let Fixture { map, hf, .. } = fixture(name, &[("stacked", 0)]);
        let by_layer = hf.mapped(&hf.apply(&map.inverse().unwrap()).unwrap());
        assert!(
            by_layer
                .tensors
                .contains_key("decoder.layers.1.self_attention.linear_qkv.weight"),
            "{name}"
        );
        let back = by_layer.mapped(&by_layer.apply(&map).unwrap());
        assert!(back.tensors == hf.tensors, "{name}");
    }
}

#[test]
fn names_of_local_layers_and_halves_of_gated_units_are_understood() {
    let Fixture {
        map,
        mut megatron,
        hf,
    } = fixture("hf-llama", &[]);
    let rename = |memory: &mut Memory, from: &str, to: &str| {
        let (source, bytes) = memory.tensors.remove(from).unwrap();
        memory.put(Source::new(to, source.dtype, source.shape), bytes);
    };
    rename(
        &mut megatron,
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight",
        "decoder.layers.input_layernorm.weight",
    );
    rename(
        &mut megatron,
        "decoder.layers.mlp.linear_fc1.layer_norm_weight",
        "decoder.layers.pre_mlp_layernorm.weight",
    );
    let halves = crate::memory::map(
        "[[rule]]\nsplit = 'decoder.layers.mlp.linear_fc1.weight'\naxis = 1
         to = ['decoder.layers.mlp.linear_fc1.weight_w', 'decoder.layers.mlp.linear_fc1.weight_v']",
    );
    let megatron = megatron.mapped(&megatron.apply(&halves).unwrap());
    let got = megatron.mapped(&megatron.apply(&map).unwrap());
    assert!(got.tensors == hf.tensors);
}

#[test]
fn what_is_no_model_is_left_out() {
    let Fixture {
        map,
        mut megatron,
        hf,
    } = fixture("hf-llama", &[]);
    let (source, bytes) = megatron.tensors["decoder.final_layernorm.weight"].clone();
    megatron.put(
        Source::new(
            "optimizer.state.exp_avg.decoder.final_layernorm.weight",
            source.dtype,
            source.shape,
        ),
        bytes,
    );
    let objects = [
        "rng_state/shard_0_1",
        "decoder.layers.mlp.linear_fc1._extra_state/shard_0_2",
    ];
    let mapping = map
        .apply(megatron.listing(), objects, reshard_map::Limits::default())
        .unwrap();
    assert_eq!(mapping.objects().len(), 0);
    assert!(megatron.mapped(&mapping).tensors == hf.tensors);
}

#[test]
fn groups_count_only_if_heads_share_keys() {
    let file = MapFile::named("hf-llama").unwrap();
    // As `args` of Megatron-LM has them without grouped queries.
    let given = |grouped| -> BTreeMap<String, u64> {
        [
            ("layers", 1),
            ("hidden", 8),
            ("heads", 4),
            ("vocab", 2),
            ("query_groups", 1),
            ("grouped", grouped),
        ]
        .map(|(name, n)| (name.to_owned(), n))
        .into()
    };
    let rows = |grouped, rows| {
        let map = file.bind(&given(grouped)).unwrap();
        let qkv = [Source::new(
            "decoder.layers.0.self_attention.linear_qkv.weight",
            DType::Float32,
            [rows, 8],
        )];
        map.apply(qkv, [], reshard_map::Limits::default())
            .unwrap_err()
            .to_string()
    };
    // Both get as far as the next rule, whose tensors are not there.
    for error in [rows(0, 24), rows(1, 12)] {
        assert!(
            error.contains("(split)") && error.contains("matches none"),
            "{error}"
        );
    }
    assert!(rows(1, 24).contains("(deinterleave)"));
}

#[test]
fn an_unknown_name_lists_those_that_are_known() {
    let error = MapFile::named("llama").unwrap_err().to_string();
    assert!(
        error.contains("hf-gpt-neox, hf-llama, hf-mixtral"),
        "{error}"
    );
}
