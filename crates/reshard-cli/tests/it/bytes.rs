//! Paths and names of files that are not UTF-8.

use crate::states;
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Command,
};

fn run(args: &[&OsStr]) -> (Option<i32>, String, String) {
    let ran = Command::new(env!("CARGO_BIN_EXE_reshard"))
        .args(args)
        .output()
        .unwrap();
    let [out, err] = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (ran.status.code(), out, err)
}

fn odd(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(name))
}

#[test]
fn every_command_works_at_a_path_of_any_bytes() {
    let saved = states::dcp_with(&["w"]);
    let dir = Path::new(&saved.url).parent().unwrap().to_path_buf();
    let place = odd(&dir, b"step\xff 1");
    fs::rename(&saved.url, &place).unwrap();
    fs::write(odd(&place, b"note\xfe"), "mine").unwrap();
    let to = odd(&dir, b"to\xfd");
    let file = odd(&dir, b"dir\xfd").join("model.safetensors");
    fs::create_dir(file.parent().unwrap()).unwrap();
    let [place, to, file] = [&place, &to, &file].map(|path| path.as_os_str());
    let arg = OsStr::new;
    for args in [
        &[arg("inspect"), place][..],
        &[arg("ls"), place],
        &[arg("show"), place, arg("model.weight")],
        &[arg("digest"), place],
        &[arg("verify"), place],
        &[arg("stats"), place],
        &[arg("convert"), place, to],
        &[arg("convert"), place, to, arg("--overwrite")],
        &[arg("convert"), place, file, arg("--drop-objects")],
        &[arg("diff"), place, to],
        &[arg("prune"), place],
        &[arg("remove"), place, arg("none"), arg("--dry-run")],
    ] {
        for json in [&[][..], &[arg("--json")]] {
            let args = [args, json].concat();
            let is_again = args[0] == "convert" && !json.is_empty();
            let (code, out, err) = run(&args);
            let may_fail = is_again || args[0] == "remove";
            assert!(code == Some(0) || may_fail, "{args:?}: {err}");
            assert!(
                !out.contains('\u{fffd}') && !err.contains('\u{fffd}'),
                "{out}{err}"
            );
        }
    }
    // Foreign files with such names stay.
    assert!(odd(Path::new(place), b"note\xfe").is_file());
}

#[test]
fn what_can_have_no_such_name_is_refused_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = odd(dir.path(), b"x\xff.safetensors");
    fs::write(&file, "").unwrap();
    let saved = states::dcp_with(&["w"]);
    let (code, _, err) = run(&[OsStr::new("inspect"), file.as_os_str()]);
    assert_eq!(code, Some(3), "{err}");
    assert!(
        err.contains("x%FF.safetensors") && err.contains("not UTF-8"),
        "{err}"
    );

    let missing = odd(dir.path(), b"missing\xff");
    let (code, out, err) = run(&[
        OsStr::new("verify"),
        missing.as_os_str(),
        OsStr::new("--json"),
    ]);
    assert_eq!(code, Some(3), "{err}");
    assert!(out.contains("missing%FF"), "{out}");

    let to = odd(dir.path(), b"y\xff.safetensors");
    let (code, _, err) = run(&[
        OsStr::new("convert"),
        OsStr::new(&saved.url),
        to.as_os_str(),
        OsStr::new("--drop-objects"),
    ]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("y%FF.safetensors"), "{err}");

    let key = OsString::from(OsStr::from_bytes(b"w\xff"));
    for args in [
        &[OsStr::new("show"), OsStr::new(&saved.url), &key][..],
        &[
            OsStr::new("ls"),
            OsStr::new(&saved.url),
            OsStr::new("--key"),
            &key,
        ],
    ] {
        let (code, _, err) = run(args);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(r#""w\xFF" is not UTF-8"#), "{err}");
    }
}
