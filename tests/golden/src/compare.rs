//! A checkpoint held against what its writer says of it.

use crate::{Chunk, Expected, Place, Says, TensorFacts, hash::sha256, ours, python};
use futures::executor::block_on;
use reshard::strategy::{StorageInfo, with_sources};
use reshard::{Checkpoint, Tensor, Value, ValueTree, plan::PlannerData};
use std::collections::{BTreeMap, BTreeSet};

/// How much is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Keys, and what is under them.
    Content,
    /// That, and where everything is stored.
    Places,
}

/// What of an opened checkpoint differs from what is expected: nothing, if all is well.
pub fn compare(checkpoint: &Checkpoint, expected: &Expected, depth: Depth) -> Vec<String> {
    let mut c = Comparison {
        checkpoint,
        expected,
        depth,
        wrong: Vec::new(),
    };
    c.keys();
    for (key, facts) in &expected.tensors {
        c.tensor(key, facts);
    }
    for (key, object) in &expected.objects {
        match block_on(checkpoint.object(key)) {
            Err(e) => c.note(key, &chain(&e)),
            Ok(v) => {
                let wraps = expected.wraps_objects();
                let v = match (v, &object.says) {
                    (Value::List(mut v), Says::Typed(_)) if wraps && v.len() == 1 => v.remove(0),
                    (v, _) => v,
                };
                c.value(key, &object.says, &v);
            }
        }
        if depth == Depth::Places && object.place.is_some() {
            c.place(key, object.place.as_ref(), &checkpoint.object_parts(key));
        }
    }
    if let Some(common) = &expected.common {
        match block_on(checkpoint.common()) {
            Err(e) => c.note("common state", &chain(&e)),
            Ok(plain) => c.value("common state", common, &Value::from(plain)),
        }
    }
    c.nesting();
    if depth == Depth::Places {
        c.files();
    }
    c.wrong
}

/// What of a tensor differs from what is expected, content only.
pub fn compare_tensor(facts: &TensorFacts, tensor: &Tensor) -> Option<String> {
    if tensor.dtype() != facts.dtype || *tensor.shape() != facts.shape {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        return Some(format!(
            "expected {} {}, got {dtype} {shape}",
            facts.dtype, facts.shape
        ));
    }
    let got = sha256(tensor.blocks(1 << 20));
    (got != facts.sha256).then(|| format!("expected sha256 {}, got {got}", facts.sha256))
}

/// What of a tensor differs from what an `expected.json` says of it.
///
/// # Errors
/// What differs, or that the file says nothing of a tensor.
pub fn compare_facts(facts: &serde_json::Value, tensor: &Tensor) -> Result<(), String> {
    match compare_tensor(&TensorFacts::parse(facts)?, tensor) {
        Some(what) => Err(what),
        None => Ok(()),
    }
}

/// An error with all its sources, those that it quotes once.
pub fn chain(e: &dyn std::error::Error) -> String {
    with_sources(e.to_string(), e)
}

struct Comparison<'a> {
    checkpoint: &'a Checkpoint,
    expected: &'a Expected,
    depth: Depth,
    wrong: Vec<String>,
}

