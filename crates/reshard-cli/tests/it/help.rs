use crate::{run, run_raw, states};
use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_reshard"))
}

#[test]
fn help_of_each_command_has_an_example_that_parses() {
    for command in [
        "inspect",
        "ls",
        "latest",
        "show",
        "digest",
        "verify",
        "convert",
        "prune",
        "remove",
        "plugins",
        "demo",
        "completions",
        "man",
    ] {
        let ran = run(&[command, "--help"]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let lines: Vec<&str> = ran.out.lines().collect();
        let at = lines.iter().position(|l| l.starts_with("Example")).unwrap();
        assert!(
            lines[at + 1..]
                .iter()
                .any(|l| l.contains(&format!("reshard {command}"))),
            "{}",
            ran.out
        );
    }
    assert!(run(&["--version"]).ok().starts_with("reshard "));
}

/// clap takes `{n}` in a help text for the end of a line.
#[test]
fn no_help_is_broken_where_a_pattern_of_steps_stands() {
    let all = run(&["--help"]).ok();
    let listed = all.split_once("Commands:\n").unwrap().1;
    let listed = listed.lines().take_while(|l| !l.is_empty());
    let commands: Vec<&str> = listed
        .filter_map(|l| l.strip_prefix("  ")?.split(' ').next())
        .filter(|c| !c.is_empty())
        .collect();
    for known in ["ls", "prune", "stats", "demo"] {
        assert!(commands.contains(&known), "{commands:?}");
    }
    for command in commands.iter().filter(|c| **c != "help") {
        for form in ["-h", "--help"] {
            let text = run(&[command, form]).ok();
            for line in text.lines().map(str::trim) {
                let is_lone = line == "`" || line.ends_with(" `") || line.starts_with("` ");
                let is_cut = line.starts_with("`,") || line.ends_with('{');
                assert!(!is_lone && !is_cut, "{command} {form}: {line}\n{text}");
            }
            assert!(!text.contains('\u{2060}'), "{command} {form}: {text:?}");
            let words: Vec<&str> = text.split_whitespace().collect();
            let words = words.join(" ");
            if words.contains("--steps <PATTERN>") {
                assert!(
                    words.contains("so: `{n}` is the number, `{n:07}`"),
                    "{text}"
                );
                assert!(words.contains("By default `step-{n}`, and"), "{text}");
            }
            let has_steps = ["ls", "latest", "prune"].contains(command);
            assert_eq!(words.contains("--steps <PATTERN>"), has_steps, "{command}");
        }
    }
}

#[test]
fn completions_and_manual_pages_name_all_commands_and_options() {
    let help = run(&["--help"]).ok();
    assert!(help.contains("  latest "), "{help}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).ok();
        for word in ["latest", "convert", "max-shard-size"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
        assert!(!script.contains('\u{2060}'), "{shell}");
    }
    let script = run(&["completions", "bash"]).ok();
    let checked = Command::new("bash").args(["-n", "-c", &script]).status();
    assert!(checked.unwrap().success());

    let page = run(&["man"]).ok();
    assert!(page.contains("reshard\\-convert(1)"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    assert_eq!(run(&["man", path]).ok(), "");
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(read("reshard.1"), page);
    let convert = read("reshard-convert.1");
    assert!(convert.contains("reshard convert") && convert.contains("max\\-shard\\-size"));
    assert!(read("reshard-ls.1").contains("`{n}` is the number"));
    let ran = run(&["man", &format!("{path}/nowhere")]);
    assert!(
        ran.code == 2 && ran.err.contains("reshard.1 can't be written"),
        "{}",
        ran.err
    );
}

#[test]
fn a_wrong_command_line_exits_with_2_and_says_what_is_right() {
    for args in [
        &["frobnicate"][..],
        &[],
        &["convert", "a"],
        &["demo", "--size", "much"],
        &["convert", "a", "b", "--ranks", "0"],
    ] {
        let ran = run(args);
        assert!(
            ran.code == 2 && ran.out.is_empty() && ran.err.contains("--help"),
            "{args:?}: {} {}",
            ran.code,
            ran.err
        );
    }
}

/// What moves a cursor, turns text, or is not seen.
const EVIL: &str = "x\u{1b}]0;pwn\u{7}\u{9b}31m\u{202e}\u{e0041}\r\n\u{1b}[31my";

/// Text in which styles are all that there is of escapes.
fn is_harmless(text: &str, what: &str) {
    let bare: String = text
        .replace("\u{1b}[", "\u{0}[")
        .split('\u{0}')
        .map(without_style)
        .collect();
    let steers = |c: char| {
        (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c) || c > '\u{e0000}'
    };
    assert!(!bare.contains(steers), "{what}: {bare:?}");
}

#[test]
fn what_a_wrong_command_line_repeats_can_not_steer_the_terminal() {
    let option = format!("--{EVIL}");
    let value = format!("--ranks={EVIL}");
    let policy = format!(r#"{{"type":"{EVIL}"}}"#);
    let escaped = policy
        .replace('\u{1b}', "\\u001b")
        .replace('\u{7}', "\\u0007")
        .replace("\r\n", "");
    for args in [
        &[EVIL][..],
        &[&option],
        &["inspect", "a", &option],
        &["inspect", "a", EVIL],
        &["inspect", &option],
        &["convert", "a", "b", &value],
        &["convert", "a", "b", "--flavour", EVIL],
        &["convert", "a", "b", "--policy", &policy],
        &["convert", "a", "b", "--policy", &escaped],
        &["convert", "a", "b", "--max-shard-size", EVIL],
        &["convert", "a", "b", "--max-memory", EVIL],
        &["convert", "a", "b", "--format", EVIL],
        &["prune", "a", "--older-than", EVIL],
        &["demo", "--size", EVIL],
    ] {
        // The demo prints no JSON.
        for json in [&[][..], &["--json"]]
            .into_iter()
            .take(if args[0] == "demo" { 1 } else { 2 })
        {
            let ran = run_raw(&[args, json].concat());
            let what = format!("{args:?}");
            assert_eq!(ran.code, 2, "{what}");
            is_harmless(&ran.err, &what);
            is_harmless(&ran.out, &what);
            let plain = anstream::adapter::strip_str(&ran.err).to_string();
            assert!(
                plain.contains("\\u{1b}") || plain.contains("\\u{202e}"),
                "{what}: {plain}"
            );
            assert!(
                !plain.lines().any(|l| l.starts_with('y')),
                "{what}: {plain}"
            );
        }
    }
}

/// A part that follows an escape, without the rest of a style.
fn without_style(part: &str) -> &str {
    let style = part.strip_prefix('[').and_then(|p| p.split_once('m'));
    match style {
        Some((codes, rest)) if codes.bytes().all(|b| b.is_ascii_digit() || b == b';') => rest,
        _ => part,
    }
}

#[test]
fn paths_that_are_printed_can_not_steer_the_terminal() {
    let saved = states::dcp();
    let evil = |name: &str| saved.beside(&format!("{name}{EVIL}"));
    for args in [
        &["convert", &saved.url, &evil("to")][..],
        &["convert", &saved.url, &evil("to")],
        &["inspect", &evil("to")],
        &["verify", &evil("to")],
        &["prune", &evil("to")],
        &["digest", &evil("to")],
        &["ls", &evil("to"), "--key", EVIL],
        &["convert", &evil("to"), &evil("to")],
        &["inspect", &evil("nothing")],
        &["demo", "--size", "1MiB", "--dir", &evil("demo")],
    ] {
        let ran = run_raw(args);
        let what = format!("{args:?}");
        is_harmless(&ran.out, &what);
        is_harmless(&ran.err, &what);
    }
    assert!(
        run(&["convert", &saved.url, &evil("also")])
            .ok()
            .contains("\\u{202e}")
    );
}

// Its layers are linked.
use reshard_parallel as _;

#[test]
fn plugins_tells_crate_and_version_of_all_that_is_linked() {
    let own = env!("CARGO_PKG_VERSION");
    let j = run(&["plugins", "--json"]).json();
    let store =
        serde_json::json!({ "scheme": "file", "crate": "reshard-storage", "crate_version": own });
    assert_eq!(j["schema"], 1);
    // Beside it are those of the places in clouds, if these are there.
    let stores = j["stores"].as_array().unwrap();
    assert!(stores.contains(&store), "{stores:?}");
    let all = j["strategies"].as_array().unwrap();
    let s = all.iter().find(|s| s["backend"] == "torch_dist").unwrap();
    assert_eq!(
        (&s["version"], &s["crate"]),
        (&1.into(), &"reshard-torch-dist".into())
    );
    let rows = ["strategies", "stores"]
        .map(|of| j[of].as_array().unwrap().clone())
        .concat();
    assert!(rows.len() > 4, "{j}");
    for row in &rows {
        assert!(
            row["crate"].as_str().unwrap().starts_with("reshard-") && row["crate_version"] == own,
            "{row}"
        );
    }
    let text = run(&["plugins"]).ok();
    assert!(
        text.contains("save_sharded  torch_dist") && text.contains("file://"),
        "{text}"
    );
    let policies = j["policies"].as_array().unwrap();
    assert!(policies.contains(&"max_shard_size".into()), "{policies:?}");
    assert_eq!(j["layers"]["save"], serde_json::json!(["fully_parallel"]));
    let loads = j["layers"]["load"].as_array().unwrap();
    assert!(loads.contains(&"two_stage".into()), "{loads:?}");
    let (text, layers) = text.split_once("\n\nLAYER           OF\n").unwrap();
    assert!(
        layers.starts_with("fully_parallel  saves\nfully_parallel  loads\n"),
        "{layers}"
    );
    let (text, named) = text.split_once("\n\nPOLICY\n").unwrap();
    assert_eq!(named.lines().count(), policies.len());
    for line in text
        .lines()
        .filter(|l| !l.is_empty() && !l.contains("CRATE"))
    {
        assert!(line.ends_with(&format!(" {own}")), "{line}");
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_told_with_what_may_have_been_meant() {
    let saved = states::megatron();
    for command in ["ls", "inspect", "digest"] {
        let ran = run(&[
            command,
            &saved.url,
            "--key",
            "layer.wieght",
            "--key",
            "norm",
            "--key",
            "zzz",
        ]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.contains("norm"), "{}", ran.out);
        let told: Vec<&str> = ran.err.lines().collect();
        assert_eq!(told.len(), 2, "{}", ran.err);
        assert!(
            told[0].contains("no key matches layer.wieght; did you mean layer.weight"),
            "{}",
            ran.err
        );
        assert!(
            told[1].contains("no key matches zzz; `reshard ls"),
            "{}",
            ran.err
        );
    }
    let ran = run(&[
        "convert",
        &saved.url,
        &saved.beside("copy"),
        "--key",
        "weight",
    ]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("did you mean layer.weight") && ran.err.contains("hint: "),
        "{}",
        ran.err
    );
}

/// A hint that leads nowhere is worse than none.
#[test]
fn hints_are_about_what_went_wrong() {
    let (saved, of_megatron) = (states::dcp(), states::megatron());
    let (dir, to) = (&*saved.url, &*saved.beside("to"));
    let files = &*saved.beside("files");
    run(&[
        "convert",
        dir,
        files,
        "--to",
        "safetensors",
        "--key",
        "model.*",
    ])
    .ok();
    let linked = "`reshard plugins` lists";
    let other = "leave it out";
    let cases: [(&[&str], &str); 7] = [
        (&["inspect", "foo://x"], linked),
        (&["inspect", dir, "--format", "nobody"], linked),
        (&["convert", dir, to, "--to", "nobody"], linked),
        (&["inspect", &of_megatron.url, "--format", "zarr"], other),
        (&["verify", dir, "--dequantize"], other),
        (&["remove", files, "model"], "--key writes a copy"),
        (
            &[
                "convert",
                files,
                to,
                "--to",
                "zarr",
                "--max-shard-size",
                "1MB",
            ],
            "leave out --max-shard-size",
        ),
    ];
    for (args, hint) in cases {
        let ran = run(args);
        let told = ran.err.lines().last().unwrap();
        assert!(ran.code == 2 && told.starts_with("hint: "), "{}", ran.err);
        assert!(told.contains(hint), "{args:?}: {}", ran.err);
        assert_eq!(told.contains(linked), hint == linked, "{args:?}: {told}");
        // What it can't open is a finding of `verify`.
        if args[0] == "verify" {
            continue;
        }
        let json = run(&[args, &["--json"]].concat()).out;
        let kind = if hint == linked {
            "invalid"
        } else {
            "unsupported"
        };
        assert!(json.contains(&format!("{{\"kind\":\"{kind}\"")), "{json}");
    }
    // The message says it all.
    let ran = run(&["remove", dir, "", "--json"]);
    assert!(ran.code == 2 && !ran.err.contains("hint"), "{}", ran.err);
    assert!(ran.out.contains("\"hint\":null"), "{}", ran.out);
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    // More than a pipe holds.
    let mut state = reshard::StateDict::new();
    for i in 0..3000 {
        state.insert(format!("{}.{i}", "a.long.name.of.a.parameter".repeat(4)), i);
    }
    let saved = states::save(&[state], reshard::Dialect::Dcp);
    for args in [&["ls"][..], &["inspect"], &["inspect", "--json"]] {
        let mut child = program()
            .args(args)
            .arg(&saved.url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut one = vec![0];
        std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut one).unwrap();
        let out = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!((out.status.code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn the_demo_checks_every_byte_and_shows_its_acts() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("demo").display().to_string();
    let child = program()
        .args([
            "demo", "--size", "4MiB", "--ranks", "3", "--to", "2", "--dir", &kept,
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    let text: Vec<String> = BufReader::new(&out.stdout[..])
        .lines()
        .map(Result::unwrap)
        .collect();
    let text = text.join("\n");
    let table = text.lines().skip_while(|line| !line.starts_with("PHASE"));
    let phases = table.skip(1).take_while(|line| !line.is_empty());
    let phases: Vec<&str> = phases.filter_map(|l| l.split_whitespace().next()).collect();
    let save = ["build", "save", "plan", "write", "commit", "verify"];
    let load = ["prepare", "load", "plan", "read", "finish", "check"];
    assert_eq!(phases, [save, load].concat(), "{text}");
    assert!(
        text.contains("bytes are right") && !text.contains('\u{1b}'),
        "{text}"
    );
    assert_eq!(run(&["verify", &kept]).code, 0);
    // The example of docs/converting.md: the map takes its numbers from the common state.
    let mapped = dir.path().join("hf").display().to_string();
    let map = ["--map", "hf-llama", "--to", "safetensors", "--drop-objects"];
    let converted = run(&[&["convert", &kept, &mapped], &map[..]].concat());
    assert_eq!(converted.code, 0, "{}", converted.err);
    // Before it builds anything, and without options that it does not have.
    let file = dir.path().join("file").display().to_string();
    std::fs::write(&file, "x").unwrap();
    for taken in [&kept, &file] {
        let again = run(&["demo", "--size", "1MiB", "--dir", taken]);
        let hint = "exists already and is not empty\nhint: choose another --dir, or remove it\n";
        assert!(again.err.ends_with(hint), "{}", again.err);
        assert_eq!((again.code, again.out.as_str()), (2, ""));
    }
}

#[test]
fn a_command_that_fails_prints_its_error_as_json_when_that_is_asked_for() {
    let saved = states::megatron();
    let nowhere = saved.beside("nowhere");
    let unfinished = saved.beside("unfinished");
    std::fs::create_dir(&unfinished).unwrap();
    std::fs::write(format!("{unfinished}/.metadata"), "no pickle").unwrap();
    let cases: [(&[&str], u8, &str); 9] = [
        (&["inspect", &nowhere], 3, "not_a_checkpoint"),
        (&["ls", &nowhere], 3, "not_a_checkpoint"),
        (&["digest", &unfinished], 1, "corrupt"),
        (&["prune", &unfinished], 1, "corrupt"),
        (&["convert", &saved.url, &unfinished], 2, "exists"),
        (&["convert", &saved.url, &saved.url], 2, "invalid"),
        (
            &[
                "convert",
                &saved.url,
                &saved.beside("to"),
                "--ranks",
                "4096",
                "--files-per-rank",
                "17",
            ],
            2,
            "invalid",
        ),
        (&["inspect", "gopher://somewhere"], 2, "invalid"),
        (&["digest"], 2, "invalid"),
    ];
    for (args, code, kind) in cases {
        let plain = run(args);
        let ran = run(&[args, &["--json"]].concat());
        let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let error = &j["error"];
        assert_eq!(
            (ran.code, plain.code, plain.out.as_str()),
            (code, code, ""),
            "{args:?}"
        );
        assert_eq!(
            (&j["schema"], &error["kind"]),
            (&serde_json::json!(1), &serde_json::json!(kind)),
            "{args:?} {error}"
        );
        let url = args
            .get(1)
            .map_or(serde_json::Value::Null, |url| (*url).into());
        assert_eq!(error["url"], url);
        assert!(
            ran.err.contains(error["message"].as_str().unwrap()),
            "{error} {}",
            ran.err
        );
        assert!(!error["hint"].as_str().unwrap().is_empty());
    }
}

#[test]
fn a_failed_digest_is_one_json() {
    let saved = states::dcp();
    std::fs::write(saved.path("__0_0.distcp"), vec![0; 100_000]).unwrap();
    let ran = run(&["digest", &saved.url, "--json"]);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert!(
        ran.code == 1 && j["errors"].is_object() && j["error"].is_null(),
        "{j}"
    );
    assert!(
        ran.err.contains("error: no digest of") && ran.err.contains("hint: "),
        "{}",
        ran.err
    );
}

#[test]
#[cfg(target_os = "linux")]
fn help_that_can_not_be_written_is_no_success() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut reshard = Command::new(env!("CARGO_BIN_EXE_reshard"));
    let status = reshard.arg("--help").stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(2));
}
