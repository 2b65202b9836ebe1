//! `reshard digest`.

use crate::{
    args::Digest,
    error::{CliError, DAMAGED, FAILED, OK, Result, worse},
    findings,
    io::Io,
    json::{self, hex},
    program::Program,
    table::shown,
};
use reshard::{Tensor, blocking::TensorHandle};
use serde_json::{Map, Value as Json, json};
use sha2::Digest as _;
use std::{collections::BTreeMap, sync::mpsc, thread};

/// Read at once at most, in bytes. Three of them are in memory: one read, one waiting, one hashed.
const BLOCK: u64 = 8 << 20;

/// What the reading thread hands over.
enum Read {
    Block(Tensor),
    End,
    Failed(reshard::Error),
}

pub(crate) fn run(program: &Program, args: &Digest, io: &mut Io<'_>) -> Result<u8> {
    let checkpoint = program.open(&args.dir, args.reading.options())?;
    let keys = args.select.keys();
    let chosen: Vec<TensorHandle> = checkpoint.tensors().filter(|t| keys.has(t.key())).collect();
    let producer = checkpoint.producer();
    let unknown = producer.unknown.keys().map(String::as_str);
    io.note_idle(keys, &args.dir, checkpoint.metadata().tensors().map(|t| t.key()).chain(unknown));
    let flattened = producer.as_stored.len();
    if flattened > 0 {
        io.note(format!(
            "{flattened} tensors are stored flattened, chunk by chunk; their digests are of what is stored"
        ));
    }
    // A tensor that is read in one go has its checksums checked by that; larger ones are read in blocks, of which none is a
    // whole item.
    let mut damage: BTreeMap<String, String> = BTreeMap::new();
    if !args.no_verify && chosen.iter().any(|t| t.nbytes() > BLOCK) {
        let report = findings::check(&checkpoint, true, io)?;
        for d in findings::concerning(&report.damage, keys) {
            if let Some(key) = &d.key {
                damage.entry(key.clone()).or_insert_with(|| findings::below_key(d));
            }
        }
    }
    let (sound, damaged): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|t| !damage.contains_key(t.key()));
    let mut tensors = Map::new();
    let mut errors: Map<String, Json> = Map::new();
    for t in damaged {
        let what = damage.remove(t.key()).unwrap_or_default();
        errors.insert(t.key().into(), what.into());
    }
    let mut code = if errors.is_empty() { OK } else { DAMAGED };
    for (key, what) in producer.unknown.into_iter().filter(|(k, _)| keys.has(k)) {
        errors.insert(key, format!("not understood: {what}").into());
        code = worse(code, FAILED);
    }
    let bar = io.bar("digesting", sound.iter().map(|t| t.nbytes()).fold(0, u64::saturating_add));
    let out = &mut *io.out;
    hash_all(&sound, |t, hash, step| {
        bar.inc(step);
        match hash {
            None => {}
            Some(Ok(sha256)) if args.json => {
                let entry = json!({ "dtype": t.dtype().name(), "shape": &**t.shape(), "sha256": sha256 });
                tensors.insert(t.key().into(), entry);
            }
            Some(Ok(sha256)) => bar.suspend(|| writeln!(out, "{sha256}  {}", shown(t.key())))?,
            Some(Err(e)) => {
                let e = CliError::from(e);
                code = worse(code, e.exit_code());
                errors.insert(t.key().into(), e.text().into());
            }
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    if args.json {
        let mut report = json!({ "schema": 1, "tensors": tensors });
        if !errors.is_empty() {
            report["errors"] = Json::Object(errors.clone());
        }
        json::write(io.out, &report)?;
    }
    if let Some((key, what)) = errors.iter().next() {
        io.out.flush()?;
        for (key, what) in errors.iter().skip(1) {
            io.note(format!("no digest of {key}: {}", what.as_str().unwrap_or_default()));
        }
        let what = format!("no digest of {key}: {}", what.as_str().unwrap_or_default());
        let hint = format!("`reshard verify {}` lists all that is wrong, or can't be read", args.dir);
        let failed = CliError::Told { what, hint, code };
        if !args.json {
            return Err(failed);
        }
        // The JSON says it already, and there is one of it.
        io.error(&failed);
    }
    Ok(code)
}

/// Hashes tensors one after the other, while the next block is read. `each` is told of every block's bytes, and of each
/// tensor's outcome.
fn hash_all(
    tensors: &[TensorHandle],
    mut each: impl FnMut(&TensorHandle, Option<Result<String, reshard::Error>>, u64) -> Result<()>,
) -> Result<()> {
    thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(1);
        scope.spawn(move || tensors.iter().try_for_each(|t| read(t, &send)));
        for t in tensors {
            let mut hasher = sha2::Sha256::new();
            let outcome = loop {
                match receive.recv() {
                    Ok(Read::Block(block)) => {
                        block.blocks(1 << 20).for_each(|b| hasher.update(&b));
                        each(t, None, block.nbytes())?;
                    }
                    Ok(Read::End) => break Ok(hex(&hasher.finalize())),
                    Ok(Read::Failed(e)) => break Err(e),
                    Err(_) => return Err(CliError::told("the reading thread stopped", "please report this")),
                }
            };
            each(t, Some(outcome), 0)?;
        }
        Ok(())
    })
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
