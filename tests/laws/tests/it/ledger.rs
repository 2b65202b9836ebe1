//! The ledger of a conversion lists every item of the source once, and what it says of an item is true of the copy.

mod check;
mod sources;

use check::{Facts, items, name_of};
use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{BackendVersion, Checkpoint, DType, OpenOptions, blocking, plan::AnnotationKind};
use reshard_convert::{Convert, ConvertError, Ledger, Outcome, convert};
use reshard_example as _;
use reshard_laws::{formats::linked, law};
use sources::Source;
use std::path::Path;

fn open(url: &str, format: &BackendVersion) -> Checkpoint {
    block_on(OpenOptions::new().format(format.clone()).open(url)).unwrap()
}

/// What is asked of a conversion.
#[derive(Clone, Copy, Debug)]
struct Options {
    ranks: u32,
    dtype: Option<DType>,
    /// Leaves out keys that end with this.
    without: Option<char>,
}

impl Options {
    const PLAIN: Self = Self {
        ranks: 1,
        dtype: None,
        without: None,
    };

    fn set<'c>(self, mut convert: Convert<'c>, to: &BackendVersion) -> Convert<'c> {
        convert = convert.to(to.clone()).drop_objects(true).ranks(self.ranks);
        if let Some(dtype) = self.dtype {
            convert = convert.dtype(dtype);
        }
        if let Some(end) = self.without {
            convert = convert.keys(move |key| !key.ends_with(end));
        }
        convert
    }
}

/// Converts, and checks the ledger against source and copy. `None` if nothing would be left.
fn converted(
    source: &Checkpoint,
    to: &BackendVersion,
    dst: &str,
    options: Options,
) -> Option<(Checkpoint, Ledger)> {
    let what = format!("{} to {to} with {options:?}", source.url());
    let report = match blocking::run(options.set(convert(source, dst), to)) {
        Ok(report) => report,
        Err(ConvertError::NothingLeft { .. } | ConvertError::NothingChosen { .. }) => {
            assert!(!Path::new(dst).exists(), "{what}");
            return None;
        }
        Err(e) => panic!("{what}: {e}"),
    };
    let copy = open(dst, to);
    let ledger = report.ledger;
    let mut named: Vec<_> = ledger.entries().iter().map(name_of).collect();
    named.sort();
    assert_eq!(named, items(source), "{what}");
    let facts = [Facts::of(source), Facts::of(&copy)];
    for entry in ledger.entries() {
        facts[1].agree(&facts[0], entry, &what);
    }
    facts[1].has_nothing_else(&ledger, &what);

    // A lossless conversion is refused exactly if the ledger has a loss.
    let again = format!("{dst}-again");
    let lossless = options.set(convert(source, &again), to).lossless(true);
    match block_on(lossless.prepare()) {
        Ok(_) => assert_eq!(ledger.losses().next(), None, "{what}"),
        Err(ConvertError::Lossy { losses, .. }) => {
            assert!(losses.iter().eq(ledger.losses()), "{what}");
            assert!(!losses.is_empty(), "{what}");
        }
        Err(e) => panic!("{what}: {e}"),
    }
    Some((copy, ledger))
}

/// Converts there and back: what both ledgers keep is as it was.
fn there_and_back(source: &Source, dir: &Path, to: &BackendVersion, options: [Options; 2]) -> bool {
    let url = |name: &str| source.place(dir, name);
    let from = open(&source.url, &source.format);
    let there = dir.join(format!("{}-{}", source.name, to.backend));
    let there = match *to.backend == *"torch_save" {
        true => there.with_extension("pt"),
        false => there,
    };
    let there = there.display().to_string();
    let Some((copy, first)) = converted(&from, to, &there, options[0]) else {
        return false;
    };
    let back = url(&format!("back-{}", to.backend));
    let Some((back, second)) = converted(&copy, &source.format, &back, options[1]) else {
        return false;
    };
    let facts = [Facts::of(&from), Facts::of(&back)];
    let kept = |ledger: &Ledger| -> Vec<_> {
        let kept = ledger
            .entries()
            .iter()
            .filter(|e| e.outcome == Outcome::Kept);
        kept.map(name_of).collect()
    };
    let both = kept(&second);
    for entry in first
        .entries()
        .iter()
        .filter(|e| e.outcome == Outcome::Kept)
    {
        let what = format!("{} to {to} and back", source.name);
        let in_copy = second
            .entries()
            .iter()
            .any(|e| name_of(e) == name_of(entry));
        assert!(in_copy, "{what}: {entry}");
        if both.contains(&name_of(entry)) {
            facts[1].agree(&facts[0], entry, &what);
        }
    }
    true
}

#[test]
fn every_item_is_in_the_ledger_once_and_what_it_says_is_true() {
    let dir = tempfile::tempdir().unwrap();
    let mut done = 0;
    for make in sources::ALL {
        let source = make(dir.path());
        for to in linked() {
            let went = there_and_back(&source, dir.path(), &to, [Options::PLAIN; 2]);
            done += u32::from(went);
        }
    }
    assert!(done >= 40, "{done} pairs");
}

fn options() -> impl Strategy<Value = Options> {
    let dtype = prop::option::of(prop::sample::select(vec![DType::BFloat16, DType::Float64]));
    let without = prop::option::of(prop::sample::select(vec!['0', 'w', 'a']));
    (1u32..4, dtype, without).prop_map(|(ranks, dtype, without)| Options {
        ranks,
        dtype,
        without,
    })
}

proptest! {
    #![proptest_config(law(12))]

    #[test]
    fn the_ledger_is_true_with_any_options(
        source in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
        there in options(), back in options(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let source = source.get(&sources::ALL)(dir.path());
        let formats = linked();
        there_and_back(&source, dir.path(), to.get(&formats), [there, back]);
    }
}

#[test]
fn a_copy_without_anything_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = sources::objects_only(dir.path());
    let from = open(&source.url, &source.format);
    let dst = dir.path().join("model.safetensors").display().to_string();
    let e = blocking::run(convert(&from, &dst).drop_objects(true)).unwrap_err();
    let ConvertError::NothingLeft { items, .. } = &e else {
        panic!("{e}");
    };
    assert_eq!(*items, 2);
    assert!(
        e.to_string()
            .contains("safetensors/1 has no place for objects"),
        "{e}"
    );
    assert!(!Path::new(&dst).exists());
}

#[test]
fn keys_that_are_no_text_are_stated_with_their_types() {
    let dir = tempfile::tempdir().unwrap();
    let source = sources::ALL[0](dir.path());
    let opened = open(&source.url, &source.format);
    let stated = opened.metadata().annotations();
    let found: Vec<_> = stated
        .of_all_files(AnnotationKind::KeyType)
        .map(|(id, kind)| (id.to_string(), kind.as_str().unwrap()))
        .collect();
    let want = [
        ("-7", "int"),
        ("0", "int"),
        ("1", "int"),
        ("None", "None"),
        ("True", "bool"),
    ];
    let want = want.map(|(key, kind)| (format!(r#"["optimizer"]["state"]["{key}"]"#), kind));
    assert_eq!(found, want);
}
