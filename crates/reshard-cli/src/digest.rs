//! `reshard digest`.

use crate::{
    args::Digest,
    cost::{self, Reads},
    error::{CliError, Result, worse},
    findings::{Doubts, items_before},
    io::Io,
    json::{self, hash},
    program::Program,
    table::shown,
    units,
};
use indicatif::ProgressBar;
use reshard::{
    Tensor,
    blocking::TensorHandle,
    storage::{run_blocking, wait},
    strategy::hex,
};
use reshard_convert::Snapshot;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json, json};
use sha2::Digest as _;
use std::{sync::mpsc, thread};

/// Read at once at most, in bytes. Three of them are in memory: one read, one waiting, one hashed.
const BLOCK: u64 = 8 << 20;

/// Neighbours that are smaller are read together, so many at once at most: to hand one over costs more than to read it.
const SMALL: u64 = 64 << 10;
const TOGETHER: usize = 128;

/// When so many tensors can't be read, the rest is not tried. Each of them costs more than to read a sound one.
const MOST_FAILURES: usize = 50_000;
/// The same, when what is said of them has so many bytes.
const MOST_TEXT: usize = 64 << 20;
/// So many are told in text; the JSON has all of them.
const TOLD: usize = 1_000;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    tensors: Hashed<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    untried: Option<usize>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    errors: &'a Map<String, Json>,
    /// Of the whole checkpoint.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    damage: &'a [String],
    /// Whether nothing was checked before it was read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_verify: bool,
}

type Sha256 = [u8; 32];

/// Tensors with their digests, by key. They become JSON while they are written.
struct Hashed<'a>(&'a [(&'a TensorHandle, Sha256)]);

impl Serialize for Hashed<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().map(|(t, sha256)| {
            let (dtype, shape) = (t.dtype().name(), t.shape().to_vec());
            let entry = json!({ "dtype": dtype, "shape": shape, "sha256": hex(sha256) });
            (t.key(), entry)
        }))
    }
}

/// A block of a tensor; `None` or an error after the last one.
type Read = Result<Option<Tensor>, reshard::Error>;

pub(crate) fn run(program: &Program, args: &Digest, io: &mut Io<'_>) -> Result<u8> {
    let checkpoint = program.open(&args.dir, args.reading.options(), io)?;
    let keys = args.select.keys();
    io.require_tensors(keys, (&args.dir, "digest"), &checkpoint)?;
    // A tensor that is read in one go has its checksums checked by that; larger ones are read in blocks, of which none is a
    // whole item.
    let before = || items_before(&checkpoint, keys, |t| t.nbytes() > BLOCK);
    let before = (!args.no_verify).then(before);
    let cost = |reads: &Reads<'_>| reads.blocks_after(before.as_ref(), keys, |_| BLOCK);
    if let Some(code) = cost::tell(&[(&checkpoint, &cost)], (args.dry_run, &args.reading), io)? {
        return Ok(code);
    }
    let snapshot = wait(Snapshot::of(&checkpoint));
    let doubts = Doubts::of(&checkpoint, before.as_ref(), keys, io)?;
    let mut doubts = doubts.of_tensors(&checkpoint);
    let mut code = doubts.exit_code();
    let is_sound = |t: &TensorHandle| !doubts.keys.contains_key(t.key());
    let sound: Vec<TensorHandle> = keys.tensors(&checkpoint).filter(is_sound).collect();
    let mut tensors = Vec::new();
    let mut errors: Map<String, Json> = Map::new();
    for (key, (what, _)) in std::mem::take(&mut doubts.keys) {
        errors.insert(key, what.into());
    }
    let bytes = units::sum(sound.iter().map(|t| t.nbytes()));
    let bar = io.bar("digesting", bytes);
    let out = &mut *io.out;
    let (mut failures, mut text) = (0, 0);
    let untried = hash_all(&sound, &bar, |t, hash| {
        match hash {
            Ok(sha256) if args.reading.json => tensors.push((t, sha256)),
            Ok(sha256) => {
                let sha256 = hex(&sha256);
                bar.suspend(|| writeln!(out, "{sha256}  {}", shown(t.key())))?;
            }
            Err(e) => {
                let e = CliError::from(e);
                code = worse(code, e.exit_code());
                let what = e.text();
                failures += 1;
                text += what.len();
                errors.insert(t.key().into(), what.into());
            }
        }
        Ok(failures < MOST_FAILURES && text < MOST_TEXT)
    })?;
    bar.finish_and_clear();
    wait(snapshot.check())?;
    if args.reading.json {
        let report = Report {
            schema: 1,
            tensors: Hashed(&tensors),
            untried: (untried > 0).then_some(untried),
            errors: &errors,
            damage: &doubts.whole,
            no_verify: args.no_verify,
        };
        json::write_about(io.out, &[&checkpoint], &report)?;
    }
    io.out.flush()?;
    doubts.note_whole(io);
    io.note_unverified(args.no_verify);
    let Some(what) = tell_failures(&errors, untried, io)? else {
        return Ok(code);
    };
    let hint = format!(
        "`reshard verify {}` lists everything that can't be read, and why",
        args.dir
    );
    let failed = CliError::Told { what, hint, code };
    if !args.reading.json {
        return Err(failed);
    }
    // The JSON says it already, and there is one of it.
    io.error(&failed);
    Ok(code)
}

