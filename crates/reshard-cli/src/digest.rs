//! `reshard digest`.

use crate::{
    args::Digest,
    cost::{self, Reads},
    error::{CliError, Result, worse},
    findings::{Doubts, items_before},
    io::Io,
    json,
    program::Program,
    table::shown,
    units,
};
use reshard::{
    Tensor,
    blocking::TensorHandle,
    storage::{run_blocking, wait},
    strategy::hex,
};
use reshard_convert::Snapshot;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json};
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
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<&'a Map<String, Json>>,
    /// Of the whole checkpoint.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    damage: &'a [String],
    /// Whether nothing was checked before it was read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_verify: bool,
}

type Sha256 = [u8; 32];

/// Tensors with their digests, by key. They become JSON while they are written.
struct Hashed<'a>(&'a [(&'a TensorHandle, Sha256)]);

impl<'a> Serialize for Hashed<'a> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry<'a> {
            dtype: &'a str,
            shape: &'a [u64],
            sha256: String,
        }
        let entry = |(t, sha256): &(&'a TensorHandle, Sha256)| {
            let entry = Entry {
                dtype: t.dtype().name(),
                shape: t.shape(),
                sha256: hex(sha256),
            };
            (t.key(), entry)
        };
        s.collect_map(self.0.iter().map(entry))
    }
}

/// What the reading thread hands over.
enum Read {
    Block(Tensor),
    End,
    Failed(reshard::Error),
    /// Small tensors; those without elements are `None`.
    Together(Vec<Result<Option<Tensor>, reshard::Error>>),
}

