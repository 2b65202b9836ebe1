//! Whatever the bytes of a `.metadata` are: an error or a table, never a panic, and memory in proportion to the file.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use proptest::prelude::*;
use reshard_torch_dist::parse_metadata;
use reshard_torch_format::pickle::{Emitter, Op};

/// A small `.metadata` as reshard writes it, through the public way: one tensor of two chunks and one object.
fn sound() -> Vec<u8> {
    let mut e = Emitter::new(4);
    let md = "torch.distributed.checkpoint.metadata";
    let object = |e: &mut Emitter, module: &str, name: &str| {
        e.global(module, name).unwrap();
        e.op(Op::EmptyTuple);
        e.op(Op::NewObj);
    };
    let size = |e: &mut Emitter, dims: &[u64]| {
        e.global("torch", "Size").unwrap();
        e.ints(dims);
        e.op(Op::Tuple1);
        e.op(Op::Reduce);
    };
    let fields = |e: &mut Emitter, f: &mut dyn FnMut(&mut Emitter)| {
        e.op(Op::EmptyDict);
        e.op(Op::Mark);
        f(e);
        e.op(Op::SetItems);
        e.op(Op::Build);
    };
    object(&mut e, md, "Metadata");
    fields(&mut e, &mut |e| {
        e.str("state_dict_metadata");
        e.op(Op::EmptyDict);
        e.op(Op::Mark);
        e.str("w");
        object(e, md, "TensorStorageMetadata");
        fields(e, &mut |e| {
            e.str("properties");
            object(e, md, "TensorProperties");
            e.op(Op::Mark);
            e.global("torch", "float32").unwrap();
            e.none();
            e.bool(false);
            e.none();
            e.bool(false);
            e.op(Op::Tuple);
            e.op(Op::Build);
            e.str("size");
            size(e, &[4, 3]);
            e.str("chunks");
            e.op(Op::EmptyList);
            e.op(Op::Mark);
            for row in [0, 2] {
                object(e, md, "ChunkStorageMetadata");
                fields(e, &mut |e| {
                    e.str("offsets");
                    size(e, &[row, 0]);
                    e.str("sizes");
                    size(e, &[2, 3]);
                });
            }
            e.op(Op::Appends);
        });
        e.str("step");
        object(e, md, "BytesStorageMetadata");
        e.op(Op::SetItems);
        e.str("planner_data");
        e.none();
        e.str("storage_data");
        e.op(Op::EmptyDict);
        e.op(Op::Mark);
        for (i, row) in [0, 2].into_iter().enumerate() {
            object(e, md, "MetadataIndex");
            fields(e, &mut |e| {
                e.str("fqn");
                e.str("w");
                e.str("index");
                e.uint(i as u64);
                e.str("offset");
                size(e, &[row, 0]);
            });
            object(e, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
            fields(e, &mut |e| {
                e.str("relative_path");
                e.str("__0_0.distcp");
                e.str("offset");
                e.uint(1577 * i as u64);
                e.str("length");
                e.uint(1577);
            });
        }
        e.op(Op::SetItems);
    });
    e.finish()
}

#[test]
fn the_sound_one_is_read() {
    assert_eq!(parse_metadata(sound()).unwrap(), (1, 2, 1));
}

/// A tensor of an unknown element type, with properties of an unknown class, or of a class of its own, is left out.
#[test]
fn what_is_described_in_an_unknown_way_leaves_the_rest() {
    for (old, new) in [
        ("float32", "float99"),
        ("TensorProperties", "TensorPropertiex"),
        ("TensorStorageMetadata", "TensorStorageMetadatb"),
    ] {
        let mut bytes = sound();
        let at = bytes
            .windows(old.len())
            .position(|w| w == old.as_bytes())
            .unwrap();
        bytes[at..at + old.len()].copy_from_slice(new.as_bytes());
        assert_eq!(parse_metadata(bytes).unwrap(), (0, 0, 1), "{new}");
    }
}

#[test]
fn cut_anywhere_it_is_an_error() {
    let sound = sound();
    for n in 0..sound.len() {
        assert!(parse_metadata(sound[..n].to_vec()).is_err(), "cut at {n}");
    }
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        drop(parse_metadata(bytes));
    }

    #[test]
    fn changed_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = sound();
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        drop(parse_metadata(bytes));
    }

    #[test]
    fn opcodes_in_any_order_never_panic(parts in prop::collection::vec((any::<prop::sample::Index>(), 1usize..60), 1..12)) {
        let sound = sound();
        let mut bytes = vec![0x80, 4];
        for (at, n) in parts {
            let at = at.index(sound.len());
            bytes.extend(&sound[at..(at + n).min(sound.len())]);
        }
        bytes.push(b'.');
        drop(parse_metadata(bytes));
    }
}
