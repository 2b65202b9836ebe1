//! What a `.metadata` takes while it is read, measured where memory is allocated. Small files that ask for absurd amounts of memory
//! or time are refused before anything is built of that size, or read in time by what they are worth. Of large files nothing is
//! kept while the table is built.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod asm;
mod counting;
mod kept;

use asm::{Asm, MD, bytes_item, same};
use counting::{peak_of, turn};
use reshard_torch_dist::parse_metadata;

/// What is said of it, with all sources; memory stays below what the file is worth.
fn parse(name: &str, pickle: &[u8]) -> Result<(usize, usize, usize), String> {
    let (result, grown) = peak_of(|| parse_metadata(pickle.to_vec()));
    let worth = 65 * pickle.len() + (64 << 20);
    assert!(
        grown <= worth + (8 << 20),
        "{name}: {grown} bytes for a file of {}",
        pickle.len()
    );
    result.map_err(|e| {
        let mut text = e.to_string();
        let mut source = std::error::Error::source(&e);
        while let Some(s) = source {
            text.push_str(&format!(": {s}"));
            source = s.source();
        }
        text
    })
}

fn refused(name: &str, limit: &str, pickle: &[u8]) {
    let said = parse(name, pickle).unwrap_err();
    assert!(
        said.contains(limit) && said.contains("max_memory"),
        "{name}: {said}"
    );
}

fn memory(name: &str, pickle: &[u8]) {
    refused(name, "asks for more memory", pickle);
}

fn steps(name: &str, pickle: &[u8]) {
    refused(name, "refers to the same things more often", pickle);
}

fn read(name: &str, found: (usize, usize, usize), pickle: &[u8]) {
    assert_eq!(parse(name, pickle), Ok(found), "{name}");
}

fn shared_dict(n: u32) -> Asm {
    Asm::new()
        .op(b"}(")
        .many(n, |a, i| a.str(&format!("f{i}")).op(b"N"))
        .op(b"u")
        .keep(0)
}

fn shared_text(len: usize) -> Asm {
    Asm::new().str(&"x".repeat(len)).keep(0)
}

/// Objects, each with such a list of transforms.
fn transformed(start: Asm, n: u32, list: impl Fn(Asm, u32) -> Asm) -> Vec<u8> {
    let key = |i| format!("o{i}");
    start.metadata(
        |a| a.many(n, |a, i| bytes_item(a, &key(i))),
        |a| {
            a.many(n, |a, i| {
                let transforms =
                    |a: Asm| list(a.str("transform_descriptors").op(b"]("), i).op(b"e");
                a.item(|a| a.str(&key(i)), transforms)
            })
        },
        same,
    )
}

#[test]
fn what_is_built_again_and_again_is_refused() {
    let _turn = turn();
    steps("a state of the root again and again", &{
        let a = shared_dict(5000)
            .class(MD, "Metadata")
            .op(b")\x81")
            .many(5000, |a, _| a.get(0).op(b"b"));
        a.op(b"0").empty()
    });
    steps("a state of a chunk again and again", &{
        let a = shared_dict(5000)
            .class(MD, "ChunkStorageMetadata")
            .op(b")\x81");
        a.many(5000, |a, _| a.get(0).op(b"b")).op(b"0").empty()
    });
    read("strides that many properties share", (0, 0, 0), &{
        let strides = Asm::new()
            .op(b"(")
            .many(20_000, |a, i| a.int(i))
            .op(b"t")
            .keep(0);
        strides
            .many(5000, |a, _| a.properties(|a| a.get(0)).op(b"0"))
            .empty()
    });
    memory("a path of a text again and again", &{
        let a = shared_text(50_000).class("pathlib", "PosixPath").op(b"(");
        a.many(20_000, |a, _| a.get(0)).op(b"tR0").empty()
    });
    steps("a path of nothing again and again", &{
        let a = Asm::new()
            .str("")
            .keep(0)
            .op(b"(")
            .many(5000, |a, _| a.get(0))
            .op(b"t")
            .keep(1);
        a.class("pathlib", "PosixPath")
            .keep(2)
            .many(5000, |a, _| a.get(2).get(1).op(b"R0"))
            .empty()
    });
    memory("chunks that many tensors share", &{
        let chunk = |a: Asm, i| {
            a.object(MD, "ChunkStorageMetadata", |a| {
                a.str("offsets").size(&[i]).str("sizes").size(&[1])
            })
        };
        let a = Asm::new()
            .op(b"](")
            .many(2000, chunk)
            .op(b"e")
            .keep(0)
            .properties(same)
            .keep(1);
        a.metadata(
            |a| {
                a.many(2000, |a, i| {
                    a.str(&format!("t{i}"))
                        .object(MD, "TensorStorageMetadata", |a| {
                            a.str("properties")
                                .get(1)
                                .str("size")
                                .size(&[2000])
                                .str("chunks")
                                .get(0)
                        })
                })
            },
            same,
            same,
        )
    });
}

