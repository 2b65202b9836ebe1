//! The tracker file, in which Megatron-LM names the checkpoint that a training starts from.

use crate::{
    args::Convert,
    error::{CliError, Result},
    io::Io,
};
use reshard::{Dialect, storage::LocalStore};
use reshard_manager::StepPattern;
use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
};

const NAME: &str = "latest_checkpointed_iteration.txt";

/// A tracker file holds a number, or `release`.
const MAX_BYTES: u64 = 64;

/// Writes the tracker file beside a checkpoint that `--dialect megatron` has written as `release` or `iter_0000000`, unless there is one.
/// Returns its path if it names the checkpoint, or would after a dry run.
///
/// # Errors
/// The file can't be read or written.
pub(crate) fn write(args: &Convert, io: &mut Io<'_>) -> Result<Option<PathBuf>> {
    if args.dialect != Some(Dialect::Megatron) {
        return Ok(None);
    }
    let dst = args.dst.trim_end_matches('/');
    let Some(text) = text(dst)? else {
        if args.mapping.inverse {
            io.note(format!(
                "Megatron-LM's training looks for RUN/release or RUN/iter_0001000, which {NAME} names; a DST of such a name gets that file, too"
            ));
        }
        return Ok(None);
    };
    let Some(path) = local(dst) else {
        io.note(format!(
            "{NAME} is not written beside {dst}; its text for this checkpoint is {text}"
        ));
        return Ok(None);
    };
    let run = path.parent().filter(|run| !run.as_os_str().is_empty());
    let tracker = run.unwrap_or(Path::new(".")).join(NAME);
    let failed = |e: std::io::Error| {
        let complete = match args.dry_run {
            true => String::new(),
            false => format!("{dst} is complete, but "),
        };
        let what = format!("{complete}{} can't be written: {e}", tracker.display());
        let hint = format!("write a file of this name whose text is {text}");
        CliError::told(what, hint)
    };
    let named = match named(&tracker) {
        Ok(named) => named,
        Err(e) if e.kind() == ErrorKind::NotFound && args.dry_run => text.clone(),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            create(&tracker, &text).map_err(failed)?;
            text.clone()
        }
        Err(e) => return Err(failed(e)),
    };
    if named == text {
        return Ok(Some(tracker));
    }
    io.note(format!(
        "{} says {named:?}, so Megatron-LM does not start from {dst}; replace the text by {text} to start from it",
        tracker.display()
    ));
    Ok(None)
}

/// The text for a folder of this name. `None` if Megatron-LM does not look for it.
fn text(dst: &str) -> Result<Option<String>> {
    let name = dst.rsplit('/').next().unwrap_or(dst);
    if name == "release" {
        return Ok(Some(name.to_owned()));
    }
    let pattern: StepPattern = "iter_{n:07}".parse()?;
    Ok(pattern.number(name).map(|number| number.to_string()))
}

/// The path of a URL on this machine, if it has one.
fn local(url: &str) -> Option<PathBuf> {
    if !url.contains("://") {
        return Some(url.into());
    }
    let store = url
        .starts_with("file://")
        .then(|| LocalStore::open(url).ok())??;
    Some(store.path().to_path_buf())
}

/// What a tracker file says.
fn named(tracker: &Path) -> std::io::Result<String> {
    // Opening a named pipe would block.
    if !fs::metadata(tracker)?.is_file() {
        return Err(std::io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    fs::File::open(tracker)?
        .take(MAX_BYTES)
        .read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

fn create(tracker: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(tracker)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    if written.is_err() {
        // A tracker without text would stop every training.
        fs::remove_file(tracker).unwrap_or(());
    }
    written
}
