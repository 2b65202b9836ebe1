//! Good checkpoints that are damaged here: cut at many lengths, and with bits flipped in every part of every file. What is
//! read of them is right, or it is an error.
//!
//! A program of its own, because it bounds the peak memory of the whole process.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail and speak as tests do"
)]

use futures::executor::block_on;
use reshard::{
    Checkpoint, Data, Dialect, ErrorKind, Region, ShardedObject, ShardedTensor, StateDict, Tensor,
    Value, ValueTree, model::Payload, storage::Progress,
};
use reshard_golden::{
    Family, Fixture, Place, Scratch, TensorFacts, chain, compare_tensor, fixtures, ours,
};
use reshard_model::testkit::{is_thorough, one_in};
use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Number of the smallest checkpoints of each family that are damaged; with `RESHARD_THOROUGH=1` all are.
const SUBJECTS: usize = 3;
/// Damaged copies per file and kind of damage, about; without `RESHARD_THOROUGH=1` a quarter of them.
const COPIES: usize = 100;
/// Damaged copies of a file that has no checksum of its own, about: few of them are longer.
const BARE: usize = 1000;
/// Items of more bytes are not fetched whole for a part of them.
const LARGE: u64 = 4096;
/// Memory that reading damaged copies may take, beyond what the test itself has.
const MEMORY: u64 = 128 << 20;

/// One damage.
#[derive(Clone, Copy, Debug)]
enum Change {
    CutTo(usize),
    Flip { byte: usize, bit: u8 },
}

impl Change {
    fn apply(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::CutTo(len) => bytes[..len].to_vec(),
            Self::Flip { byte, bit } => {
                let mut copy = bytes.to_vec();
                copy[byte] ^= 1 << bit;
                copy
            }
        }
    }
}

fn copies() -> usize {
    COPIES / one_in(4)
}

#[test]
fn a_file_that_is_cut_gives_an_error_or_the_right_data() {
    run(|_, bytes, random| {
        let mut lengths: Vec<usize> = vec![0, 1];
        // Around everything that a reader may look for: pickles, archives, and the ends of their parts.
        for mark in [&b"PK"[..], b"\x80\x02", b"."] {
            let found = bytes
                .windows(mark.len())
                .enumerate()
                .filter(|(_, w)| *w == mark)
                .map(|(i, _)| i);
            lengths.extend(found.flat_map(|i| [i.saturating_sub(1), i, i + 1, i + mark.len()]));
        }
        let step = lengths.len().div_ceil(copies());
        let mut lengths: Vec<usize> = lengths.into_iter().step_by(step).collect();
        lengths.extend(spread(bytes.len(), copies(), random));
        lengths.retain(|n| *n < bytes.len());
        lengths.sort_unstable();
        lengths.dedup();
        lengths.into_iter().map(Change::CutTo).collect()
    });
}

#[test]
fn a_bit_that_is_flipped_gives_an_error_or_the_right_data() {
    run(|name, bytes, random| {
        // What has no checksum of its own is damaged in many more places.
        let bare = matches!(name.rsplit('.').next(), Some("metadata" | "json"));
        spread(bytes.len(), if bare { BARE } else { copies() }, random)
            .into_iter()
            .map(|byte| Change::Flip {
                byte,
                bit: random.below(8) as u8,
            })
            .collect()
    });
}

