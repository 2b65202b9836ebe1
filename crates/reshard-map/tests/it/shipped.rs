//! The maps between Megatron Core and Hugging Face's transformers, on tiny models that a NumPy script has laid out.

use crate::memory::Memory;
use reshard_map::{Map, MapError, MapFile, Source, Unmapped};
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

#[test]
fn the_norm_before_experts_has_the_name_of_either_kind_of_layers() {
    let Fixture { map, hf, .. } = fixture("hf-mixtral", &[("local_layers", 1)]);
    let megatron = hf.mapped(&hf.apply(&map.inverse().unwrap()).unwrap());
    let keys = &megatron.tensors;
    assert!(keys.contains_key("decoder.layers.mlp.linear_fc1.layer_norm_weight"));
    assert!(!keys.contains_key("decoder.layers.pre_mlp_layernorm.weight"));
    assert!(megatron.mapped(&megatron.apply(&map).unwrap()).tensors == hf.tensors);
}

/// Tensors that no rule maps, and a rule that drops others.
#[test]
fn what_a_map_does_not_know_is_refused_kept_or_dropped() {
    for name in MapFile::names() {
        let Fixture {
            map, mut megatron, ..
        } = fixture(name, &[]);
        let mut put = |key: &str, shape: &[u64]| {
            let bytes = vec![0; 4 * shape.iter().product::<u64>() as usize];
            megatron.put(Source::new(key, DType::Float32, shape), bytes);
        };
        // Rules that prepare match the first one, and an empty one has no elements.
        let unknown = [
            ("decoder.layers.self_attention.more", &[2, 4][..]),
            ("empty", &[0, 2]),
            ("mtp.weight", &[2]),
        ];
        unknown.iter().for_each(|(key, shape)| put(key, shape));
        put("optimizer.state.exp_avg.w", &[2]);
        put("chained_0.optimizer.state.exp_avg.w", &[2]);
        let keys = unknown.map(|(key, _)| key);

        let e = megatron.apply(&map).unwrap_err();
        let MapError::Unmapped {
            keys: told,
            inverse: false,
        } = &e
        else {
            panic!("{name}: {e}");
        };
        assert!(told.iter().map(|key| &**key).eq(keys), "{name}: {e}");
        assert!(keys.iter().all(|key| e.to_string().contains(key)), "{e}");

        let kept = megatron.apply(&map.clone().with_unmapped(Unmapped::Keep));
        let kept = kept.unwrap();
        assert!(kept.unmapped().iter().map(|key| &**key).eq(keys), "{name}");
        for (key, shape) in unknown {
            assert_eq!(&kept.tensor(key).unwrap().shape()[..], shape, "{name}");
        }
        let rule = |key: &str| {
            let item = kept.dropped().iter().find(|item| *item.key == *key);
            item.map(|item| (item.rule, item.verb))
        };
        assert_eq!(rule("optimizer.state.exp_avg.w"), Some((Some(1), "drop")));
        assert_eq!(kept.dropped().len(), 2, "{name}");

        let dropped = megatron.apply(&map.with_unmapped(Unmapped::Drop)).unwrap();
        assert_eq!(dropped.tensors().len() + keys.len(), kept.tensors().len());
        assert_eq!(dropped.dropped().len(), 5, "{name}");
    }
}

#[test]
fn the_wrong_side_and_another_model_are_told() {
    let sides = |name: &str| {
        let Fixture { map, megatron, hf } = fixture(name, &[]);
        let back = map.inverse().unwrap();
        [hf.apply(&map), megatron.apply(&back)]
    };
    for name in MapFile::names() {
        for e in sides(name) {
            let e = e.unwrap_err();
            assert!(
                matches!(e, MapError::NoMatch { inverse: true, .. }),
                "{name}: {e}"
            );
        }
        let mut other = Memory::default();
        other.put(Source::new("w", DType::Float32, [1]), vec![0; 4]);
        let Fixture { map, .. } = fixture(name, &[]);
        let e = other.apply(&map).unwrap_err();
        assert!(
            matches!(e, MapError::NoMatch { inverse: false, .. }),
            "{name}: {e}"
        );
    }
}

/// Qwen3 has norms of queries and keys, and Llama can have biases.
#[test]
fn biases_of_units_and_norms_of_queries_and_keys_come_and_go() {
    let Fixture { map, mut hf, .. } = fixture("hf-llama", &[("stacked", 0)]);
    let back = map.inverse().unwrap();
    let mut megatron = hf.mapped(&hf.apply(&back).unwrap());
    let pairs = [
        (
            "self_attention.q_layernorm.weight",
            "self_attn.q_norm.weight",
        ),
        (
            "self_attention.k_layernorm.weight",
            "self_attn.k_norm.weight",
        ),
    ];
    for (megatrons, transformers) in pairs {
        let source = |key: String| Source::new(&key, DType::Float32, [2]);
        megatron.put(source(format!("decoder.layers.0.{megatrons}")), vec![7; 8]);
        hf.put(source(format!("model.layers.0.{transformers}")), vec![7; 8]);
    }
    let bias = |key: &str, n: u8, extent: u64| {
        let bytes = vec![n; 4 * extent as usize];
        (Source::new(key, DType::Float32, [extent]), bytes)
    };
    let (gate, up) = (
        bias("model.layers.0.mlp.gate_proj.bias", 1, 2),
        bias("model.layers.0.mlp.up_proj.bias", 2, 2),
    );
    let both = [&gate.1[..], &up.1].concat();
    let fc1 = Source::new("decoder.layers.0.mlp.linear_fc1.bias", DType::Float32, [4]);
    megatron.put(fc1, both);
    for (source, bytes) in [gate, up] {
        hf.put(source, bytes);
    }
    let there = megatron.mapped(&megatron.apply(&map).unwrap());
    assert!(there.tensors == hf.tensors);
    let again = hf.mapped(&hf.apply(&back).unwrap());
    assert!(again.tensors == megatron.tensors);
}
