//! Checkpoints that somebody damaged, or made to do harm.

use futures::executor::block_on;
use reshard::{
    Checkpoint, ErrorKind, ShardedTensor, StateDict, storage::Progress, strategy::Damage,
};
use reshard_golden::{Fixture, Scratch, chain, compare_tensor, fixtures, ours};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// What the message about a kind of damage must say, by the name of the fixture in this repository. In other folders the same
/// kind of damage may be at another place, and any message will do.
const FACTS: &[(&str, &[&str])] = &[
    ("bad_abs_path", &["/etc/hostname", "absolute"]),
    (
        "bad_bitflip",
        &["CRC-32", "w: __0_0.distcp at byte 1261: chunk [0:2, 0:3]"],
    ),
    ("bad_dtype", &["v: ", "float32", "float64"]),
    ("bad_empty_metadata", &[".metadata", "byte 0"]),
    ("bad_hole", &["[2:4, 0:3]", "[4, 3]"]),
    ("bad_missing_file", &["__1_0.distcp", "missing"]),
    ("bad_no_metadata", &["no .metadata", "never finished"]),
    ("bad_out_of_bounds", &["[3:5, 0:3]", "[4, 3]"]),
    ("bad_overlap", &["[0:2, 0:3]", "[1:3, 0:3]", "overlap"]),
    (
        "bad_path_traversal",
        &["../outside.distcp", "out of the checkpoint's directory"],
    ),
    ("bad_shape", &["v: ", "[3]", "[4]"]),
    ("bad_tmp_only", &[".metadata.tmp", "never finished"]),
    ("bad_truncated_metadata", &[".metadata", "the input ends"]),
    ("bad_zero_data", &["__1_0.distcp", "which has 0"]),
    (
        "evil_deep_metadata",
        &[
            ".metadata",
            "no torch.distributed.checkpoint.metadata.Metadata",
        ],
    ),
    ("evil_huge_shape", &["4611686018427387904"]),
    (
        "evil_metadata",
        &[
            ".metadata",
            "no torch.distributed.checkpoint.metadata.Metadata",
        ],
    ),
];

#[test]
fn every_damaged_checkpoint_is_found_out_and_never_read_wrong() {
    let all = fixtures();
    let (mut count, mut told, mut wrong) = (0, 0, Vec::new());
    for f in all.iter().filter(|f| !f.expected.sound) {
        count += 1;
        let begun = cpu();
        let mut judge = Judge {
            fixture: f,
            wrong: Vec::new(),
        };
        let said = judge.run();
        if f.expected.detectable {
            told += 1;
            judge.message(&said);
        }
        let took = cpu().tv_sec - begun.tv_sec;
        if took > 10 {
            judge.note(format!("took {took} s"));
        }
        wrong.extend(
            judge
                .wrong
                .iter()
                .map(|w| format!("{f} ({}): {w}", f.expected.description)),
        );
    }
    println!("{count} damaged checkpoints read, {told} of them had to be found out");
    assert!(count > 0, "no damaged checkpoint was read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What this thread, which does the parsing, has worked so far; a busy machine adds nothing to that.
fn cpu() -> Timespec {
    clock_gettime(ClockId::ThreadCPUTime)
}

struct Judge<'f> {
    fixture: &'f Fixture,
    wrong: Vec<String>,
}

impl Judge<'_> {
    fn note(&mut self, what: String) {
        self.wrong.push(what);
    }

    /// What opening, or verifying, says is wrong.
    fn run(&mut self) -> Vec<String> {
        let detectable = self.fixture.expected.detectable;
        let checkpoint = match block_on(Checkpoint::open(&self.fixture.url())) {
            Ok(c) => c,
            Err(e) => {
                if !matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) {
                    self.note(format!("opening failed with {:?}", e.kind()));
                }
                return vec![chain(&e)];
            }
        };
        let report = match block_on(checkpoint.verify(true, Progress::default())) {
            Ok(report) => report,
            Err(e) => {
                self.note(format!("it can't be verified: {}", chain(&e)));
                return vec![];
            }
        };
        if detectable && report.damage.is_empty() {
            self.note("verify found nothing".into());
        }
        for t in checkpoint.tensors() {
            let damaged = report
                .damage
                .iter()
                .any(|d| d.key.as_deref() == Some(t.key()));
            let read = block_on(t.read(..));
            let template = ShardedTensor::template(t.key(), t.dtype(), t.shape());
            let mut state = StateDict::new();
            state.insert("t", template);
            let loaded = block_on(async { reshard::load(state, checkpoint.url()).await });
            match (damaged, &read) {
                (true, Ok(_)) => self.note(format!("{} is damaged, and was read", t.key())),
                (true, Err(e)) if e.kind() != ErrorKind::Corrupt => {
                    self.note(format!("reading {} failed with {:?}", t.key(), e.kind()));
                }
                (false, Err(e)) => self.note(format!("{} is not damaged: {}", t.key(), chain(e))),
                _ => {}
            }
            if loaded.is_ok() != read.is_ok() {
                self.note(format!("{} is read, or loaded, not both", t.key()));
            }
            let loaded = loaded
                .ok()
                .and_then(|s| s.get("t")?.leaf()?.as_tensor().cloned());
            let Some(facts) = self
                .fixture
                .expected
                .tensors
                .get(t.key())
                .filter(|_| detectable)
            else {
                continue;
            };
            for got in read.ok().into_iter().chain(loaded) {
                if let Some(what) = compare_tensor(facts, &got) {
                    self.note(format!("wrong data in {}: {what}", t.key()));
                }
            }
        }
        for key in checkpoint.objects() {
            let damaged = report.damage.iter().any(|d| d.key.as_deref() == Some(key));
            if block_on(checkpoint.object(key)).is_ok() == damaged {
                self.note(format!(
                    "object {key}: verify says damaged: {damaged}, reading does not agree"
                ));
            }
        }
        let at = |offset: Option<u64>| offset.map_or(String::new(), |at| format!(" at byte {at}"));
        let line = |d: &Damage| {
            format!(
                "{}: {}{}: {}",
                text(&d.key),
                text(&d.file),
                at(d.offset),
                d.what
            )
        };
        report.damage.iter().map(line).collect()
    }

    fn message(&mut self, said: &[String]) {
        let name = self.fixture.name.rsplit('/').next().unwrap();
        let facts = FACTS
            .iter()
            .find(|(n, _)| *n == name)
            .map_or(&[][..], |(_, facts)| *facts);
        let all = said.join("\n");
        if all.is_empty() {
            self.note("nothing is said".into());
        }
        let missing: Vec<_> = facts.iter().filter(|fact| !all.contains(**fact)).collect();
        if ours() && !missing.is_empty() {
            self.note(format!("what is said lacks {missing:?}: {all}"));
        }
    }
}

