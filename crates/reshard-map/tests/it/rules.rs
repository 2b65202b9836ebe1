//! What each rule does, by hand.

use crate::memory::{Memory, map};
use reshard_map::{Limits, Source};
use reshard_model::{DType, Region};

fn mapped(shapes: &[(&str, &[u64])], rules: &str) -> Memory {
    let memory = Memory::numbered(shapes);
    let mapping = memory.apply(&map(rules)).unwrap();
    memory.mapped(&mapping)
}

fn keys(shapes: &[(&str, &[u64])], rules: &str) -> Vec<String> {
    mapped(shapes, rules).tensors.into_keys().collect()
}

#[test]
fn rename_moves_captures() {
    let rules = "[[rule]]\nrename = 'layers.{i#}.{rest*}'\nto = 'h.{i}.{rest}'";
    assert_eq!(
        keys(
            &[
                ("layers.0.a.w", &[1]),
                ("layers.10.b", &[1]),
                ("norm", &[1])
            ],
            rules
        ),
        ["h.0.a.w", "h.10.b", "norm"]
    );
}

#[test]
fn names_may_be_exchanged() {
    let rules = "[[rule]]\nrename = 'a{x*}'\nto = 'aa{x}'";
    assert_eq!(keys(&[("a", &[1]), ("aa", &[1])], rules), ["aa", "aaa"]);
}

#[test]
fn drop_and_keep_choose_keys() {
    let shapes: &[(&str, &[u64])] = &[("a.w", &[1]), ("a.b", &[1]), ("c", &[1])];
    assert_eq!(keys(shapes, "[[rule]]\ndrop = ['a.b', 'c']"), ["a.w"]);
    assert_eq!(keys(shapes, "[[rule]]\nkeep = 'a.{x}'"), ["a.b", "a.w"]);
}

#[test]
fn prefixes_come_and_go() {
    let shapes: &[(&str, &[u64])] = &[("module.w", &[1])];
    assert_eq!(
        keys(shapes, "[[rule]]\nadd_prefix = 'model.'"),
        ["model.module.w"]
    );
    assert_eq!(keys(shapes, "[[rule]]\nstrip_prefix = 'module.'"), ["w"]);
    assert_eq!(
        keys(
            &[("module.a._orig_mod.w", &[1])],
            "[[rule]]\ncanonical = true"
        ),
        ["a.w"]
    );
}

#[test]
fn a_rule_for_all_names_matches_those_that_it_changes() {
    let shapes: &[(&str, &[u64])] = &[("module.w", &[1]), ("ln", &[1])];
    let drop = "unmapped = 'drop'\n[[rule]]\ncanonical = true";
    assert_eq!(keys(shapes, drop), ["w"]);
    let prepared = "unmapped = 'drop'\n[[rule]]\ncanonical = true\nprepares = true\n\
                    [[rule]]\nrename = 'w'\nto = 'v'";
    assert_eq!(keys(shapes, prepared), ["v"]);
}

#[test]
fn stack_orders_layers_by_number() {
    let names: Vec<String> = (0..11).map(|i| format!("l.{i}.w")).collect();
    let shapes: Vec<(&str, &[u64])> = names.iter().map(|n| (&**n, &[2u64][..])).collect();
    let rule = |axis| {
        format!(
            "[[rule]]\nstack = 'l.{{i#}}.{{x}}'\nto = 'l.{{x}}'\nindex = 'i'\ncount = 11\naxis = {axis}"
        )
    };
    // `Memory::numbered` numbers them in the order given.
    let all: Vec<f32> = (0u8..22).map(f32::from).collect();
    assert_eq!(
        mapped(&shapes, &rule(0)).tensor("l.w"),
        (vec![11, 2], all.clone())
    );
    let (shape, got) = mapped(&shapes, &rule(1)).tensor("l.w");
    assert_eq!(shape, [2, 11]);
    assert_eq!(got[..3], [0., 2., 4.]);
}

#[test]
fn unstack_takes_an_axis_apart() {
    let rules = "[[rule]]\nunstack = '{x}.w'\nto = '{x}.{i}.w'\nindex = 'i'\naxis = 1";
    let got = mapped(&[("l.w", &[2, 3])], rules);
    assert_eq!(got.tensor("l.0.w"), (vec![2], vec![0., 3.]));
    assert_eq!(got.tensor("l.2.w"), (vec![2], vec![2., 5.]));
}

#[test]
fn split_and_concat_go_along_an_axis() {
    let got = mapped(
        &[("qkv", &[2, 4])],
        "[[rule]]\nsplit = 'qkv'\nto = ['q', 'k']\naxis = 1\nsizes = [3, 1]",
    );
    assert_eq!(got.tensor("q"), (vec![2, 3], vec![0., 1., 2., 4., 5., 6.]));
    assert_eq!(got.tensor("k"), (vec![2, 1], vec![3., 7.]));
    let got = mapped(
        &[("a", &[2, 1]), ("b", &[2, 1])],
        "[[rule]]\nconcat = ['b', 'a']\nto = 'ba'\naxis = 1",
    );
    assert_eq!(got.tensor("ba"), (vec![2, 2], vec![2., 0., 3., 1.]));
}

