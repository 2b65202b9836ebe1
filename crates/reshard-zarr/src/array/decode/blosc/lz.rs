//! BloscLZ, the default codec of C-Blosc. It is a form of FastLZ.

/// Distances from here on have two bytes of their own.
const FAR: usize = 8191;

/// Decompresses a stream. Returns how many bytes came out, or `None` if the stream is cut, reaches before its beginning or after
/// the end of `out`.
pub(super) fn decompress(mut stream: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut at = 0;
    // The first code is always literal; its upper bits say the level.
    let mut code = usize::from(next(&mut stream)? & 31);
    loop {
        if code < 32 {
            let (literal, rest) = stream.split_at_checked(code + 1)?;
            out.get_mut(at..)?
                .get_mut(..literal.len())?
                .copy_from_slice(literal);
            at += literal.len();
            stream = rest;
        } else {
            let (length, distance) = reference(code, &mut stream)?;
            repeat(out, at, length, distance)?;
            at += length;
        }
        match next(&mut stream) {
            Some(byte) => code = byte.into(),
            None => return Some(at),
        }
    }
}

fn next(stream: &mut &[u8]) -> Option<u8> {
    let (first, rest) = stream.split_first()?;
    *stream = rest;
    Some(*first)
}

/// The number of bytes to copy, and the distance to their source.
fn reference(code: usize, stream: &mut &[u8]) -> Option<(usize, usize)> {
    let mut length = (code >> 5) + 2;
    if code >> 5 == 7 {
        loop {
            let more = next(stream)?;
            length += usize::from(more);
            if more != 255 {
                break;
            }
        }
    }
    let distance = (code & 31) << 8 | usize::from(next(stream)?);
    Some(if distance == FAR {
        let far = usize::from(next(stream)?) << 8 | usize::from(next(stream)?);
        (length, far + FAR + 1)
    } else {
        (length, distance + 1)
    })
}

/// Copies `length` bytes to `at` from `distance` before. They may overlap: then what was copied is copied again.
fn repeat(out: &mut [u8], at: usize, length: usize, distance: usize) -> Option<()> {
    let from = at.checked_sub(distance)?;
    let end = at.checked_add(length).filter(|end| *end <= out.len())?;
    if distance == 1 {
        let byte = out[from];
        out[at..end].fill(byte);
        return Some(());
    }
    // Each round copies all that has the pattern, which grows.
    let mut done = at;
    while done < end {
        let most = (done - from).min(end - done);
        out.copy_within(from..from + most, done);
        done += most;
    }
    Some(())
}
