//! Mapping files for checkpoints that are sound.

use super::Bomb;
use crate::{
    checkpoint::put,
    safetensors::{Tensor, put_tensors},
};

/// The longest text of a map.
const TEXT: usize = 1 << 20;

/// Tensors of which a checkpoint has so many, with keys by their number.
#[derive(Clone, Copy)]
struct Of {
    tensors: usize,
    key: fn(usize) -> String,
    dtype: &'static str,
    shape: &'static [u64],
    /// Of each.
    bytes: u64,
}

/// One small tensor.
const ONE: Of = Of {
    tensors: 1,
    key: |_| "w".into(),
    dtype: "U8",
    shape: &[4],
    bytes: 4,
};

/// Very many small ones.
const MANY: Of = Of {
    tensors: 100_000,
    key: |n| format!("layers.{n}.attention.weight"),
    ..ONE
};

/// A map on a file of tensors.
fn mapped(name: &str, of: Of, map: impl Fn() -> String + 'static) -> Bomb {
    Bomb::new(&format!("map/{name}"), move |dir| {
        let keys: Vec<String> = (0..of.tensors).map(of.key).collect();
        let tensors: Vec<Tensor<'_>> = keys
            .iter()
            .map(|k| (&**k, of.dtype, of.shape, of.bytes))
            .collect();
        put_tensors(dir, "model.safetensors", &tensors)?;
        put(dir, "map.toml", map().as_bytes())
    })
    .only()
    .with(&[
        "convert",
        "DIR/model.safetensors",
        "TO",
        "--map",
        "DIR/map.toml",
    ])
    .with(&[
        "convert",
        "DIR/model.safetensors",
        "TO",
        "--map",
        "DIR/map.toml",
        "--inverse",
        "--ranks",
        "3",
    ])
    .with(&[
        "diff",
        "DIR/model.safetensors",
        "DIR/model.safetensors",
        "--map",
        "DIR/map.toml",
    ])
}

fn list(n: usize, one: impl Fn(usize) -> String) -> String {
    let all: Vec<String> = (0..n).map(|n| format!("'{}'", one(n))).collect();
    format!("[{}]", all.join(","))
}

/// Bombs.
pub fn maps() -> Vec<Bomb> {
    [texts(), names(), pieces()].into_iter().flatten().collect()
}

/// What the text alone asks for.
fn texts() -> Vec<Bomb> {
    vec![
        mapped("in brackets", ONE, || {
            format!("a = {}", "[".repeat(TEXT - 8))
        }),
        mapped("in braces", ONE, || {
            format!("a = {}", "{a=".repeat(TEXT / 3 - 8))
        }),
        mapped("of a long dotted key", ONE, || {
            format!("{}a = 1", "a.".repeat(TEXT / 2 - 8))
        }),
        mapped("of many numbers", ONE, || {
            format!(
                "[[rule]]\nreshape = 'w'\nto = [{}]",
                "1,".repeat(TEXT / 2 - 40)
            )
        }),
        mapped("that is too long", ONE, || "#".repeat(300 << 20)),
        mapped("of parentheses", ONE, || {
            format!("[[rule]]\npad = 'w'\nto = '{}'", "(".repeat(TEXT - 40))
        }),
        mapped("of a long sum", ONE, || {
            format!(
                "[[rule]]\npad = 'w'\nto = '{}1'",
                "1+".repeat(TEXT / 2 - 40)
            )
        }),
        mapped("of parameters that wait for each other", ONE, || {
            let chain: String = (0..20_000)
                .map(|n| format!("[parameters.p{n:05}]\ndefault = 'p{:05}'\n", n + 1))
                .collect();
            format!("{chain}[parameters.p20000]\ndefault = 1\n[[rule]]\ndrop = 'w'")
        }),
        mapped("of rules alone", MANY, || {
            let rule = "[[rule]]\ncanonical = true\n";
            rule.repeat(4096)
        }),
    ]
}

