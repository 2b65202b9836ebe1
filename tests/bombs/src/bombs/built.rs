//! Pickles whose instructions build: calls, states, doubled and long ones.

use super::values::Make;
use crate::pickle::{Pickle, Type, View, done};

fn plain(write: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    let mut p = Pickle::new();
    write(&mut p);
    p.end()
}

/// A dict of many fields, kept under 0.
fn fields(p: &mut Pickle, n: usize) {
    p.dict(|p| done(p.each(n, |p, k| done(p.text(format!("f{k}")).none()))))
        .keep(0);
}

const ONE: View<'_> = View {
    of: Type::F32,
    shape: &[1],
    strides: &[1],
    numel: 1,
    record: "0",
};

pub(super) fn built() -> Vec<(&'static str, Make)> {
    [contents(), copies(), tensors(), texts(), lists()]
        .into_iter()
        .flatten()
        .collect()
}

/// What objects, dicts and sets are filled with.
fn contents() -> Vec<(&'static str, Make)> {
    vec![
        ("one state built many times", || {
            plain(|p| {
                fields(p, 20_000);
                p.global(("a", "B")).raw(b")\x81").times(20_000, b"h\0b");
            })
        }),
        ("one state of many objects", || {
            plain(|p| {
                fields(p, 20_000);
                p.list(|p| {
                    done(p.each(20_000, |p, _| {
                        done(p.object(("a", "B"), |p| done(p.get(0))))
                    }))
                });
            })
        }),
        ("items of an object", || {
            plain(|p| {
                p.tuple(|p| done(p.times(1_000, b"N"))).keep(0);
                p.global(("a", "B"))
                    .raw(b")\x81(")
                    .times(1_000_000, b"h\0")
                    .raw(b"e");
            })
        }),
        ("pairs of an object", || {
            plain(|p| {
                done(
                    p.global(("a", "B"))
                        .raw(b")\x81(")
                        .times(1_000_000, b"K\x01N")
                        .raw(b"u"),
                )
            })
        }),
        ("args of many objects", || {
            plain(|p| {
                p.tuple(|p| done(p.times(20_000, b"N")))
                    .keep(0)
                    .global(("a", "B"))
                    .keep(1);
                p.list(|p| done(p.times(100_000, b"h\x01h\0R")));
            })
        }),
        ("dict keys that are one long tuple and another", || {
            plain(|p| {
                p.tuple(|p| done(p.times(20_000, b"N"))).keep(0);
                p.dict(|p| {
                    done(p.each(20_000, |p, k| {
                        done(p.tuple(|p| done(p.get(0).int(k as i64))).none())
                    }))
                });
            })
        }),
        ("a set of one long tuple", || {
            plain(|p| {
                p.tuple(|p| done(p.times(50_000, b"N"))).keep(0);
                p.raw(b"\x8f(").times(500_000, b"h\0").raw(b"\x90");
            })
        }),
        ("dict keys that are not equal to themselves", || {
            plain(|p| {
                p.raw(b"G\x7f\xf8\0\0\0\0\0\0").keep(0);
                p.dict(|p| done(p.times(500_000, b"h\0N")));
            })
        }),
        ("dict keys of a megabyte", || {
            plain(|p| {
                p.text("k".repeat(1_000_000)).keep(0);
                p.list(|p| done(p.each(100_000, |p, _| done(p.dict(|p| done(p.get(0).none()))))));
            })
        }),
        ("one dict entry set again and again", || {
            plain(|p| done(p.raw(b"}").times(2_000_000, b"K\x01Ns")))
        }),
        ("one dict of many keys set again and again", || {
            plain(|p| {
                p.raw(b"}");
                p.each(300_000, |p, k| done(p.int(k as i64).none().raw(b"s")));
            })
        }),
    ]
}

/// What is appended, copied, memoised or nested without end.
fn copies() -> Vec<(&'static str, Make)> {
    vec![
        ("many appended one by one", || {
            plain(|p| done(p.raw(b"]").times(3_000_000, b"Na")))
        }),
        ("copies of the top", || {
            plain(|p| done(p.raw(b"(").none().times(9_000_000, b"2").raw(b"l")))
        }),
        ("copies of a text", || {
            plain(|p| {
                done(
                    p.raw(b"(")
                        .text("q".repeat(1_000))
                        .times(4_000_000, b"2")
                        .raw(b"t"),
                )
            })
        }),
        ("memoised many times", || {
            plain(|p| done(p.times(3_000_000, b"N\x940").none()))
        }),
        ("memoised far apart", || {
            plain(|p| {
                done(
                    p.each(500_000, |p, k| done(p.none().keep(k as u32 * 8_000)))
                        .none(),
                )
            })
        }),
        ("parameters of parameters", || {
            plain(|p| {
                p.global(("torch._utils", "_rebuild_parameter")).keep(0);
                p.times(100_000, b"h\0")
                    .tensor(ONE)
                    .times(100_000, b"\x89N\x87R");
            })
        }),
        ("calls of calls", || {
            plain(|p| done(p.global(("a", "B")).times(2_000_000, b")R")))
        }),
        ("objects in objects", || {
            plain(|p| {
                done(
                    p.global(("a", "B"))
                        .keep(0)
                        .times(500_000, b"h\0")
                        .none()
                        .times(500_000, b"\x85\x81"),
                )
            })
        }),
        ("states in states", || {
            plain(|p| {
                p.global(("a", "B")).keep(0);
                p.times(500_000, b"h\0)\x81").none().times(500_000, b"b");
            })
        }),
    ]
}

