//! What a conversion keeps, changes and leaves out, and what a comparison counts.

use crate::{
    handmade::zarr2,
    run,
    states::{self, Saved},
};
use reshard::{
    ShardedObject, ShardedTensor, StateDict, Tensor, blocking,
    model::{Leaf, Payload, Step, Tree},
    torch_dist::{Flavour, TorchDistConfig},
};
use reshard_torch_format::TorchSave;
use serde_json::{Value as Json, json};
use std::{collections::BTreeMap, fs, path::Path};

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    folder.join(name).display().to_string()
}

/// What a checkpoint states beside its items.
fn stated(url: &str) -> Json {
    run(&["inspect", url, "--json"]).json()["metadata"].clone()
}

/// The JSON of a comparison with exit code 1.
fn run_json_of_different(args: &[&str]) -> Json {
    let ran = run(args);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

/// The entries of the ledger, as `kind name: outcome`.
fn ledger(report: &Json) -> Vec<String> {
    let entries = report["ledger"].as_array().unwrap().iter();
    let text = |e: &Json| {
        let [kind, name, outcome] = ["kind", "name", "outcome"].map(|f| e[f].as_str().unwrap());
        format!("{kind} {name}: {outcome}")
    };
    entries.map(text).collect()
}

#[test]
fn the_state_of_an_optimizer_keeps_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (src, dst) = (fixture("optimizer.pt"), path("o.pt"));
    let report = run(&["convert", &src, &dst, "--lossless", "--json"]).json();
    let all = ledger(&report);
    assert!(all.iter().all(|e| e.ends_with(": kept")), "{all:?}");
    let key = r#"key_type ["state"]["0"]: kept"#.to_owned();
    assert!(all.contains(&key), "{all:?}");
    assert_eq!(stated(&dst), stated(&src));
    run(&["diff", &src, &dst, "--lossless"]).ok();

    // A format without such keys says so.
    let other = path("dist");
    let said = run(&["convert", &src, &other]).ok();
    assert!(
        said.contains("key types") && said.contains("stored as text"),
        "{said}"
    );
    let e = run(&["convert", &src, &path("no"), "--lossless"]);
    assert!(
        e.code == 2 && e.err.contains("key [\"state\"][\"0\"]: stored as text"),
        "{}",
        e.err
    );
    assert!(!Path::new(&path("no")).exists());
    run(&["diff", &src, &other]).ok();
    let ran = run(&["diff", &src, &other, "--lossless"]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.out.contains("has no place for it"), "{}", ran.out);
}

/// The file was saved by torch 2.15: parameters `p` and `q`, the latter without gradients; a parameter `pa` and a tensor `attr` with
/// attributes; `cl` in channels last; `t`, a transposed tensor; a dict `d1` that is `d2`, too, and a list `l1` that is `l2`.
#[test]
fn what_python_knows_of_tensors_dicts_and_lists_is_kept_or_in_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (src, dst) = (fixture("python_objects.pt"), path("copy.pt"));
    let report = run(&["convert", &src, &dst, "--json"]).json();
    let all = ledger(&report);
    for want in [
        r#"tensor_class ["p"]: kept"#,
        r#"tensor_class ["q"]: kept"#,
        r#"tensor_class ["pa"]: kept"#,
        r#"tensor_class ["pa"]: left_out"#,
        r#"tensor_class ["attr"]: left_out"#,
        r#"tie ["d2"]: left_out"#,
        r#"tie ["l2"]: left_out"#,
        "tie d1.x = d2.x: kept",
        "tensor cl: changed",
        "tensor t: changed",
        "tensor p: kept",
    ] {
        assert!(all.iter().any(|e| e == want), "{want}: {all:#?}");
    }
    let lost = run(&["convert", &src, &path("none.pt"), "--lossless"]);
    assert!(
        lost.code == 2 && lost.err.contains("something of 6 items"),
        "{}",
        lost.err
    );
    // What is left over is the same in a second copy.
    let again = path("again.pt");
    run(&["convert", &dst, &again, "--lossless"]).ok();
    run(&["diff", &dst, &again, "--lossless"]).ok();
    assert_eq!(run(&["diff", &src, &dst, "--lossless"]).code, 1);
    // Another format has no place for parameters.
    let said = run(&["convert", &src, &path("dist")]).ok();
    assert!(
        said.contains("3 left out: torch_dist/1 has no place for parameters"),
        "{said}"
    );
    let shown = run(&["inspect", &src]).ok();
    let want =
        "2 items of which Python knows more, 3 objects at two places, 3 tensors with a class";
    assert!(shown.contains(want), "{shown}");
}

