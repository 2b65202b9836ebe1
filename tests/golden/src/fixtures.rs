use crate::Expected;
use reshard_model::testkit::fixtures as root;
use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// Who wrote a fixture, which is also the name of its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// PyTorch's DCP.
    Dcp,
    /// Megatron Core.
    Megatron,
}

impl Family {
    fn folder(self) -> &'static str {
        match self {
            Self::Dcp => "dcp",
            Self::Megatron => "megatron",
        }
    }
}

/// A checkpoint with what is known of it.
#[derive(Debug)]
pub struct Fixture {
    /// Who wrote it.
    pub family: Family,
    /// Path below the root: `dcp/v2.1.2/basic`.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// What is known of it.
    pub expected: Expected,
}

impl Fixture {
    /// The checkpoint's folder.
    pub fn checkpoint(&self) -> PathBuf {
        self.folder.join("ckpt")
    }

    /// The checkpoint's URL.
    pub fn url(&self) -> String {
        self.checkpoint().display().to_string()
    }
}

impl fmt::Display for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// All fixtures in torch_dist and zarr, by name; safetensors is a format of its own.
///
/// # Panics
/// When there is none, or one can't be parsed: a test that looks at nothing proves nothing.
pub fn fixtures() -> Vec<Fixture> {
    let root = root();
    let mut out = Vec::new();
    for family in [Family::Dcp, Family::Megatron] {
        find(&root, family, &mut out);
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(
        !out.is_empty(),
        "no fixtures in {}: expected dcp/NAME/expected.json or megatron/NAME/…",
        root.display()
    );
    out
}

fn find(root: &Path, family: Family, out: &mut Vec<Fixture>) {
    let mut folders = vec![root.join(family.folder())];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.is_dir())
        {
            let Ok(text) = fs::read_to_string(entry.join("expected.json")) else {
                folders.push(entry);
                continue;
            };
            let name = entry
                .strip_prefix(root)
                .unwrap_or(&entry)
                .display()
                .to_string();
            let expected = Expected::parse(family, &text);
            let expected = expected.unwrap_or_else(|e| unreadable(&name, &e));
            if let Some(expected) = expected {
                out.push(Fixture {
                    family,
                    name,
                    folder: entry,
                    expected,
                });
            }
        }
    }
}

#[expect(
    clippy::panic,
    reason = "for tests: a fixture that is not understood must not be passed over"
)]
fn unreadable(name: &str, why: &str) -> ! {
    panic!("{name}/expected.json: {why}")
}
