//! Ctrl-C during the demo and conversions: prints what is left, and how to remove it or to resume, before the process ends.

use crate::table::{BOLD, shown};
use signal_hook::{
    consts::SIGINT,
    iterator::{Handle, Signals},
    low_level::exit,
};
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// The exit code after Ctrl-C, which shells use for a program that it ends.
const INTERRUPTED: i32 = 130;

/// Where a command writes.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Below a temporary directory.
    Temporary(PathBuf),
    /// Where the user said.
    Chosen(String),
    /// The destination of a conversion.
    Conversion(Destination),
}

/// The destination of a conversion.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) dst: String,
    pub(crate) overwrite: bool,
    pub(crate) resume: bool,
    /// Whether it has begun to write.
    pub(crate) is_writing: Arc<AtomicBool>,
}

impl Destination {
    fn left(&self) -> String {
        let Self { dst, .. } = self;
        let named = shell(dst);
        if !self.is_writing.load(Ordering::Relaxed) {
            return "nothing has been written".into();
        }
        let resume = match self.resume {
            true => "go on:      the same command",
            false => "go on:      the same command with --resume",
        };
        let remove = format!("remove it:  reshard prune --older-than 0s {named}");
        let is_there = Path::new(dst).exists();
        let whole = match (is_there, self.overwrite) {
            (true, false) => {
                return format!(
                    "{named} is complete, and stays\ncheck it:   reshard verify {named}"
                );
            }
            (true, true) => format!("{named} is whole: the old checkpoint, or the new one; "),
            (false, _) => format!("no checkpoint is at {named} yet; "),
        };
        let written = match dst.contains("://") && !dst.starts_with("file://") {
            true => {
                "what was written is in a folder of its own below it, and parts of unfinished uploads stay until a lifecycle rule of the bucket removes them"
            }
            false => "what was written is hidden beside it",
        };
        format!("{whole}{written}\n{resume}\n{remove}")
    }
}

impl Place {
    /// What is said when the command is interrupted.
    fn left(&self) -> String {
        match self {
            Self::Temporary(dir) => {
                let dir = shell(&dir.display().to_string());
                format!("what was written lies in {dir}\nremove it:  rm -r {dir}")
            }
            Self::Conversion(destination) => destination.left(),
            Self::Chosen(dir) => {
                let named = shell(dir);
                match Path::new(dir).exists() {
                    true => {
                        format!(
                            "the checkpoint {named} is whole, and stays\nremove it:  rm -r {named}"
                        )
                    }
                    false => format!(
                        "nothing lies at {named}; what the save has written lies hidden beside it\nremove it:  reshard prune --older-than 0s {named}"
                    ),
                }
            }
        }
    }
}

/// A path as a shell takes it.
fn shell(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    match !path.is_empty() && path.chars().all(plain) {
        true => path.into(),
        false => format!("'{}'", shown(path).replace('\'', r"'\''")),
    }
}

/// Waits for Ctrl-C on a thread of its own, until it is dropped.
pub(crate) struct Listener {
    signals: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts the thread. If that fails, Ctrl-C ends the process as usual.
    pub(crate) fn start(place: Place) -> io::Result<Self> {
        let mut pressed = Signals::new([SIGINT])?;
        let signals = pressed.handle();
        let listen = move || {
            if pressed.forever().next().is_some() {
                end(&place);
            }
        };
        let thread = Some(thread::Builder::new().spawn(listen)?);
        Ok(Self { signals, thread })
    }
}

/// Says what is left, and ends the process.
fn end(place: &Place) {
    let mut err = anstream::AutoStream::auto(io::stderr());
    // The line before it may have a bar.
    writeln!(err, "\r\x1b[K{BOLD}interrupted:{BOLD:#} {}", place.left()).unwrap_or(());
    exit(INTERRUPTED);
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_named_with_the_command_that_removes_it() {
        let home = tempfile::tempdir().unwrap();
        let said = Place::Temporary(home.path().into()).left();
        assert!(
            said.ends_with(&format!("rm -r {}", home.path().display())),
            "{said}"
        );

        let dir = home.path().join("of me").display().to_string();
        let place = Place::Chosen(dir.clone());
        let said = place.left();
        assert!(said.starts_with("nothing lies at '"), "{said}");
        assert!(
            said.ends_with(&format!("reshard prune --older-than 0s '{dir}'")),
            "{said}"
        );
        std::fs::create_dir(&dir).unwrap();
        assert!(place.left().ends_with(&format!("rm -r '{dir}'")));
    }

    #[test]
    fn a_conversion_says_how_to_go_on_and_what_is_whole() {
        let home = tempfile::tempdir().unwrap();
        let to = Destination {
            dst: home.path().join("to").display().to_string(),
            overwrite: false,
            resume: false,
            is_writing: Arc::default(),
        };
        assert_eq!(to.left(), "nothing has been written");
        to.is_writing.store(true, Ordering::Relaxed);
        let said = to.left();
        assert!(said.starts_with("no checkpoint is at "), "{said}");
        assert!(said.contains("the same command with --resume"), "{said}");
        std::fs::create_dir(&to.dst).unwrap();
        assert!(to.left().contains("is complete, and stays"));
        let over = Destination {
            overwrite: true,
            resume: true,
            ..to
        };
        let said = over.left();
        assert!(
            said.contains("the old checkpoint, or the new one"),
            "{said}"
        );
        assert!(said.contains("the same command\n"), "{said}");
    }
}