#[test]
fn what_many_items_share_is_refused() {
    let _turn = turn();
    read("names of classes out of long texts", (0, 0, 0), &{
        let text = |a: Asm, i| a.str(&format!("m{i}{}", "x".repeat(2000))).keep(i);
        let a = Asm::new().many(200, text).str("torch").keep(200);
        a.many(200, |a, i| a.many(200, |a, j| a.get(i).get(j).op(b"\x930")))
            .many(20_000, |a, i| a.get(200).get(i % 200).op(b"\x930"))
            .empty()
    });
    read(
        "a list of transforms for each item",
        (0, 0, 5000),
        &transformed(Asm::new(), 5000, |a, i| a.str(&format!("stream.zstd/{i}"))),
    );
    memory(
        "transforms of a text again and again",
        &transformed(shared_text(50_000), 50, |a, i| {
            a.many(200, |a, _| a.get(0)).int(i)
        }),
    );
}

#[test]
fn what_planner_data_and_mcore_data_share_is_refused() {
    let _turn = turn();
    memory("a path of planner data that many keys share", &{
        let a = shared_text(100)
            .op(b"(")
            .many(2000, |a, _| a.get(0))
            .op(b"t")
            .keep(1);
        a.metadata(same, same, |a| {
            a.str("planner_data")
                .op(b"}(")
                .many(2000, |a, i| a.str(&format!("k{i}")).get(1))
                .op(b"u")
        })
    });
    memory("ints of planner data that many keys share", &{
        let a = Asm::new()
            .op(b"(")
            .many(5000, |a, i| a.int(i))
            .op(b"t")
            .keep(1);
        a.metadata(same, same, |a| {
            a.str("planner_data")
                .op(b"}(")
                .many(2000, |a, i| a.str(&format!("k{i}")).get(1))
                .op(b"u")
        })
    });
    memory("a shape of mcore_data that many keys share", &{
        let a = Asm::new()
            .op(b"(")
            .many(5000, |a, i| a.int(i))
            .op(b"t")
            .keep(1);
        a.op(b"}(")
            .str("nd_reformulated_orig_global_shape")
            .get(1)
            .op(b"u")
            .keep(2)
            .metadata(same, same, |a| {
                a.str("mcore_data")
                    .op(b"}(")
                    .many(5000, |a, i| a.str(&format!("k{i}")).get(2))
                    .op(b"u")
            })
    });
    steps("fields of mcore_data that many keys share", &{
        shared_dict(5000).metadata(same, same, |a| {
            a.str("mcore_data")
                .op(b"}(")
                .many(5000, |a, i| a.str(&format!("k{i}")).get(0))
                .op(b"u")
        })
    });
}

#[test]
fn what_is_named_again_and_again_is_refused() {
    let _turn = turn();
    steps("a place of a chunk that nobody has, again and again", &{
        let at = |n: u32| [&[n][..], &[0; 59]].concat();
        let one = [1; 60];
        let chunk = |a: Asm, i| {
            a.object(MD, "ChunkStorageMetadata", |a| {
                a.str("offsets").size(&at(i)).str("sizes").size(&one)
            })
        };
        let tensor = |a: Asm| {
            a.str("properties")
                .properties(same)
                .str("size")
                .size(&[&[64][..], &[1; 59]].concat())
                .str("chunks")
        };
        Asm::new()
            .item(|a| a.str("w").str("offset").size(&at(99)), same)
            .keep(0)
            .keep(1)
            .metadata(
                |a| {
                    a.str("w").object(MD, "TensorStorageMetadata", |a| {
                        tensor(a).op(b"](").many(64, chunk).op(b"e")
                    })
                },
                |a| a.many(40_000, |a, _| a.get(1).get(0)),
                same,
            )
    });
    // Messages have the ends of the name.
    let dtype = "a long name of an element type that many tensors share";
    read(dtype, (0, 0, 0), &{
        let dtype = format!("ctorch\n{}\n", "x".repeat(1 << 20));
        let a = Asm::new()
            .class(MD, "TensorProperties")
            .op(b")\x81(")
            .op(dtype.as_bytes());
        let a = a.op(b"N\x89N\x89tb").keep(0);
        let tensor = |a: Asm, i| {
            a.str(&format!("t{i}"))
                .object(MD, "TensorStorageMetadata", |a| {
                    a.str("properties")
                        .get(0)
                        .str("size")
                        .size(&[1])
                        .str("chunks")
                        .op(b"]")
                })
        };
        a.metadata(|a| a.many(200, tensor), same, same)
    });
    // 20 GB would be hashed or compared if each name of it were looked into.
    read(
        "a long key that each item names",
        (0, 0, 1),
        &shared_text(1 << 20).metadata(
            |a| a.get(0).class(MD, "BytesStorageMetadata").op(b")\x81"),
            |a| a.item(|a| a.get(0), same),
            |a| {
                a.str("x")
                    .op(b"](")
                    .many(20_000, |a, _| {
                        a.object(MD, "MetadataIndex", |a| a.str("fqn").get(0))
                    })
                    .op(b"e")
            },
        ),
    );
    let said = parse("a long name of a field", &{
        let a = shared_text(1 << 20);
        a.many(20_000, |a, _| {
            a.object(MD, "MetadataIndex", |a| a.get(0).op(b"N"))
                .op(b"0")
        })
        .empty()
    });
    assert!(said.unwrap_err().contains("can't be the name of a field"));
    let said = parse("a key again and again", &{
        shared_text(1 << 20).metadata(|a| a.many(20_000, |a, _| a.get(0).op(b"N")), same, same)
    });
    assert!(said.unwrap_err().contains("occurs twice"));
}
