//! New memory that threads fill, and memory of others that is changed in place.

use crate::{EmbeddingError, Result};
use reshard_model::{
    DType, Dims, Layout, LentBuffer, LentView, ModelError, Region, Segments, StridedCopy, Tensor,
};
use std::{collections::BTreeMap, ops::Range, sync::Arc, thread};

/// The row-major layout of a shape.
pub(crate) fn contiguous(name: &str, item: u64, shape: &[u64]) -> Result<Layout> {
    let too_large = || {
        ModelError::invalid(
            name,
            format!("a tensor of shape {} is too large", Dims::from(shape)),
        )
    };
    Ok(Layout::contiguous(item, shape).ok_or_else(too_large)?)
}

/// A buffer that is lent: the tensors that it has, by their numbers.
type Lent = (Vec<usize>, Arc<LentBuffer>, Vec<LentView>);

/// Lends the memory of row-major tensors to `f`, in their order; of those that are missing an empty piece. They may share a
/// buffer, but no memory, and nobody else may hold one.
pub(crate) fn edit<R>(
    name: &str,
    mut tensors: Vec<&mut Option<Tensor>>,
    f: impl FnOnce(&mut [&mut [u8]]) -> R,
) -> Result<R> {
    let mut buffers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, tensor) in tensors.iter().enumerate() {
        if let Some(tensor) = tensor {
            buffers.entry(tensor.buffer_id()).or_default().push(i);
        }
    }
    let mut lent: Vec<Lent> = Vec::new();
    let mut refused = None;
    for members in buffers.into_values() {
        let handles = members.iter().filter_map(|&i| tensors[i].take()).collect();
        match LentBuffer::new(name, handles) {
            Ok((buffer, views)) => lent.push((members, buffer, views)),
            Err((e, handles)) => {
                members
                    .iter()
                    .zip(handles)
                    .for_each(|(&i, t)| *tensors[i] = Some(t));
                refused = Some(e.into());
                break;
            }
        }
    }
    let outcome = match refused {
        Some(e) => Err(e),
        None => opened(&lent).map(|mut open| {
            let mut runs: Vec<&mut [u8]> = tensors.iter().map(|_| Default::default()).collect();
            for (i, copy) in &mut open {
                copy.take_runs(1)
                    .into_iter()
                    .for_each(|(_, run)| runs[*i] = run);
            }
            f(&mut runs)
        }),
    };
    for (members, buffer, views) in lent {
        // No region is left, so that the buffers come back.
        if let Ok(handles) = buffer.reclaim(views) {
            members
                .iter()
                .zip(handles)
                .for_each(|(&i, t)| *tensors[i] = Some(t));
        }
    }
    outcome
}

/// The memory of each tensor that is lent, as one run.
fn opened(lent: &[Lent]) -> Result<Vec<(usize, StridedCopy)>> {
    let mut out = Vec::new();
    for (members, buffer, views) in lent {
        let whole = |v: &LentView| Region::whole(v.layout().shape());
        let wants: Vec<_> = views.iter().map(|v| (v, whole(v))).collect();
        for (&i, into) in members.iter().zip(buffer.regions_mut(&wants)?) {
            let layout = contiguous("", into.item(), into.shape())?;
            out.push((i, into.strided_copy(&layout)?));
        }
    }
    Ok(out)
}

/// Below so many bytes a thread costs more than it saves.
const BYTES_PER_THREAD: u64 = 1 << 20;
/// So many bytes are filled at a time: they are still in the processor's cache when they are gone through again.
const BYTES_AT_A_TIME: u64 = 1 << 18;

/// A new tensor that `f` fills, some indexes of its first axis at a time, by several threads when there is much to do. `f` gets
/// indexes and their memory, and is called for all indexes also when these have no bytes.
pub(crate) fn filled(
    name: &str,
    dtype: DType,
    shape: &Dims,
    threads: Option<usize>,
    f: impl Fn(Range<u64>, &mut [u8]) -> Result<()> + Sync,
) -> Result<Tensor> {
    let rows = shape.first().copied().unwrap_or(1);
    written(name, dtype, shape, |memory| {
        fill(name, memory, rows, threads, f)
    })
}