/// Bits whose flipping once gave wrong data, all in `.metadata`, which has no checksum.
#[test]
fn what_came_out_wrong_once_does_not_again() {
    let known = [
        // An object's name became that of another one, which had two places then.
        ("dcp/v2.1.2/numpy_objects", 264, 3),
        // An instruction swallowed the next entries, and an object got a tensor's place.
        ("dcp/v2.14.0/basic", 891, 5),
        // The field that says where common state starts got another name.
        ("megatron/mc020_tp2_dp2_w4", 1318, 7),
    ];
    let mut wrong = Vec::new();
    for fixture in fixtures() {
        let Some((_, byte, bit)) = known.iter().find(|k| ours() && k.0 == fixture.name) else {
            continue;
        };
        let subject = Subject::new(fixture);
        let file = subject.scratch.file(".metadata");
        let change = Change::Flip {
            byte: *byte,
            bit: *bit,
        };
        fs::write(&file, change.apply(&fs::read(&file).unwrap())).unwrap();
        wrong.extend(subject.judge(&format!(".metadata {change:?}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One place at random in each of so many parts of equal length.
fn spread(len: usize, parts: usize, random: &mut Random) -> Vec<usize> {
    let step = len.div_ceil(parts).max(1);
    (0..len)
        .step_by(step)
        .map(|at| at + random.below(step.min(len - at) as u64) as usize)
        .collect()
}

#[test]
fn a_file_that_is_gone_gives_an_error_or_the_right_data() {
    let mut wrong = Vec::new();
    for subject in subjects() {
        for (name, bytes) in &subject.files {
            fs::remove_file(subject.scratch.file(name)).unwrap();
            wrong.extend(subject.judge(&format!("{name} removed")));
            fs::write(subject.scratch.file(name), bytes).unwrap();
        }
    }
    assert!(
        wrong.is_empty(),
        "{} findings:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The checksum of an item says nothing of a part of it. What can be known about where the part lies must hold all the same.
#[test]
fn a_bit_that_is_flipped_around_a_large_tensor_gives_an_error_or_the_right_part() {
    let (mut copies, mut wrong) = (0, Vec::new());
    for subject in large_subjects() {
        for item in subject.large_items() {
            let name = &item.place.file;
            let bytes = fs::read(subject.scratch.file(name)).unwrap();
            let mut random = Random::of(&item.key);
            let (from, to) = (
                item.place.offset as usize,
                (item.place.offset + item.place.length) as usize,
            );
            for byte in (from..to).filter(|i| !item.elements.contains(i)) {
                copies += 1;
                let change = Change::Flip {
                    byte,
                    bit: random.below(8) as u8,
                };
                fs::write(subject.scratch.file(name), change.apply(&bytes)).unwrap();
                wrong.extend(subject.judge_part(&item, &format!("{name} {change:?}")));
            }
            fs::write(subject.scratch.file(name), bytes).unwrap();
        }
    }
    println!("{copies} damaged copies read in part");
    assert!(copies > 0, "nothing was damaged");
    assert!(
        wrong.is_empty(),
        "{} findings:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// What is written into them is not believed: no shape, length or depth takes memory by being there.
#[test]
fn hostile_checkpoints_take_no_memory() {
    let before = peak();
    for f in fixtures().iter().filter(|f| !f.expected.sound) {
        let Ok(checkpoint) = block_on(Checkpoint::open(&f.url())) else {
            continue;
        };
        for t in checkpoint.tensors() {
            drop(block_on(t.read(..)));
        }
        drop(block_on(checkpoint.verify(true, Progress::default())));
        drop(block_on(checkpoint.state()));
        drop(block_on(reshard::load_plain_tensors(&f.url())));
    }
    bounded(before);
}

fn bounded(before: Option<u64>) {
    if let (Some(before), Some(after)) = (before, peak()) {
        assert!(
            after - before < MEMORY,
            "reading took {} MiB of memory",
            (after - before) >> 20
        );
    }
}

fn run(mut changes: impl FnMut(&str, &[u8], &mut Random) -> Vec<Change>) {
    let before = peak();
    let (mut copies, mut wrong) = (0, Vec::new());
    for subject in subjects() {
        for (name, bytes) in &subject.files {
            let mut random = Random::of(&format!("{} {name}", subject.fixture));
            for change in changes(name, bytes, &mut random) {
                copies += 1;
                fs::write(subject.scratch.file(name), change.apply(bytes)).unwrap();
                wrong.extend(subject.judge(&format!("{name} {change:?}")));
            }
            fs::write(subject.scratch.file(name), bytes).unwrap();
        }
    }
    println!("{copies} damaged copies read");
    assert!(copies > 0, "nothing was damaged");
    assert!(
        wrong.is_empty(),
        "{} findings:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    bounded(before);
}

/// Most bytes of memory that this process ever had, where the system tells.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

/// Numbers that are the same in every run, or in every nightly run of a seed: each night damages other places.
struct Random(u64);

impl Random {
    fn of(name: &str) -> Self {
        let night = std::env::var("PROPTEST_RNG_SEED").unwrap_or_default();
        Self(
            name.bytes()
                .chain(night.bytes())
                .fold(0, |n, b| n.wrapping_mul(31).wrapping_add(b.into())),
        )
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// A good checkpoint, in a copy that can be damaged, with what is in it.
struct Subject {
    fixture: Fixture,
    scratch: Scratch,
    files: Vec<(String, Vec<u8>)>,
    dialect: Dialect,
    objects: BTreeMap<String, Value>,
    common: ValueTree,
}

fn subjects() -> Vec<Subject> {
    let mut all: Vec<Fixture> = fixtures()
        .into_iter()
        .filter(|f| f.expected.sound)
        .collect();
    all.sort_by_key(|f| (f.family, f.expected.files.values().sum::<u64>()));
    let mut taken: BTreeMap<Family, usize> = BTreeMap::new();
    all.retain(|f| {
        let n = taken.entry(f.family).or_default();
        *n += 1;
        *n <= SUBJECTS || is_thorough()
    });
    all.into_iter().map(Subject::new).collect()
}

/// A stored tensor that is not read as a whole when a part of it is wanted.
struct LargeItem {
    key: String,
    place: Place,
    /// Where its elements lie in the file.
    elements: Range<usize>,
    region: Region,
    part: Tensor,
}

/// Checkpoints with such tensors.
fn large_subjects() -> Vec<Subject> {
    let large = |f: &Fixture| {
        let mut chunks = f
            .expected
            .tensors
            .values()
            .flat_map(|t| t.chunks.iter().flatten());
        f.expected.sound && chunks.any(|c| c.place.as_ref().is_some_and(|p| p.length > LARGE))
    };
    fixtures()
        .into_iter()
        .filter(large)
        .take(if is_thorough() { usize::MAX } else { 2 })
        .map(Subject::new)
        .collect()
}

impl Subject {
    /// Tensors of one large chunk that lies in row-major order.
    fn large_items(&self) -> Vec<LargeItem> {
        let checkpoint = block_on(Checkpoint::open(&self.scratch.url())).unwrap();
        let mut out = Vec::new();
        for (key, facts) in &self.fixture.expected.tensors {
            let Some([chunk]) = facts.chunks.as_deref() else {
                continue;
            };
            let Some(place) = chunk.place.clone().filter(|p| p.length > LARGE) else {
                continue;
            };
            let whole = block_on(checkpoint.tensor(key).unwrap().read(..)).unwrap();
            let (file, elements) = (
                fs::read(self.scratch.file(&place.file)).unwrap(),
                whole.to_bytes(),
            );
            let from = place.offset as usize;
            let item = &file[from..from + place.length as usize];
            let Some(at) = item.windows(elements.len()).position(|w| w == elements) else {
                continue;
            };
            let mut region = Region::whole(&facts.shape);
            (region.offsets[0], region.lengths[0]) = (facts.shape[0] / 2, 1);
            out.push(LargeItem {
                key: key.clone(),
                place,
                elements: from + at..from + at + elements.len(),
                part: whole.narrow(&region),
                region,
            });
        }
        out
    }

    fn judge_part(&self, item: &LargeItem, what: &str) -> Option<String> {
        let read = || -> reshard::Result<Tensor> {
            let checkpoint = block_on(Checkpoint::open(&self.scratch.url()))?;
            block_on(checkpoint.tensor(&item.key)?.read(item.region.clone()))
        };
        let found = match catch_unwind(AssertUnwindSafe(read)) {
            Err(_) => "it panicked",
            Ok(Ok(part)) if part != item.part => "wrong data in a part",
            Ok(_) => return None,
        };
        Some(format!("{}: {what}: {}: {found}", self.fixture, item.key))
    }

    fn new(fixture: Fixture) -> Self {
        let scratch = Scratch::of(&fixture.checkpoint()).unwrap();
        let checkpoint = block_on(Checkpoint::open(&scratch.url())).unwrap();
        let object = |key: &str| (key.to_owned(), block_on(checkpoint.object(key)).unwrap());
        Self {
            files: scratch.files().unwrap(),
            objects: checkpoint.objects().map(object).collect(),
            common: block_on(checkpoint.common()).unwrap(),
            dialect: checkpoint.dialect(),
            fixture,
            scratch,
        }
    }

    /// What is wrong with how the damaged copy is read; being refused is not wrong.
    fn judge(&self, what: &str) -> Vec<String> {
        let found = catch_unwind(AssertUnwindSafe(|| self.read()))
            .unwrap_or_else(|_| vec!["it panicked".into()]);
        found
            .into_iter()
            .map(|f| format!("{}: {what}: {f}", self.fixture))
            .collect()
    }

    fn read(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let url = self.scratch.url();
        let checkpoint = match block_on(Checkpoint::open(&url)) {
            Ok(c) => c,
            Err(e) => {
                if matches!(e.kind(), ErrorKind::Internal | ErrorKind::Unavailable) {
                    wrong.push(format!("{:?}: {}", e.kind(), chain(&e)));
                }
                return wrong;
            }
        };
        let mut failed = Vec::new();
        for (key, facts) in &self.fixture.expected.tensors {
            let Ok(t) = checkpoint.tensor(key) else {
                continue;
            };
            let asked = t.dtype() == facts.dtype && *t.shape() == facts.shape;
            match block_on(t.read(..)) {
                Err(e) => failed.push(chain(&e)),
                Ok(t) if asked => {
                    wrong.extend(
                        compare_tensor(facts, &t).map(|w| format!("wrong data in {key}: {w}")),
                    );
                }
                // It is another tensor now: who asks for what was saved must be told.
                Ok(_) => wrong.extend(self.load_one(key, facts)),
            }
        }
        for (key, value) in &self.objects {
            if !checkpoint.objects().any(|k| k == key) {
                continue;
            }
            match block_on(checkpoint.object(key)) {
                Err(e) => failed.push(chain(&e)),
                Ok(got) if got == *value => {}
                Ok(got) => wrong.push(format!("wrong object {key}: {got:?}")),
            }
        }
        match block_on(checkpoint.common()) {
            Err(e) => failed.push(chain(&e)),
            Ok(got) if got == self.common => {}
            // Since Megatron Core 0.19 it is an object among others, which is all that is left without metadata.json.
            Ok(_) if checkpoint.dialect() != self.dialect => {}
            Ok(got) => wrong.push(format!("wrong common state: {got:?}")),
        }
        match block_on(checkpoint.verify(true, Progress::default())) {
            Err(e) => wrong.push(format!("it can't be verified: {}", chain(&e))),
            Ok(report) => {
                // What names a transform that is not known is told, too: it may be of a later version.
                let nothing = report.damage.is_empty() && report.not_understood.is_empty();
                if let (true, Some(e)) = (nothing, failed.first()) {
                    wrong.push(format!("verify finds nothing, but: {e}"));
                }
            }
        }
        wrong.extend(self.load_all());
        wrong
    }

    fn load_one(&self, key: &str, facts: &TensorFacts) -> Option<String> {
        let mut template = StateDict::new();
        template.insert("t", ShardedTensor::template(key, facts.dtype, &facts.shape));
        let loaded = block_on(async { reshard::load(template, self.scratch.url()).await }).ok()?;
        let t = loaded.get("t")?.leaf()?.as_tensor()?;
        compare_tensor(facts, t).map(|w| format!("wrong data loaded for {key}: {w}"))
    }

    /// A load of everything that was saved.
    fn load_all(&self) -> Vec<String> {
        let mut template = StateDict::new();
        for (key, facts) in &self.fixture.expected.tensors {
            template.insert(
                key.as_str(),
                ShardedTensor::template(key, facts.dtype, &facts.shape).with_data(Data::None),
            );
        }
        for key in self.objects.keys() {
            match self.dialect {
                Dialect::Megatron => template.insert(
                    key.as_str(),
                    ShardedObject::empty_from_unique_key(key).unwrap(),
                ),
                _ => template.insert(key.as_str(), ShardedObject::item(key, Payload::None)),
            };
        }
        let Ok(state) = block_on(async { reshard::load(template, self.scratch.url()).await })
        else {
            return Vec::new();
        };
        let mut wrong = Vec::new();
        for (key, facts) in &self.fixture.expected.tensors {
            match state.get(key).and_then(|t| t.leaf()?.as_tensor()) {
                Some(t) => wrong.extend(
                    compare_tensor(facts, t).map(|w| format!("wrong data loaded for {key}: {w}")),
                ),
                None => wrong.push(format!("{key} was not loaded, and that was not said")),
            }
        }
        for (key, value) in &self.objects {
            let want = match (value, self.dialect) {
                (Value::List(v), Dialect::Megatron) if v.len() == 1 => &v[0],
                (v, _) => v,
            };
            let got = state.get(key).cloned().map(Value::from);
            if got.as_ref() != Some(want) {
                wrong.push(format!("wrong object loaded for {key}: {got:?}"));
            }
        }
        wrong
    }
}
