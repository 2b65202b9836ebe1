//! Bombs in `.metadata`: what is shared there, and what is named again and again.

use super::Bomb;
use crate::{
    checkpoint::{DATA, MD, empty_metadata, put},
    pickle::{Name, Pickle, Type, done},
};

const PATH: Name<'_> = ("pathlib", "PosixPath");

/// A `.metadata` behind what is written and taken off again.
fn behind(write: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    let mut p = Pickle::new();
    write(&mut p);
    empty_metadata(p)
}

/// A dict of many fields, kept under 0.
fn fields(p: &mut Pickle, n: usize) {
    p.dict(|p| done(p.each(n, |p, k| done(p.text(format!("f{k}")).none()))))
        .keep(0);
}

/// A `.metadata` with a further field.
fn with_field(name: &str, value: impl FnOnce(&mut Pickle)) -> Vec<u8> {
    let mut p = Pickle::new();
    p.metadata(|_| (), |_| (), |p| done(p.text(name).with(value)));
    p.end()
}

/// Objects under many keys, with places that are written for each.
fn objects(
    before: impl FnOnce(&mut Pickle),
    n: usize,
    mut place: impl FnMut(&mut Pickle, usize),
) -> Vec<u8> {
    let mut p = Pickle::new();
    before(&mut p);
    let entries =
        |p: &mut Pickle| done(p.each(n, |p, k| done(p.text(format!("o{k}")).object_entry())));
    p.metadata(
        entries,
        |p| done(p.each(n, |p, k| place(p.index(&format!("o{k}"), None), k))),
        |_| (),
    );
    p.end()
}

/// Those of the issue that made this crate.
fn named() -> Vec<Bomb> {
    vec![
        Bomb::metadata("a1", || {
            let mut p = Pickle::new();
            fields(&mut p, 20_000);
            p.global((MD, "Metadata"))
                .raw(b")\x81")
                .times(20_000, b"h\0b");
            p.dict(|p| {
                done(
                    p.text("state_dict_metadata")
                        .raw(b"}")
                        .text("storage_data")
                        .raw(b"}"),
                )
            })
            .raw(b"b");
            p.end()
        }),
        Bomb::metadata("a5", || {
            behind(|p| {
                fields(p, 50_000);
                p.global((MD, "ChunkStorageMetadata"))
                    .raw(b")\x81")
                    .times(100_000, b"h\0b")
                    .raw(b"0");
            })
        }),
        Bomb::metadata("a2", || {
            behind(|p| {
                p.tuple(|p| done(p.times(100_000, b"K\x01"))).keep(0);
                p.tuple(|p| done(p.global(("torch", "float32")).raw(b"N\x89K\0\x89").get(0)))
                    .keep(1);
                p.global((MD, "TensorProperties"))
                    .keep(2)
                    .times(100_000, b"h\x02)\x81h\x01b0");
            })
        }),
        Bomb::metadata("a3", || {
            behind(|p| {
                p.text("x".repeat(200_000)).keep(0);
                p.call(PATH, |p| done(p.times(200_000, b"h\0"))).raw(b"0");
            })
        }),
        Bomb::metadata("a4", || {
            let mut p = Pickle::new();
            p.list(|p| done(p.each(30_000, |p, k| done(p.chunk(&[k as i64], &[1])))))
                .keep(9);
            p.properties("float32").keep(8).size(&[30_000]).keep(7);
            let entry = |p: &mut Pickle, k: usize| {
                p.text(format!("t{k}"));
                p.tensor_entry_of(|p| done(p.get(8)), |p| done(p.get(7)), |p| done(p.get(9)));
            };
            p.metadata(|p| done(p.each(30_000, entry)), |_| (), |_| ());
            p.end()
        }),
        Bomb::metadata("a6", || {
            behind(|p| {
                let (names, long) = (600, "x".repeat(4_000));
                p.each(names, |p, k| {
                    done(p.text(format!("m{k:05}{long}")).keep(k as u32))
                });
                p.each(names, |p, k| {
                    done(p.text(format!("n{k:05}{long}")).keep((names + k) as u32))
                });
                p.each(names * names, |p, k| {
                    p.get((k / names) as u32)
                        .get((names + k % names) as u32)
                        .raw(b"\x930");
                });
            })
        }),
    ]
}

