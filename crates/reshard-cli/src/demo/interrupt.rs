//! Ctrl-C during the demo: prints what is left on the disk, and how to remove it, before the process
//! ends.

use crate::table::{BOLD, shown};
use signal_hook::{
    consts::SIGINT,
    iterator::{Handle, Signals},
    low_level::emulate_default_handler,
};
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

/// Where the demo writes.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Below a temporary directory.
    Temporary(PathBuf),
    /// Where the user said.
    Chosen(String),
}

impl Place {
    /// What is said when the demo is interrupted.
    fn left(&self) -> String {
        match self {
            Self::Temporary(dir) => {
                let dir = shell(&dir.display().to_string());
                format!("what was written lies in {dir}\nremove it:  rm -r {dir}")
            }
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
pub(super) struct Listener {
    signals: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts the thread. If that fails, Ctrl-C ends the process as usual.
    pub(super) fn start(place: Place) -> io::Result<Self> {
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

/// Says what is left, and ends the process as the key would have done.
fn end(place: &Place) {
    let mut err = anstream::AutoStream::auto(io::stderr());
    // The line before it may have a bar.
    writeln!(err, "\r\x1b[K{BOLD}interrupted:{BOLD:#} {}", place.left()).unwrap_or(());
    emulate_default_handler(SIGINT).unwrap_or(());
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
}
