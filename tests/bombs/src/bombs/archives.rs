//! Zip archives that hold too much, or lie about what they hold.

use super::Bomb;
use crate::{
    checkpoint::{DATA, Item, put, put_common, put_items},
    pickle::{Pickle, Type, View, done},
    zip::{Record, Zip, torch_of},
};
use anyhow::Result;
use std::path::Path;

const NONE: &[u8] = b"\x80\x02N.";

fn pickle() -> Record {
    Record::plain("archive/data.pkl", NONE)
}

/// A zip as an object.
fn object(name: &str, make: impl Fn() -> Result<Vec<u8>> + 'static) -> Bomb {
    Bomb::new(name, move |dir| {
        put_items(dir, &[Item::object("o", make()?)])
    })
}

/// A zip as an object, and as common state.
fn both(name: &'static str, make: fn() -> Result<Vec<u8>>) -> [Bomb; 2] {
    [
        object(&format!("{name}/object"), make),
        Bomb::new(&format!("{name}/common"), move |dir| {
            put_common(dir, &make()?)
        }),
    ]
}

/// A tensor of 4 bytes whose archive is made from its pickle.
fn tensor(dir: &Path, make: impl FnOnce(&Record, &Record) -> Result<Vec<u8>>) -> Result<()> {
    let mut p = Pickle::new();
    p.tensor(View {
        of: Type::U8,
        shape: &[4],
        strides: &[1],
        numel: 4,
        record: "0",
    });
    let bytes = make(
        &Record::plain("archive/data.pkl", &p.end()),
        &Record::plain("archive/data/0", &[7; 4]),
    )?;
    put_items(dir, &[Item::tensor("t", Type::U8, &[4], bytes)])
}

/// A zip of many records, and a pickle.
fn records(n: usize, name: impl Fn(usize) -> String) -> Result<Vec<u8>> {
    let all: Vec<Record> = (0..n).map(|k| Record::plain(name(k), b"")).collect();
    Ok(torch_of(&pickle(), &all))
}