/// Those of them that repeat what items or keys have beside.
fn named_of_items() -> Vec<Bomb> {
    let transforms = "transform_descriptors";
    vec![
        Bomb::metadata("a8", move || {
            objects(
                |_| (),
                100_000,
                |p, k| {
                    let list = |p: &mut Pickle| {
                        done(
                            p.text(transforms)
                                .list(|p| done(p.text(format!("stream.zstd/{k}")))),
                        )
                    };
                    p.place_of(|p| done(p.text(DATA)), k as i64, 1, list);
                },
            )
        }),
        Bomb::metadata("a8b", move || {
            objects(
                |p| done(p.text("y".repeat(100_000)).keep(100)),
                100,
                |p, k| {
                    let list = |p: &mut Pickle| {
                        done(
                            p.text(transforms)
                                .list(|p| done(p.times(1_000, b"hd").int(k as i64))),
                        )
                    };
                    p.place_of(|p| done(p.text(DATA)), k as i64, 1, list);
                },
            )
        }),
        Bomb::metadata("a13", || {
            let mut p = Pickle::new();
            p.text("z".repeat(100))
                .keep(100)
                .tuple(|p| done(p.times(10_000, b"hd")))
                .keep(101);
            let paths = |p: &mut Pickle| {
                done(p.each(10_000, |p, k| done(p.text(format!("k{k}")).get(101))))
            };
            p.metadata(|_| (), |_| (), |p| done(p.text("planner_data").dict(paths)));
            p.end()
        }),
        Bomb::metadata("a14", || {
            let mut p = Pickle::new();
            p.tuple(|p| done(p.times(50_000, b"K\x01"))).keep(101);
            p.dict(|p| done(p.text("nd_reformulated_orig_global_shape").get(101)))
                .keep(102);
            let data = |p: &mut Pickle| {
                done(p.each(50_000, |p, k| done(p.text(format!("k{k}")).get(102))))
            };
            p.metadata(|_| (), |_| (), |p| done(p.text("mcore_data").dict(data)));
            p.end()
        }),
    ]
}

/// Others of their kinds.
pub fn metadata() -> Vec<Bomb> {
    let others = [
        named_of_items(),
        keys(),
        names(),
        fields_of_it(),
        nests(),
        contents(),
        shared(),
        ranks(),
    ];
    named()
        .into_iter()
        .chain(others.into_iter().flatten())
        .collect()
}

/// Paths, names of files and keys that are long or many.
fn keys() -> Vec<Bomb> {
    vec![
        Bomb::metadata("paths of paths", || {
            behind(|p| {
                p.text("x")
                    .levels(60, |p, k| done(p.call(PATH, |p| done(p.get(k).get(k)))));
                p.raw(b"0");
            })
        }),
        Bomb::metadata("a path of a million parts", || {
            behind(|p| {
                done(
                    p.text("x")
                        .keep(0)
                        .call(PATH, |p| done(p.times(2_000_000, b"h\0")))
                        .raw(b"0"),
                )
            })
        }),
        Bomb::metadata("the file name of many places", || {
            objects(
                |p| done(p.text("f".repeat(1_000_000)).keep(0)),
                50_000,
                |p, k| {
                    p.place_of(|p| done(p.get(0)), k as i64, 1, |_| ());
                },
            )
        }),
        Bomb::metadata("file names that are paths of one long text", || {
            objects(
                |p| done(p.text("f".repeat(100_000)).keep(0)),
                20_000,
                |p, k| {
                    p.place_of(
                        |p| done(p.call(PATH, |p| done(p.get(0).text(format!("{k}"))))),
                        k as i64,
                        1,
                        |_| (),
                    );
                },
            )
        }),
        Bomb::metadata("the key of many indices", || {
            let mut p = Pickle::new();
            p.text("k".repeat(1_000_000)).keep(0);
            let entry = |p: &mut Pickle| done(p.get(0).object_entry());
            let place = |p: &mut Pickle, k: usize| {
                done(p.index_of(|p| done(p.get(0)), None).place(k as i64, 1))
            };
            p.metadata(entry, |p| done(p.each(20_000, place)), |_| ());
            p.end()
        }),
        Bomb::metadata("one index many times", || {
            let mut p = Pickle::new();
            let place = |p: &mut Pickle, k: usize| done(p.index("o", None).place(k as i64, 1));
            p.metadata(
                |p| done(p.text("o").object_entry()),
                |p| done(p.each(100_000, place)),
                |_| (),
            );
            p.end()
        }),
        Bomb::metadata("one key many times", || {
            let mut p = Pickle::new();
            p.object_entry().keep(0);
            p.metadata(
                |p| done(p.each(500_000, |p, _| done(p.text("o").get(0)))),
                |_| (),
                |_| (),
            );
            p.end()
        }),
    ]
}

