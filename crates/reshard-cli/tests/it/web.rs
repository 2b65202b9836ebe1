//! Checkpoints behind a web server, which has files and ranges of them, and no lists.

use crate::{run, states};
use reshard_golden::{root, serve, serve_and_tell};
use std::{collections::BTreeSet, path::Path, process::Command};

/// The URL of a local checkpoint behind a server.
fn served(local: &str) -> String {
    let local = Path::new(local);
    let url = serve(local.parent().unwrap()).unwrap();
    format!("{url}/{}", local.file_name().unwrap().to_str().unwrap())
}

#[test]
fn commands_do_the_same_with_a_checkpoint_behind_a_web_server() {
    for saved in [states::dcp(), states::megatron()] {
        let url = served(&saved.url);
        for command in [&["digest", "--json"][..], &["ls"]] {
            let [there, here] = [&url, &saved.url].map(|of| {
                let args = [&command[..1], &[of.as_str()], &command[1..]].concat();
                run(&args).ok()
            });
            assert_eq!(there, here, "{command:?}");
        }
        let tensors = |of: &str| run(&["inspect", of, "--json"]).json()["tensors"].clone();
        assert_eq!(tensors(&url), tensors(&saved.url));
        assert_eq!(run(&["stats", &url]).code, 0);
        let keys = run(&["ls", &url, "--json"]).json();
        for key in keys["keys"].as_array().unwrap() {
            let shown = |of: &str| run(&["show", of, key.as_str().unwrap()]).ok();
            assert_eq!(shown(&url), shown(&saved.url), "{key}");
        }
        assert_eq!(run(&["diff", &url, &saved.url]).code, 0);
        let to = saved.beside("copy");
        run(&["convert", &url, &to, "--ranks", "2"]).ok();
        let digest = |of: &str| run(&["digest", of, "--json"]).ok();
        assert_eq!(digest(&to), digest(&saved.url));
    }
}

#[test]
fn no_message_shows_the_secrets_of_a_url() {
    let saved = states::dcp();
    let url = served(&saved.url);
    let bare = url.strip_prefix("http://").unwrap();
    for url in [
        format!("{url}?X-Amz-Signature=SECRET"),
        format!("http://me:SECRET@{bare}"),
        "s3://me:SECRET@bucket/a".to_owned(),
    ] {
        for args in [
            &["inspect", &url][..],
            &["ls", &url],
            &["show", &url, "a"],
            &["digest", &url],
            &["verify", &url],
            &["stats", &url],
            &["diff", &url, &saved.url],
            &["convert", &url, &saved.beside("to")],
            &["convert", &saved.url, &url],
            &["prune", &url],
            &["remove", &url, "a"],
        ] {
            let ran = run(args);
            assert_eq!(ran.code, 2, "{args:?}: {}{}", ran.out, ran.err);
            let said = ran.out + &ran.err;
            assert!(
                !said.contains("SECRET") && said.contains("://"),
                "{args:?}: {said}"
            );
        }
    }
}

#[test]
fn what_can_not_be_done_behind_a_web_server_is_told() {
    let saved = states::dcp();
    let url = served(&saved.url);
    let ran = run(&["verify", &url]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    for args in [
        &["convert", &saved.url, &format!("{url}-new")][..],
        &["prune", &url],
        &["remove", &url, "model."],
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.out);
        assert!(
            ran.err.contains("a web server can only be read"),
            "{}",
            ran.err
        );
    }
}

#[test]
fn the_second_inspect_through_a_cache_reads_nothing() {
    let saved = states::dcp();
    let local = Path::new(&saved.url);
    let (server, requests) = serve_and_tell(local.parent().unwrap()).unwrap();
    let url = format!("{server}/{}", local.file_name().unwrap().to_str().unwrap());
    let cache = format!("{}:1GB", saved.beside("cache"));
    let inspect = || run(&["inspect", &url, "--cache", &cache]).ok();
    let first = inspect();
    let asked = requests.take();
    assert!(asked.iter().any(|r| r.starts_with("GET ")), "{asked:#?}");
    assert_eq!(inspect(), first);
    // It asks for the tag of each file, and for none twice.
    let asked = requests.take();
    assert!(asked.iter().all(|r| r.starts_with("HEAD ")), "{asked:#?}");
    let files: BTreeSet<&String> = asked.iter().collect();
    assert!(
        files.len() == asked.len() && !files.is_empty(),
        "{asked:#?}"
    );
}

#[test]
fn the_environment_may_name_the_cache() {
    let saved = states::dcp();
    let local = Path::new(&saved.url);
    let (server, requests) = serve_and_tell(local.parent().unwrap()).unwrap();
    let url = format!("{server}/{}", local.file_name().unwrap().to_str().unwrap());
    let cache = saved.beside("cache");
    let inspect = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_reshard"));
        let ran = program
            .args(["inspect", &url])
            .env("RESHARD_CACHE", format!("{cache}:1GB"))
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
        ran.stdout
    };
    let first = inspect();
    assert!(requests.take().iter().any(|r| r.starts_with("GET ")));
    assert_eq!(inspect(), first);
    assert!(!requests.take().iter().any(|r| r.starts_with("GET ")));
    assert!(Path::new(&cache).is_dir());
}

#[test]
fn a_checkpoint_with_digests_is_verified() {
    let url = serve(&root()).unwrap();
    let url = format!("{url}/megatron/mc020_integrity_w2/ckpt");
    run(&["verify", &url, "--quick"]).ok();
    // The directory in which it was made has got another name in `.metadata` since Megatron Core had listed the digest of that.
    let ran = run(&["verify", &url]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(
        ran.out.contains("damaged  .metadata: its SHA-256 is"),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("1 problem in 3 items"), "{}", ran.err);
}

#[test]
fn a_cache_that_can_not_be_used_is_told() {
    let saved = states::dcp();
    let file = saved.path(".metadata").display().to_string();
    let ran = run(&["digest", &saved.url, "--cache", &file]);
    assert!(ran.code == 2 && ran.err.contains("--cache"), "{}", ran.err);
}
