//! Ctrl-C during the demo.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
};

/// Presses Ctrl-C. Returns the exit code, and what the program said.
pub(crate) fn interrupted(mut child: Child) -> (Option<i32>, String) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(sent.success());
    let mut err = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut err).unwrap();
    (child.wait().unwrap().code(), err)
}

#[test]
fn ctrl_c_in_the_demo_says_what_is_left_and_how_to_remove_it() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step").display().to_string();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_reshard"))
        .args(["demo", "--size", "300MB", "--dir", &dir])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It listens before it says what it will do. Then it makes the state, which takes a while.
    let mut out = BufReader::new(demo.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    let (code, err) = interrupted(demo);
    assert_eq!(code, Some(130), "{err}");
    assert!(err.contains("interrupted:"), "{err}");
    assert!(
        err.contains(&format!("reshard prune --older-than 0s {dir}"))
            || err.contains(&format!("rm -r {dir}")),
        "{err}"
    );
}
