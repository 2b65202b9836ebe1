//! Pickles of values: containers, numbers and texts that are shared, deep or long.

use crate::pickle::{Pickle, Type, View, done};

pub(super) type Make = fn() -> Vec<u8>;

/// A memoised leaf, and so many levels of lists around it.
fn laugh(levels: u32, width: usize, leaf: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    let mut p = Pickle::new();
    p.with(leaf).laugh(levels, width);
    p.end()
}

/// Levels of containers of which each is written from the one below.
fn levels(levels: u32, write: impl FnMut(&mut Pickle, u32)) -> Vec<u8> {
    let mut p = Pickle::new();
    p.none().levels(levels, write);
    p.end()
}

/// Instructions as they are.
fn plain(write: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    let mut p = Pickle::new();
    write(&mut p);
    p.end()
}

/// One value that is named many times in a list.
fn many(times: usize, write: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    plain(|p| done(p.with(write).keep(0).list(|p| done(p.times(times, b"h\0")))))
}

const STRIDE_0: View<'_> = View {
    of: Type::F32,
    shape: &[1 << 28],
    strides: &[0],
    numel: 1,
    record: "0",
};

/// A shape of 100,000 axes, shared.
fn axes(p: &mut Pickle) {
    p.tuple(|p| done(p.times(100_000, b"K\x01"))).keep(1);
    let form = |p: &mut Pickle| done(p.get(1).get(1));
    p.tensor_of(
        View {
            shape: &[],
            strides: &[],
            ..STRIDE_0
        },
        form,
        |_| (),
    );
}

/// Those of the issue that made this crate, and their kin.
pub(super) fn values() -> Vec<(&'static str, Make)> {
    [of_the_issue(), containers(), leaves()]
        .into_iter()
        .flatten()
        .collect()
}

/// Those of the issue that made this crate.
fn of_the_issue() -> Vec<(&'static str, Make)> {
    vec![
        ("b1", || {
            laugh(6, 12, |p| {
                done(p.global((&"m".repeat(490), &"n".repeat(490))))
            })
        }),
        ("b2", || laugh(5, 10, |p| done(p.long(1_000_000)))),
        ("b3", || laugh(6, 14, |p| done(p.call(("a", "B"), |_| ())))),
        ("b3n", || laugh(6, 14, |p| done(p.none()))),
        ("b4", || {
            plain(|p| {
                done(
                    p.dict(|p| done(p.times(200_000, b"K\x01N")))
                        .keep(0)
                        .list(|p| done(p.times(1_000_000, b"h\0"))),
                )
            })
        }),
        ("b5", || many(200_000, axes)),
        ("b6", || {
            let negated = |p: &mut Pickle| done(p.dict(|p| done(p.text("neg").raw(b"\x88"))));
            let form =
                |p: &mut Pickle| done(p.tuple(|p| done(p.int(1 << 28))).tuple(|p| done(p.int(0))));
            many(100, |p| done(p.tensor_of(STRIDE_0, form, negated)))
        }),
        ("b7", || {
            plain(|p| {
                done(p.tensor(View {
                    shape: &[1 << 40],
                    ..STRIDE_0
                }))
            })
        }),
        ("b8", || many(1_000, |p| done(p.tensor(STRIDE_0)))),
        ("b9", || {
            laugh(3, 10, |p| done(p.text("q".repeat(1_000_000))))
        }),
        ("b10", || {
            plain(|p| done(p.raw(b"L").times(2_000_000, b"9").raw(b"L\n")))
        }),
        ("b10i", || {
            plain(|p| done(p.raw(b"I").times(2_000_000, b"9").raw(b"\n")))
        }),
        ("b11", || {
            plain(|p| done(p.times(1_000_000, b"]").times(999_999, b"a")))
        }),
        ("b11b", || plain(|p| done(p.times(3_000_000, b"(")))),
        ("b12", || {
            plain(|p| done(p.none().times(2_000_000, b"\x85")))
        }),
        ("b13", || {
            plain(|p| done(p.raw(b"]").put(0).get(0).raw(b"a")))
        }),
        ("b13d", || {
            plain(|p| done(p.raw(b"}").put(0).int(1).get(0).raw(b"s")))
        }),
        ("b14", || {
            plain(|p| done(p.raw(b"]").put(0).raw(b"(").times(50, b"h\0").raw(b"e")))
        }),
        ("b15", || plain(|p| done(p.raw(b"}]Ns")))),
        ("b16", || plain(|p| done(p.none().put(u32::MAX)))),
        ("b17", || plain(|p| done(p.raw(b"p99999999999999999999\n")))),
        ("b18", || {
            plain(|p| done(p.raw(b"\x8d").times(8, b"\xff").raw(b"abc")))
        }),
        ("b19", || plain(|p| done(p.raw(b"\x8b\xff\xff\xff\xff")))),
        ("b20", || {
            plain(|p| done(p.raw(b"\x95").times(8, b"\xff").none()))
        }),
    ]
}