/// `torch.save` of torch 2.15 made the file, with a forged device for two tensors, and `zipfile` added a record.
#[test]
fn what_values_do_not_say_of_objects_is_in_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (src, dst) = (fixture("python_parts.pt"), path("copy.pt"));
    run(&["verify", &src]).ok();
    let report = run(&["convert", &src, &dst, "--json"]).json();
    let (mut lost, mut kept) = (BTreeMap::new(), Vec::new());
    for entry in report["ledger"].as_array().unwrap() {
        let name = format!("{} {}", entry["kind"], entry["name"]).replace(['"', '\\'], "");
        let why = entry["why"].as_str().unwrap_or_default();
        match entry["outcome"].as_str().unwrap() {
            "kept" => kept.push(name),
            _ => drop(lost.insert(
                name,
                why.trim_start_matches("torch_save/1 has no place for "),
            )),
        }
    }
    let want = BTreeMap::from(
        [
            ("metadata notes.txt", "records of other programs"),
            ("tensor_class [cover]", "tensors that share elements"),
            ("tensor_class [gpu_inside]", "devices of tensors"),
            ("tensor_class [grad]", "tensors that require gradients"),
            ("tensor_class [list_twice]", "parts that are one object"),
            ("tensor_class [order]", "tensors that are not row-major"),
            ("tensor_class [param]", "parameters"),
            (
                "tensor_class [same_in_tuple]",
                "parts that are one object, tensors that share elements",
            ),
            ("tensor_class [with_outside]", "tensors that share elements"),
            (
                "tie [empty_again]",
                "the copy has it at each place for itself",
            ),
            (
                "tie [set_again]",
                "the copy has it at each place for itself",
            ),
        ]
        .map(|(name, why)| (name.to_owned(), why)),
    );
    assert_eq!(lost, want);
    for name in ["tie [again]", "tie again = one", "save [gpu] device"] {
        assert!(kept.iter().any(|k| k == name), "{name}: {kept:?}");
    }
    // What was kept is in the copy, so that a second one loses nothing.
    let again = path("again.pt");
    run(&["convert", &dst, &again, "--lossless"]).ok();
    run(&["diff", &dst, &again, "--lossless"]).ok();
    let copies = stated(&again).to_string();
    assert!(
        copies.contains("cuda:1") && copies.contains(r#"\"]","value":"one""#),
        "{copies}"
    );
    // Another type has elements of its own.
    let cast = run(&[
        "convert",
        &src,
        &path("cast.pt"),
        "--dtype",
        "bf16",
        "--json",
    ])
    .json();
    assert!(
        ledger(&cast)
            .iter()
            .any(|e| e == r#"tie ["again"]: left_out"#),
        "{cast}"
    );
    // A device is a fact about the save, and no loss.
    let flat = run(&[
        "convert",
        &src,
        &path("x.safetensors"),
        "--key",
        "gpu",
        "--json",
    ])
    .json();
    assert!(
        flat["ledger"]
            .to_string()
            .contains("no place for devices of tensors"),
        "{flat}"
    );
}

/// `torch.save` of torch 2.15 made the file.
#[test]
fn parts_of_objects_that_are_items_elsewhere_are_in_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (src, dst) = (fixture("python_views.pt"), path("copy.pt"));
    run(&["verify", &src]).ok();
    let all = ledger(&run(&["convert", &src, &dst, "--json"]).json());
    for want in [
        r#"tensor_class ["config"]: left_out"#,
        r#"tensor_class ["conj"]: left_out"#,
        r#"tie ["nothing_again"]: left_out"#,
        "tensor expanded: changed",
        "tensor overlapping: changed",
        "tensor grad: kept",
    ] {
        assert!(all.iter().any(|e| e == want), "{want}: {all:#?}");
    }
    let said = run(&[
        "convert",
        &src,
        &path("x.safetensors"),
        "--key",
        "grad",
        "--lossless",
    ]);
    let want = "tensor grad: stored without requires_grad";
    assert!(said.code == 2 && said.err.contains(want), "{}", said.err);
    // Two saves of one state on different devices are equal, and one whose tensors lay otherwise is not without a loss.
    run(&["diff", &src, &dst]).ok();
    let said = run(&["diff", &src, &dst, "--lossless"]);
    for what in ["order of elements of expanded", "tie"] {
        assert!(said.code == 1 && said.out.contains(what), "{}", said.out);
    }
    // A folder notes it.
    let said = run(&[
        "convert",
        &src,
        &path("folder"),
        "--to",
        "safetensors",
        "--key",
        "grad",
    ])
    .ok();
    assert!(!said.contains("requires_grad"), "{said}");
}