/// Names of classes and types, and ints.
fn names() -> Vec<Bomb> {
    vec![
        Bomb::metadata("an unknown element type with a long name", || {
            let mut p = Pickle::new();
            p.properties(&"n".repeat(1_000_000))
                .keep(0)
                .size(&[1])
                .keep(1)
                .list(|_| ())
                .keep(2);
            let entry = |p: &mut Pickle, k: usize| {
                p.text(format!("t{k}"));
                p.tensor_entry_of(|p| done(p.get(0)), |p| done(p.get(1)), |p| done(p.get(2)));
            };
            p.metadata(|p| done(p.each(20_000, entry)), |_| (), |_| ());
            p.end()
        }),
        Bomb::metadata("an unknown class with a long name", || {
            with_field("further", |p| {
                p.global((&"m".repeat(1_000_000), "n"))
                    .keep(0)
                    .list(|p| done(p.times(500_000, b"h\0)R")));
            })
        }),
        Bomb::metadata("a long int that is shared", || {
            with_field("further", |p| done(p.long(1_000_000).laugh(5, 10)))
        }),
        Bomb::metadata("nested tuples as paths", || {
            with_field("planner_data", |p| {
                p.dict(|p| {
                    p.text("o")
                        .text("x")
                        .levels(60, |p, k| done(p.tuple(|p| done(p.get(k).get(k)))));
                });
            })
        }),
        Bomb::metadata("a path of many steps", || {
            with_field("planner_data", |p| {
                done(p.dict(|p| done(p.text("o").tuple(|p| done(p.times(2_000_000, b"K\x01"))))))
            })
        }),
    ]
}

/// Fields of the root.
fn fields_of_it() -> Vec<Bomb> {
    vec![
        Bomb::metadata("planner data that is a long text", || {
            with_field("planner_data", |p| {
                done(p.text("x".repeat(1_000_000)).laugh(6, 10))
            })
        }),
        Bomb::metadata("planner data of many plain values", || {
            with_field("planner_data", |p| {
                done(p.list(|p| done(p.times(9_000_000, b"N"))))
            })
        }),
        Bomb::metadata("storage_meta of a long text", || {
            with_field("storage_meta", |p| {
                p.text("x".repeat(1_000_000)).keep(0);
                p.object((MD, "StorageMeta"), |p| {
                    p.dict(|p| {
                        p.text("checkpoint_id")
                            .get(0)
                            .text("save_id")
                            .get(0)
                            .text("load_id")
                            .get(0);
                        p.text("modules").list(|p| done(p.times(1_000_000, b"h\0")));
                    });
                });
            })
        }),
        Bomb::metadata("storage_meta many times", || {
            with_field("further", |p| {
                p.dict(|p| done(p.text("checkpoint_id").text("x".repeat(1_000_000))))
                    .keep(0);
                p.list(|p| {
                    done(p.each(50_000, |p, _| {
                        done(p.object((MD, "StorageMeta"), |p| done(p.get(0))))
                    }))
                });
            })
        }),
        Bomb::metadata("a version of many megabytes", || {
            with_field("version", |p| done(p.text("1.".repeat(4_000_000))))
        }),
        Bomb::metadata("all_local_plans that are shared", || {
            with_field("all_local_plans", |p| done(p.none().laugh(9, 10)))
        }),
        Bomb::metadata("mcore_data of long keys", || {
            with_field("mcore_data", |p| {
                p.text("k".repeat(1_000_000)).keep(0);
                p.list(|p| done(p.each(50_000, |p, _| done(p.dict(|p| done(p.get(0).raw(b"}")))))));
            })
        }),
    ]
}

/// What is built again and again, or in each other.
fn nests() -> Vec<Bomb> {
    vec![
        Bomb::metadata("one entry built many times", || {
            behind(|p| {
                fields(p, 20_000);
                for class in [
                    "TensorStorageMetadata",
                    "MetadataIndex",
                    "StorageMeta",
                    "TensorProperties",
                ] {
                    p.global((MD, class))
                        .raw(b")\x81")
                        .times(20_000, b"h\0b")
                        .raw(b"0");
                }
            })
        }),
        Bomb::metadata("a chunk in a chunk", || {
            behind(|p| {
                p.global((MD, "ChunkStorageMetadata")).raw(b")\x81").put(0);
                p.dict(|p| done(p.text("offsets").get(0).text("sizes").get(0)))
                    .raw(b"b0");
            })
        }),
        Bomb::metadata("a million lists in each other", || {
            behind(|p| done(p.times(1_000_000, b"]").times(999_999, b"a").raw(b"0")))
        }),
        Bomb::metadata("a million tuples in each other", || {
            behind(|p| done(p.none().times(2_000_000, b"\x85").raw(b"0")))
        }),
        Bomb::metadata("a million marks", || {
            behind(|p| done(p.times(3_000_000, b"(").times(3_000_000, b"1")))
        }),
        Bomb::metadata("a memo without end", || {
            behind(|p| done(p.none().put(u32::MAX).raw(b"0")))
        }),
        Bomb::metadata("a large memo", || {
            behind(|p| done(p.times(3_000_000, b"N\x940")))
        }),
    ]
}