/// Bombs.
pub fn archives() -> Vec<Bomb> {
    [
        many_records(),
        blown_up(),
        directories(),
        of_tensors(),
        of_many_keys(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Records without end.
fn many_records() -> Vec<Bomb> {
    let mut all = Vec::new();
    let mut add = |name, make| all.extend(both(name, make));
    add("65,000 records", || {
        records(65_000, |k| format!("archive/data/{k}"))
    });
    add("300,000 records", || {
        records(300_000, |k| format!("archive/data/{k}"))
    });
    add("65,000 records of one name", || {
        records(65_000, |_| "archive/data/0".into())
    });
    add("65,000 records, and tensors over each", || {
        let mut p = Pickle::new();
        p.list(|p| {
            p.each(65_000, |p, k| {
                p.tensor(View {
                    of: Type::U8,
                    shape: &[0],
                    strides: &[1],
                    numel: 0,
                    record: &k.to_string(),
                });
            });
        });
        let all: Vec<Record> = (0..65_000)
            .map(|k| Record::plain(format!("archive/data/{k}"), b""))
            .collect();
        Ok(torch_of(&Record::plain("archive/data.pkl", &p.end()), &all))
    });
    add("records with names of 60 kB", || {
        records(150, |k| format!("archive/{}{k}", "n".repeat(60_000)))
    });
    add("records in deep folders", || {
        records(150, |k| format!("archive/{}{k}", "d/".repeat(30_000)))
    });
    all
}

/// Records that unpack to much.
fn blown_up() -> Vec<Bomb> {
    let mut all = Vec::new();
    let mut add = |name, make| all.extend(both(name, make));
    add("a pickle that unpacks to 1 GiB", || {
        Ok(torch_of(
            &Record::blown_up("archive/data.pkl", b"\x80\x02](", b'N', 1 << 10, b"e.")?,
            &[],
        ))
    });
    add("a pickle that unpacks to 4 MiB", || {
        Ok(torch_of(
            &Record::blown_up("archive/data.pkl", b"\x80\x02](", b'N', 4, b"e.")?,
            &[],
        ))
    });
    add("a pickle that unpacks to 100 MiB of lists", || {
        Ok(torch_of(
            &Record::blown_up("archive/data.pkl", b"\x80\x02](", b']', 100, b"e.")?,
            &[],
        ))
    });
    add("a text that unpacks to 900 MiB", || {
        let head = [&b"\x80\x02X"[..], &(900u32 << 20).to_le_bytes()].concat();
        Ok(torch_of(
            &Record::blown_up("archive/data.pkl", &head, b'x', 900, b".")?,
            &[],
        ))
    });
    add("a version of 1 GiB", || {
        let mut zip = Zip::default();
        Ok(zip
            .add(&pickle())
            .add(&Record::blown_up(
                "archive/version",
                b"3\n",
                b' ',
                1 << 10,
                b"",
            )?)
            .end(b""))
    });
    add("a byteorder of 1 GiB", || {
        let mut zip = Zip::default();
        Ok(zip
            .add(&pickle())
            .add(&Record::blown_up(
                "archive/byteorder",
                b"little",
                b' ',
                1 << 10,
                b"",
            )?)
            .end(b""))
    });
    add("a record of 8 GiB that nobody needs", || {
        Ok(torch_of(
            &pickle(),
            &[Record::blown_up("archive/data/0", b"", 0, 8 << 10, b"")?],
        ))
    });
    all
}

/// Directories that do not say what is.
fn directories() -> Vec<Bomb> {
    let mut all = Vec::new();
    let mut add = |name, make| all.extend(both(name, make));
    add("a comment of 64 kB", || {
        Ok(Zip::default().add(&pickle()).end(&[b'c'; 65_535]))
    });
    add("a comment of ends", || {
        let end = [&b"PK\x05\x06"[..], &[0xff; 16], &[0, 0]].concat();
        Ok(Zip::default().add(&pickle()).end(&end.repeat(2_900)))
    });
    add("records that overlap", || {
        let mut zip = Zip::default();
        zip.add(&pickle());
        let big = Record::blown_up("archive/data/0", b"", 0, 256, b"")?;
        zip.add(&big);
        for k in 1..1_000 {
            let at = 30 + "archive/data.pkl".len() as u64 + NONE.len() as u64;
            zip.list(
                &Record {
                    name: format!("archive/data/{k}"),
                    ..big.clone()
                },
                at,
                big.stored.len() as u64,
            );
        }
        Ok(zip.end(b""))
    });
    add("a directory that lists 2^60 records", || {
        Ok(Zip::default().add(&pickle()).end_as(1 << 60, 54, 66, b""))
    });
    add("a directory of 2^62 bytes", || {
        Ok(Zip::default().add(&pickle()).end_as(1, 54, 1 << 62, b""))
    });
    add("a directory that lies at 2^63", || {
        Ok(Zip::default().add(&pickle()).end_as(1, 1 << 63, 66, b""))
    });
    add("a record of 2^63 bytes", || {
        let mut zip = Zip::default();
        let record = Record {
            size: 1 << 63,
            ..Record::plain("archive/data/0", b"x")
        };
        Ok(zip.add(&pickle()).list(&record, 54, 1 << 63).end(b""))
    });
    add("a record at 2^63", || {
        let mut zip = Zip::default();
        Ok(zip
            .add(&pickle())
            .list(&Record::plain("archive/data/0", b"x"), u64::MAX - 7, 4)
            .end(b""))
    });
    add("a pickle that says it unpacks to 3 GiB", || {
        Ok(torch_of(
            &Record {
                size: 3 << 30,
                ..Record::deflated("archive/data.pkl", NONE)?
            },
            &[],
        ))
    });
    add("a pickle that unpacks to more than it says", || {
        let record = Record::blown_up("archive/data.pkl", NONE, 0, 4 << 10, b"")?;
        Ok(torch_of(&Record { size: 4, ..record }, &[]))
    });
    add("many deflated records of 64 MiB", || {
        let blown = Record::blown_up("", b"", 0, 64, b"")?;
        let record = |k: usize| Record {
            name: format!("archive/data/{k}"),
            ..blown.clone()
        };
        Ok(torch_of(
            &pickle(),
            &(0..200).map(record).collect::<Vec<_>>(),
        ))
    });
    add("a legacy file that says it has 2^40 storages", || {
        let mut p =
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02N.\x80\x02]("
                .to_vec();
        p.extend_from_slice(&b"X\x01\0\0\x000".repeat(0));
        p.extend_from_slice(b"e.");
        p.extend_from_slice(&(1u64 << 40).to_le_bytes());
        Ok(p)
    });
    all
}

/// Archives of tensors.
fn of_tensors() -> Vec<Bomb> {
    vec![
        Bomb::new("a tensor among 65,000 records", |dir| {
            tensor(dir, |pickle, storage| {
                let mut all = vec![storage.clone()];
                all.extend((1..65_000).map(|k| Record::plain(format!("archive/data/{k}"), b"")));
                Ok(torch_of(pickle, &all))
            })
        }),
        Bomb::new("a tensor with a byteorder of 1 GiB", |dir| {
            tensor(dir, |pickle, storage| {
                let order = Record::blown_up("archive/byteorder", b"little", b' ', 1 << 10, b"")?;
                Ok(Zip::default().add(pickle).add(&order).add(storage).end(b""))
            })
        }),
        Bomb::new("a tensor whose pickle unpacks to 1 GiB", |dir| {
            tensor(dir, |_, storage| {
                Ok(torch_of(
                    &Record::blown_up("archive/data.pkl", b"\x80\x02](", b'N', 1 << 10, b"e.")?,
                    std::slice::from_ref(storage),
                ))
            })
        }),
        Bomb::new("many tensors of many records", |dir| {
            let mut p = Pickle::new();
            p.tensor(View {
                of: Type::U8,
                shape: &[4],
                strides: &[1],
                numel: 4,
                record: "0",
            });
            let mut records = vec![Record::plain("archive/data/0", &[7; 4])];
            records.extend((1..1_000).map(|k| Record::plain(format!("archive/data/{k}"), b"")));
            let bytes = torch_of(&Record::plain("archive/data.pkl", &p.end()), &records);
            let item = |k: usize| Item::tensor(&format!("t{k}"), Type::U8, &[4], bytes.clone());
            put_items(dir, &(0..200).map(item).collect::<Vec<_>>())
        }),
    ]
}

/// Archives under many keys.
fn of_many_keys() -> Vec<Bomb> {
    vec![
        Bomb::new("items that lie in each other", |dir| {
            // Each is listed as everything from its own beginning to the end of the file.
            let bytes = Zip::default().add(&pickle()).end(b"");
            let n = 3_000;
            let mut p = Pickle::new();
            p.metadata(
                |p| done(p.each(n, |p, k| done(p.text(format!("o{k}")).object_entry()))),
                |p| {
                    p.each(n, |p, k| {
                        done(
                            p.index(&format!("o{k}"), None)
                                .place((k * bytes.len()) as i64, ((n - k) * bytes.len()) as i64),
                        )
                    });
                },
                |_| (),
            );
            put(dir, ".metadata", &p.end())?;
            put(dir, DATA, &bytes.repeat(n))
        }),
        Bomb::new("one item under many keys", |dir| {
            let bytes = torch_of(
                &pickle(),
                &[Record::blown_up("archive/data/0", b"", 0, 256, b"")?],
            );
            let n = 1_000;
            let mut p = Pickle::new();
            p.metadata(
                |p| done(p.each(n, |p, k| done(p.text(format!("o{k}")).object_entry()))),
                |p| {
                    done(p.each(n, |p, k| {
                        done(p.index(&format!("o{k}"), None).place(0, bytes.len() as i64))
                    }))
                },
                |_| (),
            );
            put(dir, ".metadata", &p.end())?;
            put(dir, DATA, &bytes)
        }),
    ]
}