/// Other containers that are shared.
fn containers() -> Vec<(&'static str, Make)> {
    vec![
        // Other containers that are shared.
        ("tuples", || {
            levels(60, |p, k| done(p.tuple(|p| done(p.get(k).get(k)))))
        }),
        ("tuples in 7 levels of 14", || {
            levels(7, |p, k| {
                done(p.tuple(|p| done(p.each(14, |p, _| done(p.get(k))))))
            })
        }),
        ("dicts", || {
            levels(8, |p, k| {
                done(p.dict(|p| done(p.each(10, |p, i| done(p.int(i as i64).get(k))))))
            })
        }),
        ("sets", || {
            levels(8, |p, k| {
                done(
                    p.raw(b"\x8f(")
                        .int(1)
                        .get(k)
                        .tuple(|p| done(p.get(k).get(k).get(k)))
                        .raw(b"\x90"),
                )
            })
        }),
        ("frozensets", || {
            levels(40, |p, k| {
                done(p.raw(b"(").get(k).tuple(|p| done(p.get(k))).raw(b"\x91"))
            })
        }),
        ("sets of lists", || {
            laugh(6, 12, |p| {
                done(p.call(("builtins", "set"), |p| done(p.list(|p| done(p.int(1))))))
            })
        }),
        ("sets of one long list", || {
            plain(|p| {
                p.list(|p| done(p.each(100_000, |p, k| done(p.int(k as i64)))))
                    .keep(0);
                p.list(|p| {
                    done(p.each(100_000, |p, _| {
                        done(p.call(("builtins", "set"), |p| done(p.get(0))))
                    }))
                });
            })
        }),
        ("ordered dicts", || {
            levels(8, |p, k| {
                p.call(("collections", "OrderedDict"), |_| ()).raw(b"(");
                p.each(10, |p, i| done(p.int(i as i64).get(k))).raw(b"u");
            })
        }),
        ("ordered dicts of pairs", || {
            plain(|p| {
                p.list(|p| {
                    done(p.each(20_000, |p, k| {
                        done(p.tuple(|p| done(p.int(k as i64).none())))
                    }))
                })
                .keep(0);
                p.list(|p| {
                    done(p.each(50_000, |p, _| {
                        done(p.call(("collections", "OrderedDict"), |p| done(p.get(0))))
                    }))
                });
            })
        }),
        ("states", || {
            levels(60, |p, k| {
                done(p.object(("a", "B"), |p| {
                    done(p.dict(|p| done(p.int(1).get(k).int(2).get(k))))
                }))
            })
        }),
        ("args", || {
            levels(60, |p, k| {
                done(p.call(("a", "B"), |p| done(p.get(k).get(k))))
            })
        }),
        ("keyword args", || {
            levels(60, |p, k| {
                p.global(("a", "B"))
                    .raw(b")")
                    .dict(|p| done(p.text("a").get(k).text("b").get(k)))
                    .raw(b"\x92");
            })
        }),
    ]
}

/// Leaves that are shared.
fn leaves() -> Vec<(&'static str, Make)> {
    vec![
        ("bytes", || laugh(4, 10, |p| done(p.bytes(&[7; 1_000_000])))),
        ("byte arrays", || {
            laugh(4, 10, |p| {
                done(
                    p.raw(b"\x96")
                        .raw(&1_000_000u64.to_le_bytes())
                        .times(1_000_000, b"z"),
                )
            })
        }),
        ("short texts", || {
            laugh(6, 14, |p| done(p.text("q".repeat(100))))
        }),
        ("encoded texts", || {
            plain(|p| {
                p.text("q".repeat(1_000_000)).keep(0).text("latin1").keep(1);
                p.list(|p| {
                    done(p.each(100_000, |p, _| {
                        done(p.call(("_codecs", "encode"), |p| done(p.get(0).get(1))))
                    }))
                });
            })
        }),
        ("ints of 512 bytes", || {
            many(2_000_000, |p| done(p.long(512)))
        }),
        ("ints of 500 bytes in levels", || {
            laugh(6, 10, |p| done(p.long(500)))
        }),
        ("small tensors", || {
            laugh(6, 12, |p| {
                done(p.tensor(View {
                    shape: &[32],
                    ..STRIDE_0
                }))
            })
        }),
        ("tensors of 1 MiB", || {
            laugh(5, 10, |p| {
                done(p.tensor(View {
                    shape: &[1 << 18],
                    ..STRIDE_0
                }))
            })
        }),
        ("tensors of 64 axes", || {
            laugh(6, 12, |p| {
                done(p.tensor(View {
                    shape: &[1; 64],
                    strides: &[0; 64],
                    ..STRIDE_0
                }))
            })
        }),
    ]
}
