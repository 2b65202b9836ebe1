//! Objects and common state that the inverse of a map adds for Megatron Core.

use crate::memory::{Memory, map};
use proptest::prelude::*;
use reshard_map::{AddedCommon, Limits, Map, MapError, MapFile, Mapping, Source};
use reshard_model::{DType, Value};
use std::collections::BTreeMap;

/// The shipped map with these parameters.
fn shipped(name: &str, set: &[(&str, u64)]) -> Map {
    let set = set.iter().map(|(name, n)| ((*name).to_owned(), *n));
    MapFile::named(name).unwrap().bind(&set.collect()).unwrap()
}

/// A layer of a Llama with two groups of heads, and the inverse of the map applied to it.
fn llama(set: &[(&str, u64)], more: &[(&str, &[u64])]) -> Mapping {
    let of_layer = [
        ("self_attn.q_proj.weight", &[4, 4][..]),
        ("self_attn.k_proj.weight", &[2, 4]),
        ("self_attn.v_proj.weight", &[2, 4]),
        ("self_attn.o_proj.weight", &[4, 4]),
        ("mlp.gate_proj.weight", &[6, 4]),
        ("mlp.up_proj.weight", &[6, 4]),
        ("mlp.down_proj.weight", &[4, 6]),
        ("input_layernorm.weight", &[4]),
        ("post_attention_layernorm.weight", &[4]),
    ];
    let of_layer = of_layer.map(|(key, shape)| (format!("model.layers.0.{key}"), shape));
    let rest = [
        ("model.norm.weight", &[4][..]),
        ("model.embed_tokens.weight", &[7, 4]),
    ];
    let all = of_layer.iter().map(|(key, shape)| (&**key, *shape));
    let all: Vec<_> = all.chain(rest).chain(more.iter().copied()).collect();
    let given = [
        ("layers", 1),
        ("hidden", 4),
        ("heads", 4),
        ("query_groups", 2),
        ("vocab", 7),
        ("padded_vocab", 8),
    ];
    let map = shipped("hf-llama", &[&given, set].concat());
    Memory::numbered(&all)
        .apply(&map.inverse().unwrap())
        .unwrap()
}

fn objects(mapping: &Mapping) -> Vec<&str> {
    mapping.additions().objects().collect()
}

/// The values by their paths; those that are not known are `None`.
fn values(common: &AddedCommon) -> BTreeMap<&str, Option<Value>> {
    let value = |path: &str| match path.strip_prefix("args.") {
        Some(name) => {
            let args = common.values.iter().find(|(name, _)| **name == *"args");
            args.and_then(|(_, args)| args.get(name)).cloned()
        }
        None => {
            let found = common.values.iter().find(|(name, _)| **name == *path);
            found.map(|(_, value)| value.clone())
        }
    };
    let entries = common.entries.iter();
    let entries =
        entries.map(|(path, unknown)| (&**path, unknown.is_none().then(|| value(path).unwrap())));
    entries.collect()
}

#[test]
fn layers_have_the_states_that_megatron_core_asks_for() {
    let cells = |names: &[&str]| -> Vec<String> {
        let key = |name: &&str| format!("decoder.layers.{name}._extra_state/shard_0_1");
        names.iter().map(key).collect()
    };
    let linear = [
        "self_attention.linear_qkv",
        "self_attention.linear_proj",
        "mlp.linear_fc1",
        "mlp.linear_fc2",
    ];
    let core = ["self_attention.core_attention"];
    let norms = ["self_attention.q_layernorm", "self_attention.k_layernorm"];
    let last = ["decoder.final_layernorm._extra_state/shard_0_1".to_owned()];
    assert_eq!(objects(&llama(&[("local_layers", 1)], &[])), cells(&linear));
    let all = [&linear[..], &core].concat();
    assert_eq!(
        objects(&llama(&[], &[])),
        [&cells(&all)[..], &last].concat()
    );
    // As in Qwen3.
    let qwen = [
        ("model.layers.0.self_attn.q_norm.weight", &[1][..]),
        ("model.layers.0.self_attn.k_norm.weight", &[1]),
    ];
    let all = [&linear[..], &core, &norms].concat();
    assert_eq!(
        objects(&llama(&[], &qwen)),
        [&cells(&all)[..], &last].concat()
    );
    // Tensors of each layer have states of each layer.
    let each = all.iter().map(|name| format!("0.{name}"));
    let each: Vec<String> = each.collect();
    let each: Vec<&str> = each.iter().map(|name| &**name).collect();
    assert_eq!(
        objects(&llama(&[("stacked", 0)], &qwen)),
        [&cells(&each)[..], &last].concat()
    );
}

