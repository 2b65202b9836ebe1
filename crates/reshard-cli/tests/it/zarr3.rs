//! Groups of Zarr v3 arrays, as the program shows, checks and converts them.

use crate::{
    run,
    states::Saved,
    zarr::{names, save, torch_dist},
};
use reshard::{Dialect, blocking::Checkpoint, strategy::SaveShardedStrategy};
use std::fs;

fn zarr3() -> SaveShardedStrategy {
    reshard::zarr::Zarr3Config::default()
        .with_inner_chunk(16)
        .into()
}

#[test]
fn it_is_shown_checked_converted_and_replaced() {
    let saved = Saved::made(|url| save(url, &zarr3, false));
    let files = [
        "common.pt",
        "layer.weight/c/0/0",
        "layer.weight/c/1/0",
        "layer.weight/zarr.json",
        "metadata.json",
        "optimizer/step/c/0/0",
        "optimizer/step/zarr.json",
        "optimizer/zarr.json",
        "reshard-zarr3.json",
        "reshard.json",
        "rng_state/shard_0_2.pt",
        "rng_state/shard_1_2.pt",
        "zarr.json",
    ];
    assert_eq!(names(&saved.url), files);
    let shown = run(&["inspect", &saved.url]).ok();
    assert!(
        shown.contains("zarr3/1") && shown.contains("Zarr v3"),
        "{shown}"
    );
    assert_eq!(run(&["verify", &saved.url]).code, 0);

    let to = saved.beside("torch_dist");
    run(&["convert", &saved.url, &to, "--ranks", "3"]).ok();
    let tensors = |url: &str| run(&["digest", url, "--json"]).json()["tensors"].clone();
    assert_eq!(tensors(&to), tensors(&saved.url));
    let direct = saved.beside("direct");
    save(&direct, &torch_dist, false);
    assert_eq!(tensors(&direct), tensors(&saved.url));
    let common = |url: &str| Checkpoint::open(url).unwrap().common().unwrap();
    assert_eq!(common(&to), common(&saved.url));

    // A replacement removes its files and no others.
    fs::write(saved.path("layer.weight/notes.txt"), "mine").unwrap();
    fs::create_dir(saved.path("runs")).unwrap();
    fs::write(saved.path("runs/0"), "mine").unwrap();
    save(&saved.url.clone(), &torch_dist, true);
    let left = names(&saved.url);
    let others: Vec<&String> = left.iter().filter(|name| name.contains('/')).collect();
    assert_eq!(others, ["layer.weight/notes.txt", "runs/0"]);
}

#[test]
fn a_folder_of_arrays_is_recognised_by_what_lies_in_its_folders() {
    let saved = Saved::made(|url| save(url, &zarr3, false));
    for name in [
        "common.pt",
        "metadata.json",
        "reshard.json",
        "reshard-zarr3.json",
        "zarr.json",
    ] {
        fs::remove_file(saved.path(name)).unwrap();
    }
    let opened = Checkpoint::open(&saved.url).unwrap();
    assert_eq!(opened.backend().to_string(), "zarr3/1");
    assert_eq!(
        (opened.dialect(), opened.tensors().count()),
        (Dialect::Dcp, 2)
    );
}