/// Keys, and what rules make of them.
fn names() -> Vec<Bomb> {
    let long = Of {
        tensors: 500,
        key: |n| format!("{}b{n}", "a".repeat(60_000)),
        ..ONE
    };
    let longest = Of {
        key: |_| "a".repeat(90_000_000),
        ..ONE
    };
    vec![
        mapped("a key that is longer than any name", longest, || {
            "[[rule]]\ndrop = '{x*}a{y*}'\n".into()
        }),
        mapped("patterns that try long keys again and again", long, || {
            let text: String = (0..16).map(|n| format!("{{c{n}*}}a")).collect();
            format!(
                "[[rule]]\ndrop = '{text}c'\noptional = true\n[[rule]]\ndrop = '{text}'\noptional = true\n"
            )
        }),
        mapped("many patterns for long keys", long, || {
            let one = |n| format!("{{x*}}a{n}{{y*}}");
            let rule = format!("[[rule]]\ndrop = {}\noptional = true\n", list(4000, one));
            rule.repeat(TEXT / rule.len())
        }),
        mapped("many patterns for many keys", MANY, || {
            let one = |n| format!("{n}{{x*}}");
            let rule = format!("[[rule]]\ndrop = {}\noptional = true\n", list(4000, one));
            rule.repeat(TEXT / rule.len())
        }),
        mapped("captures for many keys", MANY, || {
            let text: String = (0..16).map(|n| format!("{{c{n}*}}")).collect();
            let rule = format!("[[rule]]\nrename = '{text}t'\nto = '{text}t'\n");
            rule.repeat(4096)
        }),
        mapped("names that grow with each rule", ONE, || {
            let rule = format!("[[rule]]\nrename = '{{x*}}'\nto = '{}'\n", "{x}".repeat(16));
            rule.repeat(1000)
        }),
        mapped("long names for many keys", MANY, || {
            format!("[[rule]]\nadd_prefix = '{}'\n", "x".repeat(60_000))
        }),
        mapped("a prefix that comes and goes", MANY, || {
            let prefix = "x".repeat(200);
            let rules =
                format!("[[rule]]\nadd_prefix = '{prefix}'\n[[rule]]\nstrip_prefix = '{prefix}'\n");
            rules.repeat(2000)
        }),
    ]
}

/// Pieces of tensors, and tensors that become many.
fn pieces() -> Vec<Bomb> {
    let empty = Of {
        shape: &[0, 1 << 40],
        bytes: 0,
        ..ONE
    };
    let primes = Of {
        shape: &[997, 1009],
        bytes: 997 * 1009,
        ..ONE
    };
    let some_primes = Of {
        tensors: 300,
        key: |n| format!("w{n}"),
        shape: &[211, 223],
        bytes: 211 * 223,
        ..ONE
    };
    let bits = Of {
        shape: &[1 << 20],
        bytes: 1 << 20,
        ..ONE
    };
    vec![
        mapped("layers without elements and without end", empty, || {
            "[[rule]]\nunstack = 'w'\nto = 'w.{i}'\nindex = 'i'\naxis = 1\n".into()
        }),
        mapped("a million layers", bits, || {
            "[[rule]]\nunstack = 'w'\nto = 'w.{i}'\nindex = 'i'\n".into()
        }),
        mapped(
            "layers that are cut and joined again and again",
            bits,
            || {
                let rules = "[[rule]]\nreshape = 'w'\nto = [1024, 1024]\n[[rule]]\nunstack = 'w'\nto = 'w.{i}'\nindex = 'i'\n\
                [[rule]]\nstack = 'w.{i#}'\nto = 'w'\nindex = 'i'\naxis = 1\n";
                rules.repeat(1300)
            },
        ),
        mapped("rows that do not fit into rows", primes, || {
            "[[rule]]\ntranspose = 'w'\naxes = [1, 0]\n[[rule]]\nreshape = 'w'\nto = [997, 1009]\n"
                .into()
        }),
        mapped(
            "rows of many tensors that do not fit into rows",
            some_primes,
            || {
                "[[rule]]\ntranspose = '{w}'\naxes = [1, 0]\n[[rule]]\nreshape = '{w}'\nto = [211, 223]\n".into()
            },
        ),
        mapped(
            "elements that are turned round again and again",
            bits,
            || {
                let shape = vec!["2"; 20].join(",");
                let axes: Vec<String> = (0..20).rev().map(|n| n.to_string()).collect();
                let rules = format!(
                    "[[rule]]\nreshape = 'w'\nto = [{shape}]\n[[rule]]\ntranspose = 'w'\naxes = [{}]\n[[rule]]\nreshape = 'w'\nto = [1048576]\n",
                    axes.join(",")
                );
                rules.repeat(1300)
            },
        ),
        mapped("groups of many sizes", bits, || {
            let sizes = vec!["1"; 4096].join(",");
            let rule = format!("[[rule]]\ninterleave = 'w'\ngroups = 256\nsizes = [{sizes}]\n");
            rule.repeat(TEXT / rule.len())
        }),
        mapped("parts that are mostly missing", MANY, || {
            let from = list(4096, |n| format!("layers.{{x}}.{n}"));
            let from = from.replacen("{x}.0'", "{x}.attention.weight'", 1);
            format!("[[rule]]\nconcat = {from}\nto = '{{x}}'\n")
        }),
        mapped(
            "casts without end",
            Of {
                dtype: "F32",
                shape: &[1],
                ..MANY
            },
            || {
                let rules = "[[rule]]\ncast = '{x*}'\nto = 'float64'\n[[rule]]\ncast = '{x*}'\nto = 'float32'\n";
                rules.repeat(2000)
            },
        ),
        mapped("padding without end", ONE, || {
            "[[rule]]\npad = 'w'\nto = 9000000000000000000\n".into()
        }),
    ]
}