pub(crate) fn run(program: &Program, args: &Digest, io: &mut Io<'_>) -> Result<u8> {
    let checkpoint = program.open(&args.dir, args.reading.options(), io)?;
    let keys = args.select.keys();
    let chosen: Vec<TensorHandle> = checkpoint.tensors().filter(|t| keys.has(t.key())).collect();
    let producer = checkpoint.producer();
    let unknown = producer.unknown.keys().chain(producer.damaged.keys());
    let unknown = unknown.map(String::as_str);
    let stored = checkpoint.metadata();
    let tensors = stored.tensors().map(|t| t.key());
    let about = (&*args.dir, "digest");
    io.require_tensors(keys, about, tensors.chain(unknown), checkpoint.objects())?;
    // A tensor that is read in one go has its checksums checked by that; larger ones are read in blocks, of which none is a
    // whole item.
    let before = || items_before(&checkpoint, keys, |t| t.nbytes() > BLOCK);
    let before = (!args.no_verify).then(before);
    let cost = |reads: &Reads<'_>| reads.blocks_after(before.as_ref(), keys, |_| BLOCK);
    if let Some(code) = cost::tell(&[(&checkpoint, &cost)], (args.dry_run, args.json), io)? {
        return Ok(code);
    }
    let snapshot = wait(Snapshot::of(&checkpoint));
    let doubts = Doubts::of(&checkpoint, before.as_ref(), keys, io)?;
    let mut doubts = doubts.of_tensors(&checkpoint);
    let mut code = doubts.exit_code();
    let mut sound = chosen;
    sound.retain(|t| !doubts.keys.contains_key(t.key()));
    let mut tensors = Vec::new();
    let mut errors: Map<String, Json> = Map::new();
    for (key, (what, _)) in std::mem::take(&mut doubts.keys) {
        errors.insert(key, what.into());
    }
    let bar = io.bar(
        "digesting",
        sound
            .iter()
            .map(|t| t.nbytes())
            .fold(0, u64::saturating_add),
    );
    let out = &mut *io.out;
    let (mut failures, mut text) = (0, 0);
    let untried = hash_all(&sound, |t, hash, step| {
        bar.inc(step);
        match hash {
            None => {}
            Some(Ok(sha256)) if args.json => tensors.push((t, sha256)),
            Some(Ok(sha256)) => {
                let sha256 = hex(&sha256);
                bar.suspend(|| writeln!(out, "{sha256}  {}", shown(t.key())))?;
            }
            Some(Err(e)) => {
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
    if args.json {
        let report = Report {
            schema: 1,
            tensors: Hashed(&tensors),
            untried: (untried > 0).then_some(untried),
            errors: (!errors.is_empty()).then_some(&errors),
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
    if !args.json {
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
    for failure in all.take(TOLD) {
        io.note(failure);
    }
    let left_out = errors.len().saturating_sub(1 + TOLD);
    if left_out > 0 {
        io.note(format!(
            "no digest of {} more",
            units::some(left_out as u64, "tensor")
        ));
    }
    if untried > 0 {
        let untried = units::some(untried as u64, "tensor");
        io.note(format!(
            "{untried} not tried, because so many others can't be read"
        ));
    }
    Ok(Some(first))
}

/// Hashes tensors one after the other, while the next block is read. `each` is told of every block's bytes, and of each
/// tensor's outcome, and says whether to go on. Returns how many were not tried.
fn hash_all<'t>(
    tensors: &'t [TensorHandle],
    mut each: impl FnMut(&'t TensorHandle, Option<Result<Sha256, reshard::Error>>, u64) -> Result<bool>,
) -> Result<usize> {
    let stopped = || CliError::told("the reading thread stopped", "please report this");
    thread::scope(|scope| {
        // The channel holds one block, so at most a few are in memory: in the hash, in the channel, and being read.
        let (send, receive) = mpsc::sync_channel(1);
        let reading = thread::Builder::new().spawn_scoped(scope, move || {
            tensors
                .chunk_by(are_small)
                .flat_map(|run| run.chunks(TOGETHER))
                .try_for_each(|run| match run {
                    [one] => read(one, &send),
                    several => send.send(read_together(several)),
                })
        });
        reading.map_err(|source| CliError::Io {
            what: "the thread that reads can't be started",
            source,
        })?;

        // The thread reads in the order of `tensors`, so its messages always belong to the first one that is left.
        let mut left = tensors.iter();
        while let Some(t) = left.as_slice().first() {
            let mut hasher = sha2::Sha256::new();
            let outcome = loop {
                match receive.recv() {
                    Ok(Read::Block(block)) => {
                        hash(&mut hasher, &block);
                        each(t, None, block.nbytes())?;
                    }
                    Ok(Read::End) => break Some(Ok(hasher.finalize().into())),
                    Ok(Read::Failed(e)) => break Some(Err(e)),
                    // Small tensors come whole and several at once. They bring their outcomes with them.
                    Ok(Read::Together(all)) => {
                        for read in all {
                            let Some(t) = left.next() else { break };
                            let bytes = read
                                .as_ref()
                                .map_or(0, |t| t.as_ref().map_or(0, |t| t.nbytes()));
                            let digest = |t: Option<Tensor>| {
                                let mut hasher = sha2::Sha256::new();
                                t.iter().for_each(|t| hash(&mut hasher, t));
                                hasher.finalize().into()
                            };
                            if !each(t, Some(read.map(digest)), bytes)? {
                                return Ok(left.len());
                            }
                        }
                        break None;
                    }
                    Err(_) => return Err(stopped()),
                }
            };

            if let Some(outcome) = outcome {
                left.next();
                if !each(t, Some(outcome), 0)? {
                    break;
                }
            }
        }
        Ok(left.len())
    })
}

fn are_small(one: &TensorHandle, next: &TensorHandle) -> bool {
    one.nbytes().max(next.nbytes()) <= SMALL
}

fn hash(hasher: &mut sha2::Sha256, tensor: &Tensor) {
    tensor.blocks(1 << 20).for_each(|b| hasher.update(&b));
}

/// Reads all of a tensor. An error of `send` means that nobody listens any more.
fn read(t: &TensorHandle, send: &mpsc::SyncSender<Read>) -> Result<(), mpsc::SendError<Read>> {
    for region in t.blocks(BLOCK) {
        match t.read(region) {
            Ok(block) => send.send(Read::Block(block))?,
            Err(e) => return send.send(Read::Failed(e)),
        }
    }
    send.send(Read::End)
}

/// Reads tensors that are no larger than a block, on I/O threads: what is awaited there needs no other thread.
fn read_together(tensors: &[TensorHandle]) -> Read {
    let some = |some: &[TensorHandle]| {
        let some = some.to_vec();
        move || some.iter().map(whole).collect::<Vec<_>>()
    };
    let tasks = tensors.chunks(TOGETHER.div_ceil(2)).map(some);
    match wait(run_blocking(tasks)) {
        Ok(all) => Read::Together(all.into_iter().flatten().collect()),
        // A task that panics; each of them tells what it can.
        Err(_) => Read::Together(tensors.iter().map(whole).collect()),
    }
}

fn whole(t: &TensorHandle) -> Result<Option<Tensor>, reshard::Error> {
    t.blocks(BLOCK)
        .next()
        .map(|region| t.read(region))
        .transpose()
}
