//! What is refused, and what the message says.

use crate::memory::{Memory, map};
use proptest::prelude::*;
use reshard_map::{Limits, MapError, MapFile, Source};
use reshard_model::{DType, ErrorKind};
use std::collections::BTreeMap;

fn syntax(text: &str) -> String {
    MapFile::parse(text).unwrap_err().to_string()
}

fn applied(shapes: &[(&str, &[u64])], rules: &str) -> String {
    Memory::numbered(shapes)
        .apply(&map(rules))
        .unwrap_err()
        .to_string()
}

#[test]
fn a_rule_that_says_nothing_or_too_much_is_named_by_its_number() {
    let two = "[[rule]]\ndrop = 'a'\n[[rule]]\n";
    assert!(
        syntax(&format!("{two}dorp = 'a'"))
            .starts_with("rule 2: it has `dorp`, but none of the fields")
    );
    assert!(
        syntax(&format!("{two}drop = 'a'\nkeep = 'b'"))
            .contains("rule 2: `drop` and `keep` are several rules")
    );
    assert!(
        syntax(&format!("{two}drop = 'a'\naxis = 1"))
            .contains("rule 2 (drop): `axis` has no meaning there")
    );
    assert!(syntax(&format!("{two}rename = '{{a}}'\nto = '{{b}}'")).contains("has no `{b}`"));
    assert!(
        syntax(&format!("{two}transpose = 'a'\naxes = [0, 2]"))
            .contains("each number of an axis once")
    );
    assert!(syntax("rules = 1").contains("`[[rule]]`"));
    assert!(syntax("[[rule]\n").contains("the map can't be read"));
}

