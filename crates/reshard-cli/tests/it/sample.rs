//! `verify --sample`.

use crate::{
    run,
    states::{self, Saved},
};
use reshard::{Dialect, StateDict, Tensor};
use serde_json::Value as Json;
use std::{collections::BTreeSet, fs};

/// 400 tensors of 4 KiB, and two large ones.
pub(crate) fn many() -> Saved {
    let mut state = StateDict::new();
    for n in 0..400u32 {
        let data = (0..1_024).map(|i| (n * 7 + i) as f32).collect();
        let key = format!("layer.{n:03}");
        state.insert(&*key, Tensor::from_vec(&[1_024], data).unwrap());
    }
    for key in ["head", "tail"] {
        let data = (0..100_000i64).collect();
        state.insert(key, Tensor::from_vec(&[100_000], data).unwrap());
    }
    states::save(&[state], Dialect::Dcp)
}

fn sampled(url: &str, share: &str, seed: &str) -> Json {
    run(&["verify", url, "--sample", share, "--seed", seed, "--json"]).json()
}

#[test]
fn a_sample_reads_its_share_and_says_so_in_every_format() {
    let saved = many();
    for format in [
        "torch_dist",
        "safetensors",
        "zarr3",
        "torch_save",
        "tensor_bundle",
    ] {
        let url = match format {
            "torch_dist" => saved.url.clone(),
            _ => saved.beside(format),
        };
        if url != saved.url {
            let ran = run(&["convert", &saved.url, &url, "--to", format]);
            assert_eq!(ran.code, 0, "{}", ran.err);
        }
        let found = sampled(&url, "1%", "17");
        assert_eq!(found["status"], "sound", "{format}: {found}");
        let sample = &found["sample"];
        let number = |of: &Json, name: &str| of[name].as_u64().unwrap();
        // Four of the small ones, and one of the large ones.
        assert_eq!(number(sample, "items"), 5, "{format}: {found}");
        assert_eq!(number(sample, "of_items"), 402, "{format}");
        let wanted = 4 * 4_096 + 800_000;
        let bytes = number(sample, "bytes");
        assert!(
            (wanted..wanted + 12_000).contains(&bytes),
            "{format}: {bytes}"
        );
        assert!(number(sample, "of_bytes") >= 400 * 4_096 + 1_600_000);
        let read = number(&found, "bytes");
        assert!(
            (wanted..wanted + 12_000).contains(&read),
            "{format}: {read}"
        );

        let text = run(&["verify", &url, "--sample", "1%", "--seed", "17"]).ok();
        let said = "5 of 402 items";
        assert!(
            text.contains(said) && text.contains("chosen by --seed 17"),
            "{format}: {text}"
        );
    }
}

#[test]
fn damage_of_an_item_is_found_by_the_seeds_that_choose_it_and_all_else_by_each() {
    let saved = many();
    let file = saved.path("__0_0.distcp");
    let whole = fs::read(&file).unwrap();
    let needle: Vec<u8> = (0..1_024u32)
        .flat_map(|i| (200.0f32 * 7.0 + i as f32).to_le_bytes())
        .collect();
    let at = whole.windows(4_096).position(|w| w == needle).unwrap();
    let mut bytes = whole.clone();
    bytes[at + 100] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let code = |seed: u32| {
        let seed = seed.to_string();
        let ran = run(&["verify", &saved.url, "--sample", "10%", "--seed", &seed]);
        assert_eq!(ran.code == 1, ran.out.contains("layer.200"), "{}", ran.out);
        ran.code
    };
    let codes: Vec<u8> = (0..40).map(code).collect();
    assert_eq!(codes, (0..40).map(code).collect::<Vec<_>>());
    assert_eq!(
        codes.iter().collect::<BTreeSet<_>>(),
        BTreeSet::from([&0, &1])
    );
    assert_eq!(run(&["verify", &saved.url, "--sample", "100%"]).code, 1);

    // What all checks look at: a file that is cut, and one that is gone.
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(run(&["verify", &saved.url, "--sample", "1%"]).code, 1);
    fs::remove_file(&file).unwrap();
    assert_eq!(run(&["verify", &saved.url, "--sample", "1%"]).code, 1);
}

#[test]
fn a_share_that_is_none_and_a_seed_without_a_sample_are_refused() {
    for args in [
        &["--sample", "0%"][..],
        &["--sample", "1"],
        &["--sample", "200%"],
        &["--seed", "1"],
        &["--sample", "1%", "--quick"],
    ] {
        let ran = run(&[&["verify", "/nowhere"], args].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.out);
    }
    let ran = run(&["verify", "/nowhere", "--sample", "1%"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
}