impl Comparison<'_> {
    fn note(&mut self, key: &str, what: &str) {
        self.wrong.push(format!("{key:?}: {what}"));
    }

    fn keys(&mut self) {
        let got: BTreeSet<String> = self
            .checkpoint
            .tensors()
            .map(|t| t.key().to_owned())
            .collect();
        let want: BTreeSet<String> = self.expected.tensors.keys().cloned().collect();
        self.same_keys("tensor", &got, &want);
        let got: BTreeSet<String> = self.checkpoint.objects().map(Into::into).collect();
        let want: BTreeSet<String> = self.expected.objects.keys().cloned().collect();
        self.same_keys("object", &got, &want);
    }

    fn same_keys(&mut self, what: &str, got: &BTreeSet<String>, want: &BTreeSet<String>) {
        got.difference(want)
            .for_each(|k| self.note(k, &format!("unexpected {what}")));
        want.difference(got)
            .for_each(|k| self.note(k, &format!("missing {what}")));
    }

    fn tensor(&mut self, key: &str, facts: &TensorFacts) {
        let handle = match self.checkpoint.tensor(key) {
            Ok(handle) => handle,
            Err(e) => return self.note(key, &chain(&e)),
        };
        match block_on(handle.read(..)) {
            Err(e) => self.note(key, &chain(&e)),
            Ok(t) => {
                if let Some(what) = compare_tensor(facts, &t) {
                    self.note(key, &what);
                }
            }
        }
        let Some(want) = facts
            .chunks
            .as_ref()
            .filter(|_| self.depth == Depth::Places)
        else {
            return;
        };
        let got: Vec<Chunk> = handle
            .chunks()
            .into_iter()
            .map(|c| Chunk {
                offsets: c.region.offsets,
                sizes: c.region.lengths,
                place: place(&c.parts),
            })
            .collect();
        if got != *want {
            self.note(key, &format!("expected chunks {want:?}, got {got:?}"));
        }
    }

    #[expect(
        clippy::print_stdout,
        reason = "shown when a test is asked what it did"
    )]
    fn value(&mut self, key: &str, says: &Says, value: &Value) {
        match says {
            Says::Nothing => {}
            Says::Typed(json) => {
                if let Err(what) = python::same(json, value) {
                    self.note(key, &what);
                }
            }
            Says::Repr(text, _) => match python::says(text, value) {
                Ok(true) => {}
                Ok(false) => self.note(key, &format!("expected {text}, got {value:?}")),
                // Folders of others may hold classes that were never seen here; it is said that they were not compared.
                Err(python::Cannot { class }) if !ours() => {
                    println!("{key:?}: not compared, the repr of {class} is not known: {text}");
                }
                Err(python::Cannot { class }) => {
                    self.note(
                        key,
                        &format!("can't compare objects of {class} with {text}: {value:?}"),
                    );
                }
            },
        }
    }

    fn place(&mut self, key: &str, want: Option<&Place>, got: &[StorageInfo]) {
        let got = place(got);
        if got.as_ref() != want {
            self.note(key, &format!("expected at {want:?}, got {got:?}"));
        }
    }

    /// The paths of the state dict that was saved, as the checkpoint tells them and as `state()` builds them.
    fn nesting(&mut self) {
        let paths = match self.checkpoint.metadata().planner_data() {
            Some(PlannerData::Paths(p)) => Some(p),
            _ => None,
        };
        if let Some(nested) = self.expected.nested
            && nested != paths.is_some()
        {
            self.note(
                "planner_data",
                &format!("expected: {nested}, got: {}", paths.is_some()),
            );
        }
        let tensors = self.expected.tensors.iter().map(|(k, t)| (k, &t.path));
        let objects = self.expected.objects.iter().map(|(k, o)| (k, &o.path));
        let want: BTreeMap<_, _> = tensors
            .chain(objects)
            .filter_map(|(k, p)| Some((k, p.as_ref()?)))
            .collect();
        for (key, path) in &want {
            let got = paths.and_then(|p| p.get(key.as_str()));
            if got != Some(path) {
                self.note(
                    key,
                    &format!(
                        "expected path {}, got {:?}",
                        path.quoted(),
                        got.map(reshard::model::Path::quoted)
                    ),
                );
            }
        }
        let state = match block_on(self.checkpoint.state()) {
            Ok(state) => state,
            Err(e) => return self.note("state", &chain(&e)),
        };
        for (key, path) in want {
            let at = state.at(&path.0);
            let facts = self.expected.tensors.get(key);
            let object = self.expected.objects.get(key);
            match (at, facts, object) {
                (Some(ValueTree::Leaf(Value::Tensor(t))), Some(facts), _) => {
                    if let Some(what) = compare_tensor(facts, t) {
                        self.note(key, &format!("in the nested state: {what}"));
                    }
                }
                (Some(tree), None, Some(object)) => {
                    self.value(key, &object.says, &Value::from(tree.clone()));
                }
                (at, ..) => self.note(
                    key,
                    &format!("the nested state has {at:?} at {}", path.quoted()),
                ),
            }
        }
    }

    fn files(&mut self) {
        match block_on(self.checkpoint.files()) {
            Err(e) => self.note("files", &chain(&e)),
            Ok(files) => {
                let got: BTreeMap<String, u64> = files
                    .iter()
                    .map(|f| (f.name.to_string(), f.bytes))
                    .collect();
                if got != self.expected.files {
                    self.note(
                        "files",
                        &format!("expected {:?}, got {got:?}", self.expected.files),
                    );
                }
            }
        }
    }
}

/// Of an item that is stored in one part.
fn place(parts: &[StorageInfo]) -> Option<Place> {
    let [p] = parts else { return None };
    Some(Place {
        file: p.file.to_string(),
        offset: p.range.start,
        length: p.length(),
    })
}