#[test]
fn a_rule_that_does_not_fit_names_key_and_shape() {
    let shapes: &[(&str, &[u64])] = &[("w", &[5, 2])];
    for (rule, says) in [
        (
            "split = 'w'\nto = ['a', 'b']",
            "rule 1 (split): w of shape [5, 2]: axis 0 has 5 places, which are not 2 equal parts",
        ),
        (
            "split = 'w'\nto = ['a', 'b']\nsizes = [4, 4]",
            "and not 4 + 4 as `sizes` says",
        ),
        (
            "interleave = 'w'\ngroups = 2\nsizes = [1, 1]",
            "which are not 2 groups of 1 + 1",
        ),
        ("pad = 'w'\nto = 4", "`trim` does that"),
        (
            "trim = 'w'\nto = 4\naxis = 2",
            "there is no axis 2; it has 2 axes",
        ),
        (
            "reshape = 'w'\nto = [3]",
            "shape [3] has another number of elements",
        ),
        (
            "cast = 'w'\nfrom = 'float16'\nto = 'float64'",
            "it has type float32, not float16",
        ),
        ("drop = 'x'", "the rule matches none of the keys"),
        (
            "keep = 'x'",
            "rule 1 (keep): w: the rule matches none of the keys",
        ),
        ("strip_prefix = 'm.'", "it does not begin with `m.`"),
    ] {
        let error = applied(shapes, &format!("[[rule]]\n{rule}"));
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn parts_that_are_missing_are_named() {
    let error = applied(
        &[("0.q", &[1]), ("0.k", &[1]), ("1.q", &[1])],
        "[[rule]]\nconcat = ['{l}.q', '{l}.k']\nto = '{l}.qk'",
    );
    assert!(error.contains("1.k: it is missing"), "{error}");
    let error = applied(
        &[("0.w", &[1]), ("2.w", &[1])],
        "[[rule]]\nstack = '{l#}.w'\nto = 'w'\nindex = 'l'",
    );
    assert!(
        error.contains("number 1 of the 2 that are stacked is missing"),
        "{error}"
    );
    let error = applied(
        &[("a", &[1]), ("b", &[1])],
        "[[rule]]\nrename = '{x}'\nto = 'c'",
    );
    assert!(error.contains("two of them would have this key"), "{error}");
}

#[test]
fn rules_without_an_inverse_say_why() {
    for (rule, why) in [
        ("drop = 'w'", "can't be made again"),
        ("keep = 'w'", "can't be made again"),
        ("canonical = true", "which wrappers"),
        ("rename = '{a}.{b}'\nto = '{a}'", "must have `{b}` once"),
        ("trim = 'w'\nfrom = 3\nto = 2", "padding = true"),
        ("pad = 'w'\nto = 3", "`from`"),
        (
            "cast = 'w'\nfrom = 'float32'\nto = 'bfloat16'",
            "range or precision",
        ),
        ("reshape = 'w'\nto = [2]", "`from`"),
    ] {
        let error = map(&format!("[[rule]]\nadd_prefix = 'a.'\n[[rule]]\n{rule}"))
            .inverse()
            .unwrap_err();
        assert!(
            matches!(error, MapError::NoInverse { rule: 2, .. }),
            "{error}"
        );
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn a_mapping_that_leaves_something_out_has_no_inverse() {
    let memory = Memory::numbered(&[("w", &[3])]);
    let trimmed = memory.apply(&map("[[rule]]\ntrim = 'w'\nto = 2")).unwrap();
    let error = trimmed.inverse().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("w: 1 of its 3 elements are left out"),
        "{error}"
    );
}

#[test]
fn rules_of_one_direction_are_left_out_of_the_other() {
    let text =
        "[[rule]]\ndrop = 'x'\ndirection = 'forward'\n[[rule]]\ndrop = 'y'\ndirection = 'inverse'";
    let memory = Memory::numbered(&[("x", &[1]), ("y", &[1])]);
    let keys = |m: &reshard_map::Map| {
        memory
            .mapped(&memory.apply(m).unwrap())
            .tensors
            .into_keys()
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&map(text)), ["y"]);
    assert_eq!(keys(&map(text).inverse().unwrap()), ["x"]);
}

#[test]
fn parameters_have_values_defaults_and_reasons() {
    let text = "
        [parameters.hidden]
        about = 'width of the model'
        config = 'hidden_size'
        [parameters.heads]
        [parameters.dim]
        default = 'hidden / heads'
        [[rule]]
        reshape = 'w'
        to = ['heads', 'dim']
        when = 'heads - 1'
    ";
    let file = MapFile::parse(text).unwrap();
    let given = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
        pairs.iter().map(|(n, v)| ((*n).into(), *v)).collect()
    };
    let map = file.bind(&given(&[("hidden", 6), ("heads", 2)])).unwrap();
    let memory = Memory::numbered(&[("w", &[6])]);
    assert_eq!(
        memory.apply(&map).unwrap().tensor("w").unwrap().shape()[..],
        [2, 3]
    );
    let map = file.bind(&given(&[("hidden", 6), ("heads", 1)])).unwrap();
    assert_eq!(
        memory.apply(&map).unwrap().tensor("w").unwrap().shape()[..],
        [6]
    );

    let error = |pairs: &[(&str, u64)]| file.bind(&given(pairs)).unwrap_err().to_string();
    assert!(
        error(&[("heads", 2)]).contains("`hidden` of config.json")
            || error(&[("heads", 2)]).contains("`hidden_size` of config.json")
    );
    assert!(error(&[("hidden", 5), ("heads", 2)]).contains("leaves a rest"));
    assert!(error(&[("depth", 2)]).contains("no such parameter"));
    assert!(
        syntax("[[rule]]\npad = 'w'\nto = 'vocab'")
            .contains("parameter `vocab`: it is used, but not declared")
    );
}

#[test]
fn parameters_whose_defaults_need_each_other_are_named_together() {
    let error = |parameters: &str, given: &[(&str, u64)]| {
        let text = format!("{parameters}\n[[rule]]\npad = 'w'\nto = 'a'");
        let given = given.iter().map(|(n, v)| ((*n).into(), *v)).collect();
        let bound = MapFile::parse(&text).unwrap().bind(&given);
        bound.map_or_else(|e| e.to_string(), |_| String::new())
    };
    let two = "[parameters.a]\ndefault = 'b'\n\
               [parameters.b]\nabout = 'rows'\nargs = 'rows'\ndefault = 'a * 2'";
    assert_eq!(
        error(two, &[]),
        "parameter `a`: neither `a` nor `b` (rows; `rows` of args) is known; give one of them"
    );
    assert_eq!(error(two, &[("a", 8)]), "");
    assert_eq!(error(two, &[("b", 8)]), "");

    // One that needs them, and comes first, is not the one to give.
    let led = format!("[parameters.A]\ndefault = 'b'\n{two}");
    let what = error(&led, &[]);
    assert!(what.starts_with("parameter `b`: neither `b`"), "{what}");
    let three = "[parameters.a]\ndefault = 'b'\n\
                 [parameters.b]\ndefault = 'c'\n\
                 [parameters.c]\ndefault = 'a'";
    let what = error(three, &[]);
    assert!(
        what.contains("none of `a`, `b`, `c` is known; give one of them"),
        "{what}"
    );
    let what = error("[parameters.a]\ndefault = 'a'", &[]);
    assert!(
        what.contains("and its default `a` needs it in turn; give it"),
        "{what}"
    );
}

#[test]
fn limits_hold_before_memory_is_taken() {
    let huge = [Source::new("w", DType::Float32, [1 << 40, 2])];
    let map = map("[[rule]]\nunstack = 'w'\nto = 'w.{i}'\nindex = 'i'");
    let error = map.apply(huge, [], Limits::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.to_string().contains("Limits::names"), "{error}");

    let limits = Limits {
        pieces: 100,
        ..Limits::default()
    };
    let map = crate::memory::map(
        "[[rule]]\ntranspose = 'w'\naxes = [1, 0]\n[[rule]]\nreshape = 'w'\nto = [1000, 1001]",
    );
    let error = map
        .apply([Source::new("w", DType::Float32, [1000, 1001])], [], limits)
        .unwrap_err();
    assert!(error.to_string().contains("Limits::pieces"), "{error}");
}

#[test]
fn names_that_grow_with_each_rule_are_refused_before_they_are_made() {
    // Each rule makes the name sixteen times as long: 16^12 bytes in all.
    let rule = format!("[[rule]]\nrename = '{{x*}}'\nto = '{}'\n", "{x}".repeat(16));
    let error = applied(&[("abcdef", &[1])], &rule.repeat(12));
    assert!(
        error.contains("rule 4 (rename)") && error.contains("at most 65536 are allowed"),
        "{error}"
    );
    let rule = format!("[[rule]]\nadd_prefix = '{}'\n", "x".repeat(60_000));
    let error = applied(&[("w", &[1])], &rule.repeat(2));
    assert!(
        error.contains("rule 2 (add_prefix)") && error.contains("120001 bytes"),
        "{error}"
    );
    assert!(error.len() < 1000, "{}", error.len());

    let long = "k".repeat(65_537);
    let error = applied(&[(&long, &[1])], "[[rule]]\ncanonical = true");
    assert!(
        error.contains("its name has 65537 bytes") && error.len() < 1000,
        "{error}"
    );

    let limits = Limits {
        name_bytes: 100,
        ..Limits::default()
    };
    let error = Memory::numbered(&[("a", &[1]), ("b", &[1])])
        .limited(
            "[[rule]]\nadd_prefix = '0123456789012345678901234567890123456789012345678'",
            limits,
        )
        .unwrap();
    assert_eq!(error.tensors().len(), 2);
    let error = Memory::numbered(&[("a", &[1]), ("b", &[1])])
        .limited(
            "[[rule]]\nadd_prefix = '01234567890123456789012345678901234567890123456789'",
            limits,
        )
        .unwrap_err();
    assert!(error.to_string().contains("Limits::name_bytes"), "{error}");
}

#[test]
fn rules_stop_after_so_many_steps() {
    let limits = Limits {
        steps: 60_000,
        ..Limits::default()
    };
    let shapes: &[(&str, &[u64])] = &[("aaaaaaaaaaaaaaaaaaaa", &[40])];
    for (rules, ends) in [
        // Patterns.
        (
            "[[rule]]\ndrop = '{x*}b{y*}'\noptional = true\n".repeat(600),
            true,
        ),
        (
            "[[rule]]\ndrop = '{x*}b{y*}'\noptional = true\n".repeat(1200),
            false,
        ),
        // Keys that change.
        ("[[rule]]\ncanonical = true\n".repeat(150), true),
        ("[[rule]]\ncanonical = true\n".repeat(250), false),
        ("[[rule]]\nrename = '{x*}'\nto = '{x}'\n".repeat(60), true),
        ("[[rule]]\nrename = '{x*}'\nto = '{x}'\n".repeat(100), false),
        // Pieces that are cut: 40 pieces in 40 parts.
        (cut_in_rows(1), true),
        (cut_in_rows(10), false),
    ] {
        let error = Memory::numbered(shapes).limited(&rules, limits).err();
        assert_eq!(error.is_none(), ends, "{error:?}");
        assert!(ends || error.unwrap().to_string().contains("Limits::steps"));
    }
}

/// Rules that cut a tensor of 40 elements into 40 parts and join them again, so that it is made of 40 pieces.
fn cut_in_rows(times: usize) -> String {
    let cut = "[[rule]]\nunstack = '{x}'\nto = '{i}.{x}'\nindex = 'i'\n";
    let join = "[[rule]]\nstack = '{i#}.{x}'\nto = '{x}'\nindex = 'i'\n";
    (cut.to_owned() + join).repeat(times)
}

#[test]
fn pieces_of_all_tensors_together_are_bounded_while_a_rule_runs() {
    let limits = Limits {
        pieces: 5000,
        ..Limits::default()
    };
    // Each tensor makes 1000 pieces or two thousand, and no tensor alone makes too many.
    let keys: Vec<String> = (0..50).map(|n| format!("t{n:02}")).collect();
    let shapes: Vec<(&str, &[u64])> = keys.iter().map(|k| (&**k, &[997, 1000][..])).collect();
    let rules =
        "[[rule]]\ntranspose = '{x}'\naxes = [1, 0]\n[[rule]]\nreshape = '{x}'\nto = [997, 1000]\n";
    let sources = shapes
        .iter()
        .map(|(k, s)| Source::new(k, DType::Float32, *s));
    let error = map(rules).apply(sources, [], limits).unwrap_err();
    assert!(error.to_string().contains("Limits::pieces"), "{error}");
}

#[test]
fn a_tensor_is_cast_so_often_and_no_more() {
    let rules = "[[rule]]\ncast = 'w'\nto = 'float64'\n[[rule]]\ncast = 'w'\nto = 'float32'\n";
    assert!(
        Memory::numbered(&[("w", &[1])])
            .apply(&map(&rules.repeat(4)))
            .is_ok()
    );
    let error = applied(&[("w", &[1])], &rules.repeat(5));
    assert!(
        error.contains("rule 9 (cast): w") && error.contains("8 times"),
        "{error}"
    );
}

#[test]
fn a_join_of_many_parts_takes_no_memory_for_parts_that_are_not_there() {
    let from: Vec<String> = (0..4096).map(|n| format!("'{{x}}.{n}'")).collect();
    let rule = format!("[[rule]]\nconcat = [{}]\nto = '{{x}}'", from.join(", "));
    let keys: Vec<String> = (0..20_000).map(|n| format!("{n}.0")).collect();
    let sources = keys.iter().map(|k| Source::new(k, DType::Float32, [1]));
    let error = map(&rule)
        .apply(sources, [], Limits::default())
        .unwrap_err();
    assert!(error.to_string().contains("0.1: it is missing"), "{error}");
}

#[test]
fn parameters_and_expressions_are_bounded() {
    let parameters: String = (0..257).map(|n| format!("[parameters.p{n}]\n")).collect();
    let error = syntax(&format!("{parameters}[[rule]]\ndrop = 'w'"));
    assert!(error.contains("more than 256 parameters"), "{error}");
    let long = "1+".repeat(512) + "1";
    let error = syntax(&format!("[[rule]]\npad = 'w'\nto = '{long}'"));
    assert!(
        error.contains("rule 1 (pad)") && error.contains("1025 bytes"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn no_text_of_a_map_makes_it_panic(text in "(?s).{0,80}") {
        drop(MapFile::parse(&text));
    }

    /// Rules with numbers and axes that nobody checked, on tensors of any shape.
    #[test]
    fn no_rule_panics_whatever_its_numbers(
        verb in prop::sample::select(vec!["split", "concat", "interleave", "deinterleave", "transpose", "pad", "trim", "reshape", "stack", "unstack"]),
        axis in prop_oneof![0u64..4, any::<u32>().prop_map(u64::from)],
        numbers in prop::collection::vec(prop_oneof![0i64..9, Just(i64::MAX), Just(1 << 40)], 0..4),
        shape in prop::collection::vec(prop_oneof![4 => 0u64..9, 1 => Just(u64::MAX), 1 => Just(1u64 << 40)], 0..4),
    ) {
        let n = numbers.first().copied().unwrap_or(0);
        let text = format!("[[rule]]\n{verb} = {}\n", if verb == "concat" { "['w', '0']" } else if verb == "stack" { "'{i#}'" } else { "'w'" });
        let text = text + &match verb {
            "split" => format!("to = ['a', 'b', 'c']\naxis = {axis}\nsizes = {numbers:?}"),
            "concat" => format!("to = 'c'\naxis = {axis}"),
            "interleave" | "deinterleave" => format!("axis = {axis}\ngroups = {n}\nsizes = {numbers:?}"),
            "transpose" => format!("axes = {:?}", (0..numbers.len()).rev().collect::<Vec<_>>()),
            "pad" | "trim" => format!("axis = {axis}\nto = {n}"),
            "reshape" => format!("to = {numbers:?}"),
            "stack" => format!("to = 's'\nindex = 'i'\naxis = {axis}"),
            _ => format!("to = '{{i}}'\nindex = 'i'\naxis = {axis}"),
        };
        let Ok(file) = MapFile::parse(&text) else { return Ok(()) };
        let map = file.bind(&BTreeMap::new()).unwrap();
        let stored = [Source::new("w", DType::Float32, &shape[..]), Source::new("0", DType::Float32, &shape[..])];
        let limits = Limits { pieces: 1000, names: 1000, ..Limits::default() };
        if let Ok(mapping) = map.apply(stored, [], limits) {
            drop(mapping.inverse());
            if let Ok(inverse) = map.inverse() {
                drop(inverse.apply_after(&mapping, limits));
            }
        }
    }
}