#[test]
fn cells_of_experts_have_an_axis_of_layers_and_one_of_experts() {
    let text = include_str!("../fixtures/hf-mixtral.json");
    let fixture: serde_json::Value = serde_json::from_str(text).unwrap();
    let set = fixture["parameters"].as_object().unwrap().iter();
    let set: Vec<(&str, u64)> = set.map(|(n, v)| (&**n, v.as_u64().unwrap())).collect();
    let (layers, experts) = (number(&set, "layers"), number(&set, "experts"));
    let map = shipped("hf-mixtral", &set).inverse().unwrap();
    let hf = fixture["hf"].as_object().unwrap().iter().map(|(key, t)| {
        let shape = t["shape"].as_array().unwrap().iter();
        let shape: Vec<u64> = shape.map(|n| n.as_u64().unwrap()).collect();
        Source::new(key, DType::Float32, shape)
    });
    let mapping = map.apply(hf, [], Limits::default()).unwrap();
    let of_experts: Vec<&str> = objects(&mapping)
        .into_iter()
        .filter(|key| key.contains("experts.experts.linear_fc2"))
        .collect();
    let mut want = Vec::new();
    for (layer, expert) in (0..layers).flat_map(|l| (0..experts).map(move |e| (l, e))) {
        let cell = format!("shard_{layer}.{expert}_{layers}.{experts}");
        want.push(format!(
            "decoder.layers.mlp.experts.experts.linear_fc2._extra_state/{cell}"
        ));
    }
    assert_eq!(of_experts, want);
    assert!(objects(&mapping).contains(&&*format!(
        "decoder.layers.pre_mlp_layernorm._extra_state/shard_0_{layers}"
    )));
}

