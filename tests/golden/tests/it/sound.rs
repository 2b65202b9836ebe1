//! Checkpoints that are as their writer left them.

use futures::executor::block_on;
use reshard::{
    Checkpoint, Value,
    storage::Progress,
    strategy::{Damage, Uncovered},
};
use reshard_golden::{
    Depth, Expected, Family, Says, chain, compare, compare_tensor, fixtures, ours, python,
};

#[test]
fn every_sound_checkpoint_is_read_bit_for_bit() {
    let (mut count, mut tensors, mut objects) = (0, 0, 0);
    let mut wrong = Vec::new();
    for f in fixtures().iter().filter(|f| f.expected.sound) {
        count += 1;
        let checkpoint = match block_on(Checkpoint::open(&f.url())) {
            Ok(c) => c,
            Err(e) => {
                wrong.push(format!("{f}: {e:?}"));
                continue;
            }
        };
        wrong.extend(
            compare(&checkpoint, &f.expected, Depth::Places)
                .into_iter()
                .map(|w| format!("{f}: {w}")),
        );
        tensors += f.expected.tensors.len();
        objects += f.expected.objects.len();
        match block_on(checkpoint.verify(true, Progress::default())) {
            Err(e) => wrong.push(format!("{f}: verify: {e:?}")),
            Ok(report) => {
                let found = report.damage.iter().chain(&report.unchecked);
                let found = found.filter(|d| !is_renamed(&f.to_string(), d));
                wrong.extend(found.map(|d| format!("{f}: verify: {d:?}")));
                // Every byte of a data file is in an item, and what no checksum covers is as all versions of torch write it.
                let odd = report.not_covered.files.iter().filter(|(_, of)| {
                    let odd = [Uncovered::Between, Uncovered::Framing];
                    of.keys().any(|why| odd.contains(why))
                });
                wrong.extend(odd.map(|odd| format!("{f}: verify: not covered: {odd:?}")));
            }
        }
    }
    println!("{count} sound checkpoints read: {tensors} tensors, {objects} objects");
    assert!(count > 0, "no sound checkpoint was read");
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Which programs write what a checkpoint's bytes look like: who has written it must be among them.
/// The directory in which this checkpoint was made has got another name in its `.metadata` since Megatron Core had listed the digest of that.
fn is_renamed(fixture: &str, found: &Damage) -> bool {
    fixture.ends_with("mc020_integrity_w2")
        && found.file.as_deref() == Some(".metadata")
        && found.what.contains("SHA-256")
}

#[test]
fn every_checkpoint_of_megatron_core_is_told_for_that_of_its_generation() {
    let mut wrong = Vec::new();
    for f in fixtures().iter().filter(|f| f.expected.sound) {
        let name = f.to_string();
        let Some((_, fixture)) = name.rsplit_once("mc0") else {
            continue;
        };
        let checkpoint = block_on(Checkpoint::open(&f.url())).unwrap();
        let told = checkpoint.producer().written_by;
        let want = match &fixture[..2] {
            "12" => ["Megatron Core 0.11 to 0.15"; 1],
            "16" => ["Megatron Core 0.16 to 0.18"],
            _ => ["Megatron Core 0.19 or later"],
        };
        if told[1..] != want {
            wrong.push(format!("{f}: {told:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn calls_that_need_no_template_give_the_same() {
    let mut wrong = Vec::new();
    for f in fixtures().iter().filter(|f| f.expected.sound) {
        let (url, expected) = (f.url(), &f.expected);
        match block_on(reshard::load_plain_tensors(&url)) {
            Err(e) => wrong.push(format!("{f}: {}", chain(&e))),
            Ok(all) => {
                if !all.keys().eq(expected.tensors.keys()) {
                    wrong.push(format!("{f}: plain tensors {:?}", all.keys()));
                }
                let pairs = all
                    .iter()
                    .filter_map(|(key, t)| Some((key, t, expected.tensors.get(key)?)));
                let compared =
                    pairs.filter_map(|(key, t, facts)| Some((key, compare_tensor(facts, t)?)));
                wrong
                    .extend(compared.map(|(key, what)| format!("{f}: plain tensor {key}: {what}")));
            }
        }
        if let Err(e) = loads_what_it_lists(&url, expected) {
            wrong.push(format!("{f}: {e}"));
        }
        match (block_on(reshard::load_common(&url)), &expected.common) {
            (Err(e), _) => wrong.push(format!("{f}: {}", chain(&e))),
            (Ok(common), Some(Says::Typed(json))) => {
                let what = python::same(json, &Value::from(common)).err();
                wrong.extend(what.map(|what| format!("{f}: common state: {what}")));
            }
            _ => {}
        }
        match block_on(reshard::load_metadata(&url)) {
            Err(e) => wrong.push(format!("{f}: {}", chain(&e))),
            Ok(m) => {
                let counts = (m.tensor_count(), m.object_count());
                if counts != (expected.tensors.len(), expected.objects.len()) {
                    wrong.push(format!("{f}: {counts:?} tensors and objects"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// What a checkpoint lists is a template that loads it.
fn loads_what_it_lists(url: &str, expected: &Expected) -> Result<(), String> {
    let list = block_on(reshard::load_tensors_metadata(url)).map_err(|e| chain(&e))?;
    let loaded = block_on(async { reshard::load(list, url).await }).map_err(|e| chain(&e))?;
    for (key, facts) in &expected.tensors {
        let got = loaded.get(key).and_then(|leaf| leaf.leaf()?.as_tensor());
        let got = got.ok_or_else(|| format!("{key} is not in what was listed"))?;
        if let Some(what) = compare_tensor(facts, got) {
            return Err(format!("listed tensor {key}: {what}"));
        }
    }
    let all = block_on(reshard::load_sharded_metadata(url)).map_err(|e| chain(&e))?;
    let objects = expected.objects.keys();
    let common = reshard::megatron::COMMON_STATE_CELL;
    match objects
        .into_iter()
        .find(|key| *key != common && all.get(key).is_none())
    {
        Some(lost) => Err(format!("object {lost} is not listed")),
        None => Ok(()),
    }
}

#[test]
fn the_description_of_the_content_is_loaded_as_megatron_core_saved_it() {
    let mut described = 0;
    for f in fixtures().iter().filter(|f| f.expected.sound) {
        let Some(Says::Typed(common)) = &f.expected.common else {
            continue;
        };
        let items = common["items"].as_array().into_iter().flatten();
        let mut want = items.filter(|item| item[0]["v"] == "content_metadata");
        let got = block_on(reshard::load_content_metadata(&f.url())).unwrap();
        match (want.next(), got) {
            (None, None) => {}
            (Some(want), Some(got)) => {
                described += 1;
                let what = python::same(&want[1], &got).err();
                assert_eq!(what, None, "{f}");
            }
            (want, got) => panic!("{f}: {want:?}, {got:?}"),
        }
    }
    // Megatron Core 0.16 in common.pt, and 0.20 in an object.
    assert!(described == 2 || !ours(), "{described}");
}

/// The PyTorch that wrote a checkpoint loads it, so `inspect` must not ask for a later one, whatever element types are in it.
#[test]
fn who_wrote_a_checkpoint_is_among_those_who_are_said_to_load_it() {
    let mut count = 0;
    for f in fixtures()
        .iter()
        .filter(|f| f.expected.sound && f.family == Family::Dcp)
    {
        // Folders of a version are named after it; the rest is of PyTorch 2.15.
        let wrote = f
            .name
            .split('/')
            .find_map(|part| part.strip_prefix("v2.")?.split('.').next()?.parse().ok());
        let said = &block_on(Checkpoint::open(&f.url()))
            .unwrap()
            .producer()
            .loadable_by[0];
        let needs = said
            .strip_prefix("PyTorch 2.")
            .and_then(|s| s.split(' ').next()?.parse::<u32>().ok());
        let needs = needs.unwrap_or_else(|| panic!("{f}: {said}"));
        assert!(needs <= wrote.unwrap_or(15), "{f}: {said}");
        count += 1;
    }
    println!("{count} checkpoints were written by one of their readers");
}