/// An object that a conversion carries over as it is stored keeps everything. One that becomes a value of another format does not.
#[test]
fn what_values_do_not_say_of_decoded_objects_is_in_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let payload = Payload::Encoded {
        codec: TorchSave::NAME,
        bytes: fs::read(fixture("python_parts.pt")).unwrap().into(),
    };
    let (src, file) = (path("dist"), path("copy.pt"));
    let mut state = StateDict::new();
    state.insert("o", ShardedObject::item("o", payload));
    blocking::run(reshard::save(&state, &src).dialect(reshard::Dialect::Dcp)).unwrap();
    run(&[
        "convert",
        &src,
        &path("again"),
        "--to",
        "torch_dist",
        "--lossless",
    ])
    .ok();
    let said = run(&["convert", &src, &file, "--lossless"]);
    let want = "tensor_class o: left out: torch_save/1 has no place for parts that are one object, parameters, tensors that require gradients";
    assert!(said.code == 2 && said.err.contains(want), "{}", said.err);
    let report = run(&["convert", &src, &file, "--json"]).json();
    let all = ledger(&report);
    assert!(
        all.iter().any(|e| e == "tensor_class o: left_out"),
        "{all:?}"
    );
}

#[test]
fn ordered_dicts_of_python_2_are_dicts() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["python2.pt", "python2_legacy.pt"] {
        let (src, dst) = (fixture(name), dir.path().join(name).display().to_string());
        assert_eq!(run(&["ls", &src]).ok(), "w\n", "{name}");
        run(&["convert", &src, &dst]).ok();
        run(&["diff", &src, &dst, "--lossless"]).ok();
        let class = &stated(&dst)[0];
        assert_eq!(class["kind"], "container_type", "{name}");
        assert!(
            class["value"].to_string().contains("OrderedDict"),
            "{name}: {class}"
        );
    }
}

#[test]
fn containers_with_tensors_keep_their_classes_in_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    for (name, keys, classes) in [
        ("rootlist.pt", "0\n1\n", &["list"][..]),
        (
            "roottuple.pt",
            "0\n1.a\n1.b.0\n1.b.1\n",
            &["tuple", "tuple"],
        ),
        (
            "unknown_dict.pt",
            "cfg.n\ncfg.w\nout.logits\nout.loss\n",
            &["Config", "Output"],
        ),
    ] {
        let (src, dst) = (fixture(name), dir.path().join(name).display().to_string());
        assert_eq!(run(&["ls", &src]).ok(), keys, "{name}");
        run(&["convert", &src, &dst]).ok();
        let stated = stated(&dst);
        let stated = stated.as_array().unwrap().iter();
        let mut found = stated.filter(|entry| entry["kind"] == "container_type");
        for class in classes {
            let found = found.next().unwrap().to_string();
            assert!(found.contains(class), "{name}: {found}");
        }
        // Another format has no place for them, and says so.
        let other = dir.path().join(name).with_extension("safetensors");
        let other = other.display().to_string();
        let said = run(&["convert", &src, &other, "--lossless", "--drop-objects"]);
        assert!(
            said.code == 2 && said.err.contains("has no place for types of dicts"),
            "{}",
            said.err
        );
    }
    // A copy is made without the arguments of the class.
    let (src, dst) = (
        fixture("unknown_dict.pt"),
        dir.path().join("o.pt").display().to_string(),
    );
    let said = run(&["convert", &src, &dst, "--lossless"]);
    assert!(
        said.err
            .contains("arguments of its class that hold tensors"),
        "{}",
        said.err
    );
}