/// Contents without end.
fn contents() -> Vec<Bomb> {
    vec![
        Bomb::metadata("nothing but Nones, 100 MB", || {
            with_field("further", |p| {
                done(p.list(|p| done(p.times(100_000_000, b"N"))))
            })
        }),
        Bomb::metadata("nothing but small ints, 100 MB", || {
            with_field("further", |p| {
                done(p.list(|p| done(p.times(50_000_000, b"K\x01"))))
            })
        }),
        Bomb::metadata("nothing but empty lists, 100 MB", || {
            with_field("further", |p| {
                done(p.list(|p| done(p.times(100_000_000, b"]"))))
            })
        }),
        Bomb::metadata("nothing but tuples, 60 MB", || {
            with_field("further", |p| {
                done(p.list(|p| done(p.times(15_000_000, b"K\x01K\x01\x86"))))
            })
        }),
        Bomb::metadata("copies of the top, 9 MB", || {
            behind(|p| done(p.raw(b"(").none().times(9_000_000, b"2").raw(b"l0")))
        }),
    ]
}

/// What many tensors share.
fn shared() -> Vec<Bomb> {
    vec![
        Bomb::metadata("many ranks in a common list", || {
            let mut p = Pickle::new();
            p.list(|p| done(p.times(100_000, b"K\x01"))).keep(0);
            let entry = |p: &mut Pickle, k: usize| {
                p.text(format!("t{k}"));
                p.tensor_entry_of(
                    |p| done(p.properties_with("float32", |p| done(p.get(0)))),
                    |p| done(p.size(&[1])),
                    |p| done(p.list(|_| ())),
                );
            };
            p.metadata(|p| done(p.each(20_000, entry)), |_| (), |_| ());
            p.end()
        }),
        Bomb::metadata("one shape of many axes", || {
            let mut p = Pickle::new();
            p.properties("float32")
                .keep(0)
                .tuple(|p| done(p.times(100_000, b"K\x01")))
                .keep(1)
                .list(|_| ())
                .keep(2);
            let entry = |p: &mut Pickle, k: usize| {
                p.text(format!("t{k}"));
                p.tensor_entry_of(|p| done(p.get(0)), |p| done(p.get(1)), |p| done(p.get(2)));
            };
            p.metadata(|p| done(p.each(50_000, entry)), |_| (), |_| ());
            p.end()
        }),
    ]
}

/// Metadata of ranks.
fn ranks() -> Vec<Bomb> {
    vec![
        Bomb::new("ranks of their own, a thousand", |dir| {
            let mut p = Pickle::new();
            p.properties("float32").keep(0).list(|_| ()).keep(2);
            let entry = |p: &mut Pickle, k: usize| {
                p.text(format!("t{k}"));
                p.tensor_entry_of(
                    |p| done(p.get(0)),
                    |p| done(p.size(&[1])),
                    |p| done(p.get(2)),
                );
            };
            p.metadata(|p| done(p.each(200, entry)), |_| (), |_| ());
            let bytes = p.end();
            (0..1_000).try_for_each(|k| put(dir, &format!("__{k}.metadata"), &bytes))
        }),
        Bomb::new("a rank of a high number", |dir| {
            let bytes = empty_metadata(Pickle::new());
            put(dir, "__0.metadata", &bytes)?;
            put(dir, "__4000000000.metadata", &bytes)
        }),
        Bomb::new("ranks of equal places", |dir| {
            let mut p = Pickle::new();
            let entries = |p: &mut Pickle| {
                done(p.each(2_000, |p, k| {
                    done(p.text(format!("t{k}")).tensor_entry(Type::F32, &[4]))
                }))
            };
            let places = |p: &mut Pickle| {
                p.each(2_000, |p, k| {
                    done(
                        p.index(&format!("t{k}"), Some((&[0], 0)))
                            .place(k as i64, 1),
                    )
                });
            };
            p.metadata(entries, places, |_| ());
            let bytes = p.end();
            (0..50).try_for_each(|k| put(dir, &format!("__{k}.metadata"), &bytes))
        }),
    ]
}