#[test]
fn interleave_brings_the_blocks_of_each_group_together() {
    // Two groups: two blocks of q, one of k, one of v.
    let rules = "[[rule]]\ninterleave = 'w'\ngroups = 2\nsizes = [2, 1, 1]";
    let (shape, got) = mapped(&[("w", &[8])], rules).tensor("w");
    assert_eq!(
        (shape, got),
        (vec![8], vec![0., 1., 4., 6., 2., 3., 5., 7.])
    );
    let rules = "[[rule]]\ndeinterleave = 'w'\ngroups = 2\nsizes = [2, 1, 1]";
    let (_, got) = mapped(&[("w", &[8])], rules).tensor("w");
    assert_eq!(got, [0., 1., 4., 5., 2., 6., 3., 7.]);
}

#[test]
fn interleaving_makes_one_piece_of_each_part() {
    let memory = [Source::new("w", DType::Float32, [3 * 4096, 8])];
    let map = map("[[rule]]\ninterleave = 'w'\ngroups = 512\nsizes = [16, 4, 4]");
    let mapping = map.apply(memory, [], Limits::default()).unwrap();
    assert_eq!(mapping.tensor("w").unwrap().pieces().len(), 3);
}

#[test]
fn transpose_permutes_axes() {
    let (shape, got) = mapped(
        &[("w", &[2, 3])],
        "[[rule]]\ntranspose = 'w'\naxes = [1, 0]",
    )
    .tensor("w");
    assert_eq!((shape, got), (vec![3, 2], vec![0., 3., 1., 4., 2., 5.]));
    // Axis 2 comes first.
    let (shape, got) = mapped(
        &[("w", &[1, 2, 3])],
        "[[rule]]\ntranspose = 'w'\naxes = [2, 0, 1]",
    )
    .tensor("w");
    assert_eq!((shape, got), (vec![3, 1, 2], vec![0., 3., 1., 4., 2., 5.]));
}

#[test]
fn pad_adds_zeros_and_trim_cuts_off() {
    let got = mapped(&[("w", &[2, 2])], "[[rule]]\npad = 'w'\naxis = 1\nto = 3").tensor("w");
    assert_eq!(got, (vec![2, 3], vec![0., 1., 0., 2., 3., 0.]));
    let got = mapped(&[("w", &[3, 2])], "[[rule]]\ntrim = 'w'\nfrom = 3\nto = 2").tensor("w");
    assert_eq!(got, (vec![2, 2], vec![0., 1., 2., 3.]));
}

#[test]
fn cast_changes_the_type() {
    let memory = Memory::numbered(&[("w", &[2])]);
    let mapping = memory
        .apply(&map("[[rule]]\ncast = 'w'\nto = 'float64'"))
        .unwrap();
    let got = memory.mapped(&mapping);
    assert_eq!(got.tensors["w"].0.dtype, DType::Float64);
    assert_eq!(got.tensors["w"].1[8..], 1f64.to_le_bytes());
}

#[test]
fn reshape_keeps_the_row_major_order() {
    for to in ["[3, 2]", "[6]", "[1, 2, 1, 3]"] {
        let rule = format!("[[rule]]\nreshape = 'w'\nto = {to}");
        assert_eq!(
            mapped(&[("w", &[2, 3])], &rule).numbers("w"),
            [0., 1., 2., 3., 4., 5.]
        );
    }
}

#[test]
fn a_region_of_a_deinterleaved_tensor_reads_only_its_rows() {
    let memory = Memory::numbered(&[("qkv", &[16 * 6, 4096])]);
    let rules = "[[rule]]\ndeinterleave = 'qkv'\ngroups = 16\nsizes = [4, 1, 1]";
    let mapping = memory.apply(&map(rules)).unwrap();
    // All of k: a row of each group, with 80 KiB between them.
    drop(memory.region(&mapping, "qkv", &Region::new([64, 0], [16, 4096])));
    let read = memory.read.get();
    assert!(read <= 16 * 16384 + 16 * (256 << 10), "{read}");
    memory.read.set(0);
    drop(memory.region(&mapping, "qkv", &Region::new([64, 0], [1, 4096])));
    assert_eq!(memory.read.get(), 16384);
}

#[test]
fn objects_are_renamed_and_dropped() {
    let rules = "[[rule]]\ndrop = '{x*}._extra_state'\n[[rule]]\nadd_prefix = 'm.'";
    let mapping = map(rules)
        .apply([], ["rng", "a._extra_state"], Limits::default())
        .unwrap();
    assert_eq!(mapping.objects().collect::<Vec<_>>(), [("m.rng", "rng")]);
}