/// What `state_dict()` of a module returns is what is read of its file.
#[test]
fn modules_open_under_the_names_of_their_state_dict() {
    let dir = tempfile::tempdir().unwrap();
    let said = fs::read(fixture("modules.json")).unwrap();
    let said: Json = serde_json::from_slice(&said).unwrap();
    for (name, want) in said.as_object().unwrap() {
        let src = fixture(name);
        let found = run(&["digest", &src, "--json", "--open-modules"]).json();
        let found = found["tensors"].as_object().unwrap();
        let found = found
            .iter()
            .map(|(key, tensor)| (key.clone(), tensor["sha256"].clone()));
        assert_eq!(&Json::Object(found.collect()), want, "{name}");

        // Without the option a module is an object, or nothing is read; and both name the option.
        let closed = run(&["inspect", &src]);
        let is_script = matches!(&**name, "script.pt" | "trace.pt");
        let all = format!("{}{}", closed.out, closed.err);
        assert_eq!(closed.code, if is_script { 2 } else { 0 }, "{all}");
        let count = want.as_object().unwrap().len();
        let class = if is_script {
            "__torch__."
        } else {
            "stranger.Net"
        };
        let words = format!("with {count} tensors");
        for text in ["a pickled module of class", class, &words, "--open-modules"] {
            assert!(all.contains(text), "{name}: {all}");
        }

        // A copy is a flat dict of the tensors, and what became of the module is in the ledger.
        let dst = dir.path().join(name).display().to_string();
        let report = run(&["convert", &src, &dst, "--open-modules", "--json"]).json();
        assert_eq!(report["tensors"], count, "{report}");
        assert!(
            report["ledger"]
                .to_string()
                .contains("has no place for a module of class")
        );
        run(&["diff", &src, &dst, "--open-modules"]).ok();
    }
}

#[test]
fn texts_of_safetensors_are_in_every_file_of_the_copy() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let src = fixture("lora.safetensors");
    let want = stated(&src);
    assert!(want.as_array().unwrap().len() > 1, "{want}");
    for (dst, more) in [
        ("one.safetensors", &["--dtype", "bf16"][..]),
        (
            "folder",
            &["--to", "safetensors", "--max-shard-size", "1kB"],
        ),
    ] {
        let dst = path(dst);
        let report = run(&[&["convert", &src, &dst, "--json"], more].concat()).json();
        assert_eq!(stated(&dst), want, "{report}");
    }
    let said = run(&["convert", &src, &path("dist")]).ok();
    assert!(
        said.contains("left out: torch_dist/1 has no place for metadata"),
        "{said}"
    );
}

#[test]
fn attributes_of_arrays_and_groups_are_carried_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let src = path("src");
    fs::create_dir_all(dir.path().join("src/g/a/c")).unwrap();
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"title": "t"}});
    let array = json!({
        "zarr_format": 3, "node_type": "array", "shape": [2], "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"units": "K"}, "dimension_names": ["x"],
    });
    for (file, text) in [
        ("zarr.json", &group),
        ("g/zarr.json", &group),
        ("g/a/zarr.json", &array),
    ] {
        fs::write(dir.path().join("src").join(file), text.to_string()).unwrap();
    }
    let elements = [1f32, 2.].map(f32::to_le_bytes).concat();
    fs::write(dir.path().join("src/g/a/c/0"), elements).unwrap();

    let dst = path("dst");
    run(&["convert", &src, &dst, "--to", "zarr3", "--lossless"]).ok();
    assert_eq!(stated(&dst), stated(&src));
    assert_eq!(stated(&dst).as_array().unwrap().len(), 4);
    run(&["verify", &dst]).ok();
    run(&["diff", &src, &dst, "--lossless"]).ok();
    let read = |file: &str| -> Json {
        serde_json::from_slice(&fs::read(dir.path().join("dst").join(file)).unwrap()).unwrap()
    };
    let written = read("g/a/zarr.json");
    assert_eq!(written["attributes"], array["attributes"]);
    assert_eq!(written["dimension_names"], array["dimension_names"]);
    let root = read("zarr.json");
    assert_eq!(root["attributes"], group["attributes"]);
    let inner = &root["consolidated_metadata"]["metadata"]["g/a"];
    assert_eq!(inner["attributes"], array["attributes"]);

    // A value that changed is a difference.
    let text = fs::read_to_string(dir.path().join("src/g/zarr.json")).unwrap();
    fs::write(
        dir.path().join("src/g/zarr.json"),
        text.replace("\"t\"", "\"u\""),
    )
    .unwrap();
    let ran = run(&["diff", &src, &dst]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(
        ran.out.contains("other metadata") && ran.out.contains("g title"),
        "{}",
        ran.out
    );
}

