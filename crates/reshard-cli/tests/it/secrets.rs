//! Nothing that the program prints has the password or the signature of a URL, whatever the command and whatever goes wrong.

use crate::{Ran, run, states};

/// URLs with secrets. None of them can be opened.
const URLS: [&str; 11] = [
    "file://user:PASSWORD@/a",
    "file://user:PASSWORD@host/a",
    "https://user:PASSWORD@127.0.0.1:1/a",
    "https://PASSWORD@127.0.0.1:1/a",
    "https://user:PASS/WORD/PASSWORD@127.0.0.1:1/a",
    "HTTPS://127.0.0.1:1/a?X-Amz-Signature=SIGNATURE",
    "s3://key:PASSWORD@bucket/a",
    "s3://bucket/a?X-Amz-Signature=SIGNATURE",
    "gs://bucket/a?X-Goog-Signature=SIGNATURE#SIGNATURE",
    "az://container/a?sv=2023&sig=SIGNATURE",
    "unknown://user:PASSWORD@host/a?token=SIGNATURE",
];

/// All commands that take a place, and some wrong command lines.
fn commands<'a>(url: &'a str, sound: &'a str, new: &'a str) -> Vec<Vec<&'a str>> {
    let mut all: Vec<Vec<&str>> = ["inspect", "ls", "digest", "verify", "stats", "prune"]
        .into_iter()
        .map(|command| vec![command, url])
        .collect();
    all.extend([
        vec!["show", url, "w"],
        vec!["show", sound, url],
        vec!["remove", url, "w"],
        vec!["remove", sound, url],
        vec!["ls", sound, "--key", url],
        vec!["diff", url, sound],
        vec!["diff", sound, url],
        vec!["convert", url, new],
        vec!["convert", sound, url],
        vec!["convert", sound, url, "--resume"],
        vec!["convert", sound, url, "--overwrite", "--dry-run"],
        vec!["convert", sound, new, "--map", url],
        vec!["convert", sound, new, "--trace", url, "--to", url],
        vec!["inspect", url, "--no-such-option"],
        vec!["inspect", sound, url],
        vec!["ls", sound, "--max-memory", url],
        vec![url],
    ]);
    all
}

fn is_clean(args: &[&str], ran: &Ran) {
    let text = format!("{}{}", ran.out, ran.err);
    assert!(!text.is_empty(), "{args:?} printed nothing");
    for text in [&ran.out, &ran.err] {
        let leaks = ["PASS", "SIGNATURE"]
            .iter()
            .any(|secret| text.contains(secret));
        assert!(!leaks, "{args:?} printed {text}");
    }
}

#[test]
fn no_command_prints_the_secrets_of_a_url() {
    let sound = states::dcp();
    let new = sound.beside("new");
    for url in URLS {
        for args in commands(url, &sound.url, &new) {
            for json in [&[][..], &["--json"]] {
                let args = [&args[..], json].concat();
                is_clean(&args, &run(&args));
            }
        }
    }
}

/// Nobody listens at this address. Requests fail, and their errors quote it.
#[cfg(feature = "aws")]
#[test]
fn no_command_prints_the_password_of_an_endpoint() {
    use reshard_object_store::ObjectStores;
    use std::time::Duration;

    let sound = states::dcp();
    let new = sound.beside("new");
    let clouds = |endpoint: &str| {
        ObjectStores::new()
            .with_retries(0, Duration::from_secs(10))
            .with_option("aws_endpoint", endpoint)
            .with_option("aws_allow_http", "true")
            .with_option("aws_region", "us-east-1")
            .with_option("aws_access_key_id", "reshard")
            .with_option("aws_secret_access_key", "SIGNATURE")
    };
    for endpoint in [
        "http://user:PASSWORD@127.0.0.1:1",
        "http://user:PASSWORD@ 127.0.0.1",
    ] {
        for args in commands("s3://bucket/a", &sound.url, &new) {
            let stores = reshard::Stores::linked()
                .unwrap()
                .with("s3", clouds(endpoint));
            let args = [&args[..], &["--json"]].concat();
            is_clean(&args, &crate::run_with(stores, &args));
        }
    }
}
