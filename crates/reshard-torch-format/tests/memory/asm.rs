//! Pickles, put together by hand.

use reshard_torch_format::archive::write_archive;

/// Instructions one after the other, and the end.
pub(crate) fn program(parts: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x04", &parts.concat()[..], b"."].concat()
}

pub(crate) fn text(s: &str) -> Vec<u8> {
    [b"X", &(s.len() as u32).to_le_bytes()[..], s.as_bytes()].concat()
}

pub(crate) fn int(v: i64) -> Vec<u8> {
    [b"\x8a\x08", &v.to_le_bytes()[..]].concat()
}

pub(crate) fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

pub(crate) fn put(i: u32) -> Vec<u8> {
    [b"r", &i.to_le_bytes()[..]].concat()
}

/// Memoized, and off the stack.
pub(crate) fn keep(i: u32) -> Vec<u8> {
    [&put(i)[..], b"0"].concat()
}

pub(crate) fn get(i: u32) -> Vec<u8> {
    [b"j", &i.to_le_bytes()[..]].concat()
}

pub(crate) fn tuple(items: &[&[u8]]) -> Vec<u8> {
    [b"(", &items.concat()[..], b"t"].concat()
}

/// Lists of lists, each of which names the one below it `width` times.
pub(crate) fn laugh(leaf: &[u8], levels: u32, width: usize) -> Vec<u8> {
    let mut out = [leaf, &keep(0)].concat();
    for level in 0..levels {
        out.extend([b"](", &get(level).repeat(width)[..], b"e", &keep(level + 1)].concat());
    }
    program(&[&out, &get(levels)])
}

/// A tensor of floats over storage 0 of so many elements; the metadata are an instruction or none.
pub(crate) fn tensor(shape: &[u8], strides: &[u8], elements: i64, metadata: &[u8]) -> Vec<u8> {
    let storage = tuple(&[
        &text("storage"),
        &global("torch", "FloatStorage"),
        &text("0"),
        &text("cpu"),
        &int(elements),
    ]);
    let hooks = [&global("collections", "OrderedDict")[..], b")R"].concat();
    let args = tuple(&[
        &storage,
        b"Q",
        &int(0),
        shape,
        strides,
        b"\x89",
        &hooks,
        metadata,
    ]);
    [
        &global("torch._utils", "_rebuild_tensor_v2"),
        &args[..],
        b"R",
    ]
    .concat()
}

/// An archive with four bytes as storage 0.
pub(crate) fn archive(pickle: &[u8]) -> Vec<u8> {
    write_archive(pickle, &[&[0; 4]], &Default::default()).unwrap()
}