#[test]
fn what_one_format_can_not_represent_is_listed_and_counts_if_asked_for() {
    let saved = states::dcp();
    let (src, dst) = (saved.url.clone(), saved.beside("dst"));
    let said = run(&[
        "convert",
        &src,
        &dst,
        "--to",
        "safetensors",
        "--drop-objects",
    ])
    .out;
    assert!(
        said.contains("left out: safetensors/1 has no place for objects"),
        "{said}"
    );
    let ran = run(&["diff", &src, &dst]);
    assert_eq!(ran.code, 0, "{}", ran.out);
    assert!(
        ran.out
            .contains(&format!("only in {src} ({dst} has no place for it)")),
        "{}",
        ran.out
    );
    let ran = run(&["diff", &src, &dst, "--lossless"]);
    assert!(
        ran.code == 1 && ran.out.contains("different"),
        "{}",
        ran.out
    );
    let report = run_json_of_different(&["diff", &src, &dst, "--lossless", "--json"]);
    assert_eq!(report["equal"], false);
    let report = run(&["diff", &dst, &src, "--json"]).json();
    assert_eq!(report["equal"], true);
    assert!(
        !report["unrepresented"]["second"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn facts_about_a_save_are_no_loss_of_its_state() {
    let saved = Saved::made(|url| {
        let numbers = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
        let mut state = StateDict::new();
        state.insert("a.w", ShardedTensor::full("a.w", numbers.clone()));
        state.insert("b.w", ShardedTensor::full("b.w", numbers));
        let config = TorchDistConfig::new().with_flavour(Flavour::Torch24);
        let config = config.with_separation_hint("b.");
        drop(blocking::run(reshard::save(&state, url).strategy(config)).unwrap());
    });
    let save = &run(&["inspect", &saved.url, "--json"]).json()["producer"]["save"];
    assert_eq!(
        *save,
        json!({"checkpoint_id": saved.url, "separation_hint": "b."})
    );
    let said = run(&["inspect", &saved.url]).ok();
    assert!(said.contains("separation_hint b."), "{said}");

    let dir = tempfile::tempdir().unwrap();
    for format in ["torch_dist", "safetensors"] {
        let dst = dir.path().join(format).display().to_string();
        let convert = ["convert", &saved.url, &dst, "--to", format, "--lossless"];
        let said = run(&[&convert[..], &["--dry-run"]].concat()).ok();
        assert!(
            said.contains("2 left out: the copy is a save of its own"),
            "{said}"
        );
        let all = ledger(&run(&[&convert[..], &["--json"]].concat()).json());
        for name in ["checkpoint_id", "separation_hint"] {
            let entry = format!("save {name}: left_out");
            assert!(all.contains(&entry), "{format}: {all:?}");
        }
    }
}

#[test]
fn a_key_that_begins_other_keys_is_kept_wherever_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let src = path("src.pt");
    let mut state = StateDict::new();
    for key in ["layer.a", "layer2.a", "layer", "w"] {
        state.insert(key, Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap());
    }
    blocking::run(reshard::save(&state, &src).dialect(reshard::Dialect::Dcp)).unwrap();
    for (dst, format) in [
        ("dist", "torch_dist"),
        ("st", "safetensors"),
        ("z", "zarr3"),
        ("b", "tensor_bundle"),
        ("copy.pt", "torch_save"),
    ] {
        let dst = path(dst);
        run(&["convert", &src, &dst, "--to", format]).ok();
        assert_eq!(run(&["ls", &dst]).ok(), run(&["ls", &src]).ok(), "{format}");
    }
}

/// The save of PyTorch has an id.
#[test]
fn the_id_of_a_save_is_in_the_ledger() {
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/dcp/all_dtypes/ckpt"
    );
    let id = "5939d3fd-d6c5-4f5e-8963-ef7845aec049";
    let save = &run(&["inspect", source, "--json"]).json()["producer"]["save"];
    assert_eq!(*save, json!({"checkpoint_id": "ckpt", "save_id": id}));
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("dst").display().to_string();
    let all = ledger(&run(&["convert", source, &dst, "--dry-run", "--json"]).json());
    assert!(all.contains(&"save save_id: left_out".into()), "{all:?}");
}

#[test]
fn inspect_counts_and_lists_what_is_stated() {
    for (name, texts) in [
        (
            "optimizer.pt",
            &[
                "metadata    2 keys without text",
                r#"["state"]["0"]  key type  int"#,
            ][..],
        ),
        (
            "lora.safetensors",
            &[
                "metadata    3 texts",
                "ss_network_dim            metadata  4",
            ],
        ),
        ("python2.pt", &["metadata    1 container with a class"]),
    ] {
        let shown = run(&["inspect", &fixture(name)]).ok();
        for text in texts {
            assert!(shown.contains(text), "{text}: {shown}");
        }
    }
}

#[test]
fn ties_and_paths_count_in_a_lossless_comparison() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let tensor = || Tensor::from_vec(&[3], vec![1f32; 3]).unwrap();
    let save = |name: &str, state: &StateDict| {
        blocking::run(reshard::save(state, path(name)).dialect(reshard::Dialect::Dcp)).unwrap();
        path(name)
    };
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reshard-torch-format/tests/data");
    let tied = data.join("torch-2.15.0/tied.pt").display().to_string();
    // A format without ties lies between.
    let (between, untied) = (path("between"), path("untied.pt"));
    run(&["convert", &tied, &between, "--to", "torch_dist"]).ok();
    run(&["convert", &between, &untied]).ok();
    let nested = |path: &[Step]| {
        let mut state = StateDict::new();
        state.insert_at(path, Tree::Leaf(Leaf::from(tensor())));
        state
    };
    let list = save("list.pt", &nested(&["a".into(), Step::Index(0)]));
    let dict = save("dict.pt", &nested(&["a".into(), "0".into()]));
    let flat = save("flat.pt", &nested(&["a.0".into()]));
    for [a, b] in [[&tied, &untied], [&list, &dict], [&dict, &flat]] {
        assert_eq!(run(&["diff", a, b]).code, 0, "{a} {b}");
        let ran = run(&["diff", a, b, "--lossless"]);
        assert!(
            ran.code == 1 && ran.out.contains("other ties or paths"),
            "{a} {b}: {}",
            ran.out
        );
        assert_eq!(run(&["diff", a, a, "--lossless"]).code, 0, "{a}");
    }
}

