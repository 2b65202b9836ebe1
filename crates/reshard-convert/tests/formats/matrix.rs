//! All linked formats into all linked formats. A format that is linked is in it.

use crate::states::{Case, cases, contents, dialect, formats, holds_objects, open, save, strategy};
use futures::executor::block_on;
use reshard::{BackendVersion, Checkpoint, Dialect, ErrorKind, blocking};
use reshard_convert::{ConvertError, NotHeld, convert};

/// How many items a format should refuse, by its own words.
fn refused(case: &Case, source: &Checkpoint, to: &BackendVersion) -> usize {
    let can = strategy(to).capabilities();
    let holds_objects = holds_objects(to, source.dialect());
    let objects = if holds_objects {
        0
    } else {
        source.objects().count()
    };
    let is_megatron = dialect(source.dialect(), &can) == Dialect::Megatron;
    let common = case.common && !holds_objects && !is_megatron;
    let tensors = source.tensors().filter(|t| !can.holds(t.dtype())).count();
    objects + usize::from(common) + tensors
}

/// Tensors whose keys are in both, and only those.
fn same_tensors(a: &Checkpoint, b: &Checkpoint, what: &str) {
    assert_eq!(contents(a), contents(b), "{what}");
}

fn go(case: &Case, source: &Checkpoint, to: &BackendVersion, dst: &str, what: &str) -> bool {
    let all = convert(source, dst).to(to.clone()).ranks(2);
    let refused = refused(case, source, to);
    match blocking::run(all) {
        Ok(report) => {
            assert_eq!((refused, report.dropped.len()), (0, 0), "{what}");
            assert_eq!(report.format, *to);
            true
        }
        Err(ConvertError::NotHeld { what: found, .. }) => {
            assert_eq!(found.len(), refused, "{what}: {found:?}");
            let some = convert(source, dst).to(to.clone()).drop_objects(true);
            let report = blocking::run(some).unwrap_or_else(|e| unreachable!("{what}: {e}"));
            assert_eq!(report.dropped, found, "{what}");
            let keys: Vec<&str> = found
                .iter()
                .filter_map(|n| match n {
                    NotHeld::Tensor(key, _) => Some(key.as_str()),
                    _ => None,
                })
                .collect();
            let mut left = contents(source);
            left.retain(|key, _| !keys.contains(&key.as_str()));
            assert_eq!(contents(&open(dst, to)), left, "{what}");
            false
        }
        // A format may have only objects of some kinds.
        Err(e) => {
            assert!(
                case.objects && e.kind() == ErrorKind::Unsupported,
                "{what}: {e}"
            );
            false
        }
    }
}

#[test]
fn every_format_becomes_every_other_and_comes_back_as_it_was() {
    let formats = formats();
    assert!(formats.len() >= 3, "{formats:?}");
    let mut done = 0;
    for case in cases() {
        for (i, from) in formats.iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let url = |name: String| dir.path().join(name).display().to_string();
            let src = url(format!("{i}"));
            if save(&case, from, &src).is_none() {
                continue;
            }
            let source = open(&src, from);
            for (j, to) in formats.iter().enumerate() {
                let what = format!("{} from {from} to {to}", case.name);
                let there = url(format!("{i}-{j}"));
                if !go(&case, &source, to, &there, &what) {
                    continue;
                }
                let there = open(&there, to);
                same_tensors(&source, &there, &what);
                same_objects(&source, &there, &what);

                let back_at = url(format!("{i}-{j}-{i}"));
                let back = convert(&there, &back_at).to(from.clone()).ranks(3);
                match blocking::run(back) {
                    Ok(_) => {
                        let back = open(&back_at, from);
                        same_tensors(&source, &back, &format!("{what} and back"));
                        same_objects(&source, &back, &format!("{what} and back"));
                        done += 1;
                    }
                    // Common state that has become items does not become common state again, and not every format has items.
                    Err(e) => assert!(
                        case.objects && e.kind() == ErrorKind::Unsupported,
                        "{what}: {e}"
                    ),
                }
            }
        }
    }
    assert!(done >= 7 * 9, "{done}");
}

/// Objects have equal values, if they are objects of the same dialect.
fn same_objects(a: &Checkpoint, b: &Checkpoint, what: &str) {
    if a.dialect() != b.dialect() {
        return;
    }
    let values = |c: &Checkpoint| -> Vec<_> {
        let keys: Vec<String> = c.objects().map(str::to_owned).collect();
        let value = |key: String| (key.clone(), block_on(c.object(&key)).unwrap());
        keys.into_iter().map(value).collect()
    };
    assert_eq!(values(a), values(b), "{what}");
    let common = |c: &Checkpoint| block_on(c.common()).unwrap();
    assert_eq!(common(a), common(b), "{what}");
}