/// An element type of a PyTorch to come: the tensor that has it can't be read, and everything else can.
#[test]
fn an_element_type_that_nobody_knows_fails_only_the_tensor_that_has_it() {
    let f = fixtures().into_iter().find(|f| f.name == "dcp/all_dtypes");
    let f = f.ok_or("there is no dcp/all_dtypes").unwrap();
    let scratch = Scratch::of(&f.checkpoint()).unwrap();
    let metadata = std::fs::read(scratch.file(".metadata")).unwrap();
    let (old, new) = (b"complex64", b"complex96");
    let at = metadata.windows(old.len()).rposition(|w| w == old).unwrap();
    let renamed = [&metadata[..at], new, &metadata[at + old.len()..]].concat();
    std::fs::write(scratch.file(".metadata"), renamed).unwrap();

    let checkpoint = block_on(Checkpoint::open(&scratch.url())).unwrap();
    let producer = checkpoint.producer();
    let unknown: Vec<&str> = producer.unknown.keys().map(String::as_str).collect();
    let (lost, sound): (Vec<_>, Vec<_>) = f
        .expected
        .tensors
        .iter()
        .partition(|(_, t)| t.dtype.name() == "complex64");
    assert!(!lost.is_empty() && !sound.is_empty());
    assert_eq!(
        unknown,
        lost.iter().map(|(k, _)| k.as_str()).collect::<Vec<_>>()
    );
    for (key, facts) in sound {
        let got = block_on(checkpoint.tensor(key).unwrap().read(..)).unwrap();
        assert_eq!(compare_tensor(facts, &got), None, "{key}");
    }
    let report = block_on(checkpoint.verify(true, Progress::default())).unwrap();
    assert!(
        report
            .not_understood
            .iter()
            .map(|d| d.key.as_deref().unwrap())
            .eq(unknown.iter().copied()),
        "{report:?}"
    );
    for (key, facts) in lost {
        let mut template = StateDict::new();
        template.insert("t", ShardedTensor::template(key, facts.dtype, &facts.shape));
        let loaded: reshard::Error =
            block_on(async { reshard::load(template, scratch.url()).await })
                .unwrap_err()
                .into();
        let read = checkpoint.tensor(key).unwrap_err();
        let all = block_on(reshard::load_plain_tensors(&scratch.url())).unwrap_err();
        for e in [loaded, read, all] {
            let said = chain(&e);
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{said}");
            assert!(
                said.contains("torch.complex96") && said.contains(key),
                "{said}"
            );
        }
        assert!(
            producer
                .notes
                .iter()
                .any(|n| n.contains(key) && n.contains("torch.complex96"))
        );
    }
}

fn text(s: &Option<String>) -> &str {
    s.as_deref().unwrap_or_default()
}