#[test]
fn an_object_equals_the_items_that_it_consists_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    // With `flatten_state_dict=False` a dict is one object.
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/dcp");
    let one = format!("{fixtures}/no_flatten/ckpt");
    let copy = path("copy.pt");
    let ran = run(&["convert", &one, &copy, "--lossless"]);
    assert!(
        ran.code != 0 && ran.err.contains("split into 2 items"),
        "{}",
        ran.err
    );
    run(&["convert", &one, &copy]).ok();
    for [left, right] in [[&one, &copy], [&copy, &one]] {
        run(&["diff", left, right]).ok();
        assert_eq!(run(&["diff", left, right, "--lossless"]).code, 1);
    }
    let less = path("less.pt");
    run(&["convert", &copy, &less, "--key", "w", "--key", "nested.a"]).ok();
    for [left, right] in [[&one, &less], [&less, &one]] {
        assert_eq!(run(&["diff", left, right]).code, 1, "{left} {right}");
    }
}

#[test]
fn a_root_that_is_no_dict_becomes_one_and_the_ledger_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.pt").display().to_string();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reshard-torch-format/tests/data");
    let list = data
        .join("torch-2.15.0/list_class.pt")
        .display()
        .to_string();
    let ran = run(&["convert", &list, &copy, "--lossless"]);
    assert!(
        ran.code != 0 && ran.err.contains("the copy is a dict with this item"),
        "{}",
        ran.err
    );
    run(&["convert", &list, &copy]).ok();
    assert_eq!(run(&["diff", &list, &copy]).code, 1);
    // The copy has a dict.
    let again = dir.path().join("again.pt").display().to_string();
    run(&["convert", &copy, &again, "--lossless"]).ok();
    run(&["diff", &copy, &again, "--lossless"]).ok();
}