/// As [`filled`], into a tensor that is there.
pub(crate) fn refilled(
    name: &str,
    out: &mut Tensor,
    rows: u64,
    threads: Option<usize>,
    f: impl Fn(Range<u64>, &mut [u8]) -> Result<()> + Sync,
) -> Result<()> {
    let nothing = Tensor::zeros(name, out.dtype(), &[0])?;
    let mut tensor = Some(std::mem::replace(out, nothing));
    let outcome = edit(name, vec![&mut tensor], |memory| {
        memory
            .first_mut()
            .map_or(Ok(()), |memory| fill(name, memory, rows, threads, f))
    });
    if let Some(back) = tensor {
        *out = back;
    }
    outcome?
}

/// A new tensor of zeros that `f` writes to, in one piece.
pub(crate) fn written(
    name: &str,
    dtype: DType,
    shape: &Dims,
    f: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<Tensor> {
    let mut out = Some(Tensor::zeros(name, dtype, shape)?);
    edit(name, vec![&mut out], |memory| {
        memory.first_mut().map_or(Ok(()), |memory| f(memory))
    })??;
    out.ok_or_else(|| not_back(name))
}

fn fill(
    name: &str,
    memory: &mut [u8],
    rows: u64,
    threads: Option<usize>,
    f: impl Fn(Range<u64>, &mut [u8]) -> Result<()> + Sync,
) -> Result<()> {
    let bytes = memory.len() as u64;
    if bytes == 0 {
        return f(0..rows, memory);
    }
    let width = bytes / rows;
    let at_a_time = (BYTES_AT_A_TIME / width).max(1);
    let work = |rows: Range<u64>, memory: &mut [u8]| {
        let blocks = memory.chunks_mut((at_a_time * width) as usize);
        let firsts = rows.clone().step_by(at_a_time as usize);
        firsts
            .zip(blocks)
            .try_for_each(|(first, block)| f(first..rows.end.min(first + at_a_time), block))
    };
    let most =
        threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)) as u64;
    let each = rows.div_ceil((bytes / BYTES_PER_THREAD).min(most).max(1));
    thread::scope(|scope| {
        let runs = memory.chunks_mut((each * width) as usize);
        let mut runs = (0..rows)
            .step_by(each as usize)
            .zip(runs)
            .map(|(i, run)| (i..rows.min(i + each), run));
        let first = runs.next();
        let work = &work;
        let others: Vec<_> = runs
            .map(|(rows, run)| thread::Builder::new().spawn_scoped(scope, move || work(rows, run)))
            .collect();
        let mut outcome = first.map_or(Ok(()), |(rows, run)| work(rows, run));
        for thread in others {
            let theirs = match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(source) => Err(EmbeddingError::Thread {
                    name: name.into(),
                    source,
                }),
            };
            // The first error in the order of indexes is told, however many threads there are.
            outcome = outcome.and(theirs);
        }
        outcome
    })
}

/// A new tensor of pieces, each with its box of it.
pub(crate) fn assembled(
    name: &str,
    dtype: DType,
    shape: &Dims,
    pieces: &[(&Region, &Tensor)],
) -> Result<Tensor> {
    let whole = contiguous(name, dtype.size(), shape)?;
    written(name, dtype, shape, |out| {
        for (to, piece) in pieces.iter().filter(|(to, _)| !to.is_empty()) {
            let from = contiguous(name, dtype.size(), piece.shape())?;
            let runs = Segments::row_major(&from, &whole.narrow(to));
            each_run(runs, &piece.to_bytes(), out, <[u8]>::copy_from_slice);
        }
        Ok(())
    })
}

/// Calls `f` with each run of `to`, and with the bytes of `from` for it.
pub(crate) fn each_run(runs: Segments, from: &[u8], to: &mut [u8], f: impl Fn(&mut [u8], &[u8])) {
    for (at, into, len) in runs {
        let (at, into, len) = (at as usize, into as usize, len as usize);
        f(&mut to[into..into + len], &from[at..at + len]);
    }
}

fn not_back(name: &str) -> EmbeddingError {
    EmbeddingError::invalid(name, "memory that was lent did not come back")
}
