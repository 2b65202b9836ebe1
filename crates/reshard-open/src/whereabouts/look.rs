//! Looks what lies at a path of this machine: a file of a checkpoint, a folder of some, something of another program.

use super::Whereabouts;
use crate::{place::place_text, sidecar::SIDECAR};
use reshard_megatron::{COMMON, INTEGRITY, METADATA_JSON};
use reshard_storage::shown_path;
use reshard_strategy::{FormatInfo, OwnFile, first};
use std::{
    fs,
    io::{ErrorKind, Read as _},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

/// Directories that are looked at, and checkpoints that are named.
const LOOKED_AT: usize = 10_000;
const NAMED: usize = 5;
/// How deep checkpoints are looked for: `runs/one/checkpoints/iter_0000010`.
const DEPTH: usize = 4;

/// What lies at a path that is no checkpoint, and what to do. Files of torch_dist, which `of` describes, are known by their names. `None` when there is no more to say than the error did.
pub(super) fn explain(named: &str, path: &Path, of: &FormatInfo) -> Option<Whereabouts> {
    let told = |what: String, hint: &str| Some(Whereabouts::new(what, hint));

    // A link that leads nowhere looks like nothing to whoever follows it, so it is told apart first.
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(_) if fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink()) => {
            let to = fs::read_link(path)
                .map(|to| shown_path(&to))
                .unwrap_or_default();
            return told(
                format!("{named} is a link to {to}, and nothing can be found there"),
                "point the link to a checkpoint, or name a checkpoint",
            );
        }
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            let near = path
                .parent()
                .map(|p| Checkpoints::below(p, 1))
                .unwrap_or_default();
            return match near.found.first() {
                Some(first) => {
                    let what = format!("nothing lies at {named}; beside it lie {}", near.names());
                    Some(Whereabouts::new(what, ONE_OF_THEM).with_instead(first))
                }
                None => told(format!("nothing lies at {named}"), "check the path"),
            };
        }
        Err(_) => return None,
    };
    if !meta.is_dir() {
        return Some(file(named, path, &meta, of));
    }
    // Of the rest of a checkpoint the error itself says what it lacks.
    if fs::read_dir(path).ok()?.flatten().any(|e| {
        e.file_name()
            .to_str()
            .is_some_and(|name| is_of_one(of, name))
    }) {
        return None;
    }

    // People often name the folder of a run in place of a checkpoint in it.
    let below = Checkpoints::below(path, DEPTH);
    if let Some(first) = below.found.first() {
        let what = format!(
            "{named} is not a checkpoint, but holds some: {}",
            below.names()
        );
        return Some(Whereabouts::of_folder(what, first, below.latest));
    }
    let has_safetensors = fs::read_dir(path)
        .ok()?
        .take(LOOKED_AT)
        .flatten()
        .any(|e| e.path().extension().is_some_and(|end| end == "safetensors"));
    has_safetensors.then(|| {
        Whereabouts::new(
            format!("{named} holds safetensors files, and no checkpoint"),
            LINK,
        )
    })
}

/// What is said behind the name of a file that may be anything.
pub(super) const PLAIN_FILE: &str = " is a file, and no checkpoint";

pub(super) const ONE_OF_THEM: &str = "name one of them";
const DIRECTORY: &str = "name the directory";
const LINK: &str =
    "link its format into this program: enable the feature `safetensors` of `reshard`";

/// What a file is, and what to name instead.
fn file(named: &str, path: &Path, meta: &fs::Metadata, of: &FormatInfo) -> Whereabouts {
    let told = |kind: &str, hint: &str| {
        Whereabouts::new(format!("{named} is {kind}, and no checkpoint"), hint)
    };
    let kind = meta.file_type();

    // Pipes and devices come first, since opening one could block.
    if !kind.is_file() {
        let kind = match () {
            () if kind.is_fifo() => "a named pipe",
            () if kind.is_socket() => "a socket",
            () => "a device",
        };
        return told(kind, "check the path");
    }
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
        let what = "a file whose name is not UTF-8, which no file of a checkpoint may have";
        return Whereabouts::new(format!("{named} is {what}"), "rename the file");
    };
    let parent = path.parent().unwrap_or(Path::new("/"));
    let of_checkpoint = |kind: &str| told(kind, DIRECTORY).with_instead(parent);

    // Names that only checkpoints have count before names that others have, too.
    match of.own_file(name) {
        Some(OwnFile::Record) => return of_checkpoint("the metadata of a checkpoint"),
        Some(_) => return of_checkpoint("a data file of a checkpoint"),
        None => {}
    }
    match () {
        () if name == SIDECAR || (is_of_one(of, name) && is_checkpoint(parent)) => {
            of_checkpoint("a file of a checkpoint")
        }
        () if name.ends_with(".index") => {
            let prefix = place_text(path);
            told("the index of a TensorFlow checkpoint", "name its prefix")
                .with_instead(prefix.trim_end_matches(".index"))
        }
        () if name.ends_with(".safetensors") => told("a safetensors file", LINK).unsure(),
        () => Whereabouts::new(
            format!("{named}{PLAIN_FILE}"),
            "name the directory of a checkpoint",
        )
        .unsure(),
    }
}