fn megatron(name: &str) -> String {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/megatron");
    format!("{fixtures}/{name}/ckpt")
}

#[test]
fn a_copy_in_another_form_equals_any_checkpoint() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
    let dir = tempfile::tempdir().unwrap();
    let [file, folder] =
        ["copy.pt", "copy"].map(|name| dir.path().join(name).display().to_string());
    let forms = [
        vec![&*file],
        vec![&*folder, "--to", "torch_dist", "--dialect", "megatron"],
    ];
    let mut compared = 0;
    for family in ["dcp", "megatron"] {
        for fixture in fs::read_dir(Path::new(fixtures).join(family)).unwrap() {
            let source = fixture.unwrap().path().join("ckpt").display().to_string();
            for form in &forms {
                let args = [&["convert", &source, "--overwrite"], &form[..]].concat();
                if run(&args).code != 0 {
                    continue;
                }
                compared += 1;
                for [a, b] in [[&*source, form[0]], [form[0], &source]] {
                    let ran = run(&["diff", a, b]);
                    assert_eq!(ran.code, 0, "{a} {b}: {}{}", ran.out, ran.err);
                }
            }
        }
    }
    assert!(compared > 80, "{compared}");
}

#[test]
fn no_array_of_objects_is_written_without_some_of_its_cells() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (source, between) = (megatron("mc016_objects_w4"), path("between.pt"));
    run(&["convert", &source, &between]).ok();
    for args in [
        &["convert", &between, &path("back"), "--dialect", "megatron"][..],
        &[
            "convert",
            &source,
            &path("part"),
            "--key",
            "obj.grid/shard_0*",
        ],
    ] {
        let ran = run(args);
        assert!(
            ran.code == 2 && ran.err.contains("cells; missing") && ran.err.contains("--dialect"),
            "{args:?}: {}",
            ran.err
        );
    }
}

#[test]
fn texts_stay_if_no_tensor_has_elements() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (src, dst) = (path("src.safetensors"), path("dst.safetensors"));
    let empty = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
    let header = json!({"__metadata__": {"step": "7"}, "w": empty}).to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&src, [&length[..], header.as_bytes()].concat()).unwrap();
    run(&["convert", &src, &dst, "--lossless"]).ok();
    assert_eq!(stated(&src)[0]["value"], "7");
    assert_eq!(stated(&dst), stated(&src));
}

#[test]
fn attributes_of_an_array_that_is_left_out_are_left_out() {
    let saved = Saved::made(|url| {
        for key in ["v", "w"] {
            let folder = Path::new(url).join(key);
            zarr2(&folder);
            fs::write(folder.join(".zattrs"), r#"{"units": "K"}"#).unwrap();
        }
    });
    let dst = saved.beside("dst");
    let args = ["convert", &saved.url, &dst, "--to", "zarr", "--key", "w"];
    let all = ledger(&run(&[&args[..], &["--json"]].concat()).json());
    for entry in ["attribute v units: left_out", "attribute w units: kept"] {
        assert!(all.contains(&entry.to_owned()), "{all:?}");
    }
    assert!(!Path::new(&dst).join("v").exists());
}

/// `torch.save` of torch 2.15 made the file.
#[test]
fn conjugated_and_negated_views_in_objects_are_in_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let src = fixture("python_conj.pt");
    let said = run(&["convert", &src, &path("copy.pt"), "--lossless"]);
    assert_eq!(said.code, 2, "{}", said.err);
    for key in ["conjugated", "negated"] {
        let want = format!(
            "tensor_class [\"{key}\"]: left out: torch_save/1 has no place for views that are conjugated or negated"
        );
        assert!(said.err.contains(&want), "{want}: {}", said.err);
    }
}