fn number(set: &[(&str, u64)], name: &str) -> u64 {
    set.iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn common_state_has_what_parameters_shapes_and_the_configuration_tell() {
    let config = |path: &str| match path {
        "rms_norm_eps" => Some(Value::Float(1e-6)),
        "hidden_act" => Some("silu".into()),
        "rope_theta" => Some(Value::Float(5e5)),
        "rope_scaling.rope_type" => Some("llama3".into()),
        "rope_scaling.factor" => Some(Value::Float(32.0)),
        _ => None,
    };
    let tied = llama(&[], &[]);
    let common = tied.additions().common(config);
    let got = values(&common);
    let want: BTreeMap<&str, Option<Value>> = [
        ("checkpoint_version", Some(Value::Float(3.0))),
        ("iteration", Some(0.into())),
        ("args.num_layers", Some(1.into())),
        ("args.hidden_size", Some(4.into())),
        ("args.ffn_hidden_size", Some(6.into())),
        ("args.num_attention_heads", Some(4.into())),
        ("args.group_query_attention", Some(true.into())),
        ("args.num_query_groups", Some(2.into())),
        ("args.kv_channels", Some(1.into())),
        ("args.vocab_size", Some(7.into())),
        ("args.padded_vocab_size", Some(8.into())),
        ("args.max_position_embeddings", None),
        ("args.position_embedding_type", Some("rope".into())),
        ("args.rotary_base", Some(Value::Float(5e5))),
        ("args.use_rope_scaling", Some(true.into())),
        ("args.rope_scaling_factor", Some(Value::Float(32.0))),
        ("args.normalization", Some("RMSNorm".into())),
        ("args.norm_epsilon", Some(Value::Float(1e-6))),
        ("args.swiglu", Some(true.into())),
        ("args.add_bias_linear", Some(false.into())),
        ("args.add_qkv_bias", Some(false.into())),
        ("args.qk_layernorm", Some(false.into())),
        (
            "args.untie_embeddings_and_output_weights",
            Some(false.into()),
        ),
        ("args.tensor_model_parallel_size", Some(1.into())),
        ("args.pipeline_model_parallel_size", Some(1.into())),
        ("args.hidden_dropout", Some(Value::Float(0.0))),
        ("args.no_save_optim", Some(true.into())),
        ("args.no_save_rng", Some(true.into())),
    ]
    .into();
    assert_eq!(got, want);
    let (_, args) = common.values.last().unwrap();
    assert_eq!(args.type_name(), "argparse.Namespace");

    // Values that the map doesn't know are not guessed, and those that may be missing are not missed.
    let other = |path: &str| match path {
        "hidden_act" => Some("gelu_pytorch_tanh".into()),
        "rope_parameters.rope_type" => Some("yarn".into()),
        _ => None,
    };
    let untied = llama(&[], &[("lm_head.weight", &[7, 4])]);
    let common = untied.additions().common(other);
    let got = values(&common);
    assert_eq!(
        got["args.untie_embeddings_and_output_weights"],
        Some(true.into())
    );
    assert_eq!(
        (&got["args.swiglu"], &got["args.use_rope_scaling"]),
        (&None, &None)
    );
    assert!(!got.contains_key("args.rope_scaling_factor"));
    let why = |name: &str| {
        let found = common.entries.iter().find(|(path, _)| **path == *name);
        found.unwrap().1.clone().unwrap()
    };
    assert_eq!(
        why("args.swiglu"),
        "the map does not know the `hidden_act` of config.json"
    );
    assert_eq!(
        why("args.rotary_base"),
        "config.json has no `rope_parameters.rope_theta` or `rope_theta`"
    );
}

#[test]
fn only_the_inverse_of_a_map_adds_anything() {
    let text = "[common]\na = 1\n[args]\nb = 'x'\n[[object]]\nkey = 'o'\ncells = [2]\n[[rule]]\nrename = 'w'\nto = 'v'";
    let forward = map(text);
    let memory = Memory::numbered(&[("w", &[2])]);
    let mapped = memory.apply(&forward).unwrap();
    assert!(mapped.additions().is_empty());
    let inverse = forward.inverse().unwrap();
    let back = inverse.apply_after(&mapped, Limits::default()).unwrap();
    assert_eq!(objects(&back), ["o/shard_0_2", "o/shard_1_2"]);
    let common = back.additions().common(|_| None);
    assert_eq!(
        values(&common),
        [("a", Some(1.into())), ("args.b", Some("x".into()))].into()
    );
    // What the first of two maps adds stays.
    let again = inverse.inverse().unwrap();
    assert_eq!(
        objects(&again.apply_after(&back, Limits::default()).unwrap()).len(),
        2
    );
    assert!(memory.apply(&again).unwrap().additions().is_empty());
}

#[test]
fn sections_that_make_no_sense_are_refused_by_name() {
    let refused = |section: &str| {
        let text = format!("{section}\n[[rule]]\ndrop = 'w'");
        MapFile::parse(&text).unwrap_err().to_string()
    };
    for (section, told) in [
        ("object = 1", "`object` is no list"),
        (
            "[[object]]\ncells = [1]",
            "`[[object]]` 1: `key` is missing",
        ),
        ("[[object]]\nkey = 'a'\ncells = []", "`cells` is missing"),
        ("[[object]]\nkey = 'a/b'\ncells = [1]", "has a `/`"),
        ("[[object]]\nkey = 'a.{n}'\ncells = [1]", "has a capture"),
        (
            "[[object]]\nkey = 'a'\neach = 2\ncells = [1]",
            "must have `{n}` once",
        ),
        (
            "[[object]]\nkey = 'a'\ncells = ['m']",
            "parameter `m`: it is used, but not declared",
        ),
        (
            "[[object]]\nkey = 'a'\ncells = [1]\nshape = 2",
            "`shape` has no meaning there",
        ),
        ("[common]\nargs = 1", "`args` of `[common]`: write `[args]`"),
        ("[args]\na = [1]", "`a` of `[args]`: a value is a text"),
        (
            "[args]\na = { number = 1, flag = 1 }",
            "exactly one of `number`",
        ),
        ("[args]\na = { then = 1 }", "exactly one of `number`"),
        ("[args]\na = { config = 1 }", "something that is no text"),
        (
            "[args]\na = { config = 'c', then = 1, listed = {} }",
            "or neither",
        ),
        (
            "[args]\na = { number = 'm' }",
            "parameter `m`: it is used, but not declared",
        ),
    ] {
        let error = refused(section);
        assert!(error.contains(told), "{section}: {error}");
    }
}

#[test]
fn cells_and_patterns_are_bounded() {
    let added = |section: &str, limits: Limits| {
        let map = map(&format!("{section}\n[[rule]]\nrename = 'v'\nto = 'w'"));
        let sources = [Source::new("w", DType::Float32, [2])];
        map.inverse().unwrap().apply(sources, [], limits)
    };
    let option = |section: &str, limits: Limits| match added(section, limits) {
        Err(MapError::Limit { option, .. }) => option,
        other => panic!("{section}: {:?}", other.map(|m| objects(&m).len())),
    };
    let all = Limits::default();
    let cells = |n: u64| format!("[[object]]\nkey = 'a'\ncells = [{n}, 2]");
    assert_eq!(option(&cells(1 << 40), all), "names");
    assert_eq!(option(&cells(i64::MAX as u64), all), "names");
    let each = format!(
        "[[object]]\nkey = 'a{{n}}'\neach = {}\ncells = [1]",
        1u64 << 40
    );
    assert_eq!(option(&each, all), "names");
    // Nothing is counted up to a number of arrays without cells.
    let none = format!(
        "[[object]]\nkey = 'a{{n}}'\neach = {}\ncells = [0]",
        1u64 << 40
    );
    assert!(added(&none, all).unwrap().additions().is_empty());
    let few = Limits {
        name_bytes: 300,
        ..all
    };
    assert_eq!(option(&cells(20), few), "name_bytes");
    let few = Limits {
        steps: 2_000,
        ..all
    };
    let many: String = (0..800)
        .map(|n| format!("a{n} = {{ tensor = 'x{{a*}}{{b*}}' }}\n"))
        .collect();
    assert_eq!(option(&format!("[args]\n{many}"), few), "steps");
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn no_section_panics_whatever_its_numbers(
        cells in prop::collection::vec(prop_oneof![0i64..4, Just(i64::MAX)], 0..4),
        each in prop_oneof![0i64..4, Just(i64::MAX)],
        when in 0u64..2,
        value in prop::sample::select(vec!["1", "1.5", "'x'", "true", "[1]", "{ number = 3 }", "{ flag = 0 }", "{ tensor = 'w' }", "{ width = '{a*}' }", "{ config = 'c.d' }"]),
    ) {
        let text = format!("[[object]]\nkey = 'a{{n}}'\neach = {each}\ncells = {cells:?}\nwhen = {when}\n[args]\nv = {value}\n[[rule]]\nrename = 'v'\nto = 'w'");
        let Ok(file) = MapFile::parse(&text) else { return Ok(()) };
        let map = file.bind(&BTreeMap::new()).unwrap().inverse().unwrap();
        let limits = Limits { names: 1000, ..Limits::default() };
        if let Ok(mapping) = map.apply([Source::new("w", DType::Float32, [2])], [], limits) {
            prop_assert!(mapping.additions().objects().len() <= 1000);
            drop(mapping.additions().common(|_| Some(Value::None)));
        }
    }
}