/// Whether files of checkpoints have such a name.
fn is_of_one(of: &FormatInfo, name: &str) -> bool {
    of.own_file(name).is_some() || [COMMON, INTEGRITY, METADATA_JSON].contains(&name)
}

fn is_checkpoint(dir: &Path) -> bool {
    [".metadata", "__0.metadata"].iter().any(|f| dir.join(f).is_file())
        // Many programs have a metadata.json; Megatron Core has a common.pt beside it, or a .metadata.
        || (dir.join(METADATA_JSON).is_file() && dir.join(COMMON).is_file())
}

/// Checkpoints below a directory, the latest first.
#[derive(Default)]
struct Checkpoints {
    found: Vec<PathBuf>,
    /// Their names from that directory.
    names: Vec<String>,
    /// The first one is what Megatron calls the latest.
    latest: bool,
}

impl Checkpoints {
    /// As near to the top as there are some.
    fn below(dir: &Path, depth: usize) -> Self {
        let mut level = vec![dir.to_path_buf()];
        let mut looked_at = 0;
        for _ in 0..depth {
            let mut next = Vec::new();
            'level: for dir in &level {
                for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                    looked_at += 1;
                    if looked_at > LOOKED_AT {
                        break 'level;
                    }
                    let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
                    if !hidden && entry.file_type().is_ok_and(|t| t.is_dir()) {
                        next.push(entry.path());
                    }
                }
            }
            let found: Vec<PathBuf> = next.iter().filter(|d| is_checkpoint(d)).cloned().collect();
            if !found.is_empty() {
                return Self::sorted(dir, found);
            }
            level = next;
        }
        Self::default()
    }

    fn sorted(dir: &Path, mut found: Vec<PathBuf>) -> Self {
        let latest = latest(dir);
        let name = |p: &Path| shown_path(p.strip_prefix(dir).unwrap_or(p));
        // By what stands before the number, so that the list is in the order of the alphabet. Steps count up: of one kind of name the highest number comes
        // first, whatever its width.
        found.sort_by_cached_key(|p| {
            let name = name(p);
            let digits = name.trim_end_matches(|c: char| !c.is_ascii_digit());
            let front = digits.trim_end_matches(|c: char| c.is_ascii_digit());
            let number = digits[front.len()..].parse::<u64>().ok();
            let front = if number.is_some() { front } else { &name };
            (
                latest.as_deref() != Some(&name),
                front.to_owned(),
                std::cmp::Reverse(number),
                name,
            )
        });
        let names: Vec<String> = found.iter().map(|p| name(p)).collect();
        Self {
            latest: latest.is_some() && latest.as_ref() == names.first(),
            found,
            names,
        }
    }

    fn names(&self) -> String {
        let mut names = self.names.clone();
        if let (true, Some(latest)) = (self.latest, names.first_mut()) {
            latest.push_str(" (the latest)");
        }
        first(NAMED, names.into_iter())
    }
}

/// The directory that Megatron's tracker names.
fn latest(dir: &Path) -> Option<String> {
    let mut text = String::new();
    let tracker = dir.join("latest_checkpointed_iteration.txt");
    // A named pipe would block.
    fs::metadata(&tracker).ok().filter(fs::Metadata::is_file)?;
    fs::File::open(tracker)
        .ok()?
        .take(64)
        .read_to_string(&mut text)
        .ok()?;
    match text.trim() {
        "release" => Some("release".into()),
        iteration => Some(format!("iter_{:07}", iteration.parse::<u64>().ok()?)),
    }
}