/// Storages, and tensors over them.
fn tensors() -> Vec<(&'static str, Make)> {
    vec![
        ("one storage many times", || {
            plain(|p| {
                done(p.list(|p| done(p.each(100_000, |p, _| done(p.storage(Type::F32, "0", 1))))))
            })
        }),
        ("many storages that are not there", || {
            plain(|p| {
                done(p.list(|p| {
                    done(p.each(100_000, |p, k| {
                        done(p.storage(Type::F32, &format!("{k}"), 1 << 60))
                    }))
                }))
            })
        }),
        ("a storage without end", || {
            plain(|p| {
                done(p.tensor(View {
                    shape: &[1 << 60],
                    numel: i64::MAX,
                    ..ONE
                }))
            })
        }),
        ("a window over all pairs", || {
            plain(|p| {
                done(p.tensor(View {
                    shape: &[1 << 20, 1 << 20],
                    strides: &[0, 0],
                    ..ONE
                }))
            })
        }),
        ("windows below the limit", || {
            plain(|p| {
                p.list(|p| {
                    p.each(1_000, |p, _| {
                        done(p.tensor(View {
                            shape: &[1 << 14, 1 << 13],
                            strides: &[0, 0],
                            ..ONE
                        }))
                    });
                });
            })
        }),
        ("a volume that no number holds", || {
            plain(|p| {
                done(p.tensor(View {
                    shape: &[1 << 62; 8],
                    strides: &[0; 8],
                    ..ONE
                }))
            })
        }),
        ("no elements, and 64 axes", || {
            plain(|p| {
                done(p.list(|p| {
                    done(p.each(5_000, |p, _| {
                        done(p.tensor(View {
                            shape: &[0; 64],
                            strides: &[1 << 60; 64],
                            ..ONE
                        }))
                    }))
                }))
            })
        }),
        ("negative shapes and strides", || {
            plain(|p| {
                done(p.tensor(View {
                    shape: &[-1, i64::MIN],
                    strides: &[i64::MIN, -1],
                    ..ONE
                }))
            })
        }),
    ]
}

/// Numbers, texts and names.
fn texts() -> Vec<(&'static str, Make)> {
    vec![
        ("a float of many digits", || {
            plain(|p| done(p.raw(b"F").times(2_000_000, b"9").raw(b"\n")))
        }),
        ("a quoted text of escapes", || {
            plain(|p| done(p.raw(b"S'").times(1_000_000, b"\\x41").raw(b"'\n")))
        }),
        ("a text of escapes", || {
            plain(|p| done(p.raw(b"V").times(500_000, b"\\u0041").raw(b"\n")))
        }),
        ("a class with a long name by text", || {
            plain(|p| {
                p.raw(b"(i")
                    .times(1_000_000, b"m")
                    .raw(b"\n")
                    .times(1_000_000, b"n")
                    .raw(b"\n")
                    .put(0);
                p.raw(b"0").list(|p| done(p.times(100_000, b"h\0")));
            })
        }),
        ("classes of two long texts", || {
            plain(|p| {
                p.text("m".repeat(100_000))
                    .keep(0)
                    .text("n".repeat(100_000))
                    .keep(1);
                p.list(|p| done(p.times(200_000, b"h\0h\x01\x93")));
            })
        }),
        ("extensions and buffers", || {
            plain(|p| done(p.times(100_000, b"\x97\x98").raw(b"\x84\xff\xff\xff\x7f")))
        }),
    ]
}

/// Lengths without content, and long lists.
fn lists() -> Vec<(&'static str, Make)> {
    vec![
        ("marks and pops", || {
            plain(|p| done(p.times(3_000_000, b"(1").none()))
        }),
        ("a text longer than the file", || {
            plain(|p| done(p.raw(b"X\xff\xff\xff\x7fabc")))
        }),
        ("bytes longer than the file", || {
            plain(|p| done(p.raw(b"\x96").raw(&(1u64 << 62).to_le_bytes())))
        }),
        ("a long list of Nones", || {
            plain(|p| done(p.list(|p| done(p.times(9_000_000, b"N")))))
        }),
        ("a long list of empty lists", || {
            plain(|p| done(p.list(|p| done(p.times(9_000_000, b"]")))))
        }),
        ("a long list of empty dicts", || {
            plain(|p| done(p.list(|p| done(p.times(9_000_000, b"}")))))
        }),
        ("a long list of empty sets", || {
            plain(|p| done(p.list(|p| done(p.times(9_000_000, b"\x8f")))))
        }),
        ("a long list of objects", || {
            plain(|p| {
                done(
                    p.global(("a", "B"))
                        .keep(0)
                        .list(|p| done(p.times(2_000_000, b"h\0)\x81"))),
                )
            })
        }),
        ("a long list of tiny ints", || {
            plain(|p| done(p.list(|p| done(p.times(4_000_000, b"\x8a\x01\x07")))))
        }),
        ("a long list of ints of 9 bytes", || {
            plain(|p| done(p.list(|p| done(p.times(900_000, b"\x8a\x09\0\0\0\0\0\0\0\0\x01")))))
        }),
    ]
}