/// Tells all failures but the first, which it returns.
fn tell_failures(
    errors: &Map<String, Json>,
    untried: usize,
    io: &mut Io<'_>,
) -> Result<Option<String>> {
    let told = |(key, what): (&String, &Json)| {
        format!("no digest of {key}: {}", what.as_str().unwrap_or_default())
    };
    let mut all = errors.iter().map(told);
    let Some(first) = all.next() else {
        return Ok(None);
    };
    io.notes(TOLD, all, |more| {
        format!("no digest of {} more", units::some(more, "tensor"))
    });
    if untried > 0 {
        let untried = units::some(untried as u64, "tensor");
        io.note(format!(
            "{untried} not tried, because so many others can't be read"
        ));
    }
    Ok(Some(first))
}

/// Hashes tensors one after the other, while the next block is read. `each` gets the outcome of each tensor, and returns whether to
/// go on. Returns how many were not tried.
fn hash_all<'t>(
    tensors: &'t [TensorHandle],
    bar: &ProgressBar,
    mut each: impl FnMut(&'t TensorHandle, Result<Sha256, reshard::Error>) -> Result<bool>,
) -> Result<usize> {
    let stopped = |_| CliError::told("the reading thread stopped", "please report this");
    thread::scope(|scope| {
        // The channel holds one message, so at most a few blocks are in memory: in the hash, in the channel, and being read.
        let (send, receive) = mpsc::sync_channel(1);
        let reading = thread::Builder::new().spawn_scoped(scope, move || {
            tensors
                .chunk_by(are_small)
                .flat_map(|run| run.chunks(TOGETHER))
                // An error of `send` means that nobody listens any more.
                .try_for_each(|run| match run {
                    [one] => read(one).try_for_each(|block| send.send(vec![block])),
                    several => send.send(read_together(several)),
                })
        });
        reading.map_err(|source| CliError::Io {
            what: "the thread that reads can't be started",
            source,
        })?;

        // The thread reads in the order of `tensors`, so what it sends always belongs to the first one that is left.
        let (mut left, mut hasher) = (tensors.iter(), sha2::Sha256::new());
        while left.len() > 0 {
            for block in receive.recv().map_err(stopped)? {
                let hash = match block {
                    Ok(Some(block)) => {
                        hash(&mut hasher, &block);
                        bar.inc(block.nbytes());
                        continue;
                    }
                    Ok(None) => Ok(hasher.finalize_reset().into()),
                    Err(e) => {
                        hasher.reset();
                        Err(e)
                    }
                };
                if let Some(t) = left.next()
                    && !each(t, hash)?
                {
                    return Ok(left.len());
                }
            }
        }
        Ok(0)
    })
}

fn are_small(one: &TensorHandle, next: &TensorHandle) -> bool {
    one.nbytes().max(next.nbytes()) <= SMALL
}

/// Reads all of a tensor, up to the first error.
fn read(t: &TensorHandle) -> impl Iterator<Item = Read> {
    let blocks = t.blocks(BLOCK).map(|region| t.read(region).map(Some));
    let mut blocks = Some(blocks.chain([Ok(None)]));
    std::iter::from_fn(move || {
        let read = blocks.as_mut()?.next()?;
        // What lies behind an error isn't read.
        blocks = blocks.take().filter(|_| read.is_ok());
        Some(read)
    })
}

/// Reads tensors that are no larger than a block, on I/O threads: what is awaited there needs no other thread.
fn read_together(tensors: &[TensorHandle]) -> Vec<Read> {
    let some = |some: &[TensorHandle]| {
        let some = some.to_vec();
        move || some.iter().flat_map(read).collect::<Vec<_>>()
    };
    let tasks = tensors.chunks(TOGETHER.div_ceil(2)).map(some);
    match wait(run_blocking(tasks)) {
        Ok(all) => all.into_iter().flatten().collect(),
        // A task that panics; each of them tells what it can.
        Err(_) => tensors.iter().flat_map(read).collect(),
    }
}
