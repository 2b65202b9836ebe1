//! No two files of a crate need each other.
//!
//! A file *needs* another one when its code names an item that the other defines: by `use`, by a path, or by a path in a
//! macro's arguments. A name that is handed on (`pub use`) leads to the file that defines it, never to the one that hands it
//! on. Files that need each other, directly or around, are a circle: none of them can be read, tested or moved alone.
//!
//! These are no needs:
//!
//! - The words of a crate: types, traits and constants that everybody can name. An error names a region, and a region's
//!   functions return that error; both are what the crate is about. A function that everybody can call is no word.
//! - What a module does with the files below it by calling their functions, and by `pub use`: it is told in parts, and shows a
//!   face. So a part may use what its module's file defines, unless the module's code also names types of the part.
//! - Methods and fields: they come with a type that somebody else has named. Names of modules: what is taken from them counts.
//! - Code under `#[cfg(test)]`: unit tests may look at anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::Value;

mod graph;
mod module;
mod needs;

use graph::circles;
use module::{Crate, text};

/// Checks each target of each package of the workspace: libraries, programs, examples, tests.
pub(super) fn check(metadata: &Value, root: &Path, complaints: &mut Vec<String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let Some(path) = target["src_path"].as_str().map(PathBuf::from) else {
                continue;
            };
            if seen.insert(path.clone()) {
                complaints.extend(check_target(&path, root, &text)?);
            }
        }
    }
    Ok(())
}

/// One complaint a circle, with all that ties it.
fn check_target(
    path: &Path,
    root: &Path,
    read: &dyn Fn(&Path) -> Result<Option<String>>,
) -> Result<Vec<String>> {
    let whole = Crate::read(path, read)?;
    let needs = needs::of(&whole);
    let name = |file: usize| {
        let path = &whole.files[file].path;
        path.strip_prefix(root)
            .unwrap_or(path)
            .display()
            .to_string()
    };

    // Circles are found among files, whatever the names are. The names come back only for the complaint.
    let arrows: BTreeMap<usize, BTreeSet<usize>> =
        needs
            .iter()
            .fold(BTreeMap::new(), |mut all, ((from, to), _)| {
                all.entry(*from).or_insert_with(BTreeSet::new).insert(*to);
                all
            });
    let told = |circle: BTreeSet<usize>| {
        let inside = needs
            .iter()
            .filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
        let lines = inside.map(|((from, to), names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!(
                "\n  {} needs {} of {}",
                name(*from),
                names.join(", "),
                name(*to)
            )
        });
        format!(
            "{} files need each other in a circle:{}",
            circle.len(),
            lines.collect::<String>()
        )
    };
    Ok(circles(&arrows).into_iter().map(told).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate of these files, `lib.rs` first; each as the arrows that are told.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: BTreeMap<PathBuf, String> = files
            .iter()
            .map(|(name, text)| (Path::new("src").join(name), (*text).to_owned()))
            .collect();
        let read = |path: &Path| Ok(files.get(path).cloned());
        check_target(Path::new("src/lib.rs"), Path::new("src"), &read)
            .unwrap_or_else(|e| vec![format!("{e:#}")])
    }

    #[test]
    fn two_files_that_name_each_others_items_are_a_circle() {
        let b = "use super::a::A;\npub struct B(A);";
        for a in [
            "use crate::b::B;\npub struct A;",
            "pub struct A;\nfn f() { crate::b::B::new() }",
            "use crate::b;\npub struct A;\nfn f(_: b::B) {}",
            "pub struct A;\nfn f() { println!(\"{:?}\", super::b::B) }",
            "use crate::*;\npub struct A;\nfn f(_: B) {}",
            "use crate::Beta;\npub struct A;",
            "pub struct A;\n#[cfg(any(test, feature = \"x\"))]\nfn f(_: crate::b::B) {}",
            "pub struct A;\nfn f() { use crate::b::{self as other}; other::B; }",
        ] {
            let circles = found(&[
                (
                    "lib.rs",
                    "mod a;\nmod b;\npub(crate) use b::{B, B as Beta};",
                ),
                ("a.rs", a),
                ("b.rs", b),
            ]);
            assert_eq!(circles.len(), 1, "{a}");
            assert!(circles[0].contains("2 files"), "{}", circles[0]);
            assert!(
                circles[0].contains("b.rs needs A of a.rs") && circles[0].contains("a.rs needs B"),
                "{}",
                circles[0]
            );
        }
    }

    #[test]
    fn a_circle_of_many_files_is_told_once_and_what_only_leads_into_it_is_not() {
        let lib = "mod a; mod b; mod c; mod d;";
        let file = |next: &str| format!("use crate::{next}::f as next; pub fn f() {{ next() }}");
        let circles = found(&[
            ("lib.rs", lib),
            ("a.rs", &file("b")),
            ("b.rs", &file("c")),
            ("c.rs", &file("a")),
            ("d.rs", &file("a")),
        ]);
        assert_eq!(circles.len(), 1);
        assert!(
            circles[0].starts_with("3 files") && !circles[0].contains("d.rs"),
            "{}",
            circles[0]
        );
    }

    #[test]
    fn a_module_calls_its_parts_and_a_part_may_use_the_module() {
        let found = |module: &str, part: &str| {
            let module = format!("mod part;\npub struct Whole;\n{module}");
            found(&[("lib.rs", "mod a;"), ("a.rs", &module), ("a/part.rs", part)])
        };
        let part = "use super::Whole;\npub struct Part;\npub fn f(_: Whole) {}";
        for module in [
            "fn g() { part::f(Whole) }",
            "use part::f;\nfn g() { f(Whole) }",
            "pub use part::{Part, f};",
        ] {
            assert!(found(module, part).is_empty(), "{module}");
        }
        for module in [
            "fn g(_: part::Part) {}",
            "use part::Part;",
            "pub use part::Part;\nfn g(_: Part) {}",
        ] {
            assert_eq!(found(module, part).len(), 1, "{module}");
            assert!(found(module, "pub struct Part;").is_empty(), "{module}");
        }
        // A part calls nobody above it but in its own module.
        let up = found(
            "fn h() {}\nfn g() { part::f() }",
            "pub fn f() { super::h() }",
        );
        assert!(up.is_empty(), "{up:?}");
    }

    #[test]
    fn words_of_the_crate_tie_nothing_but_its_functions_do() {
        let found = |face: &str, a: &str| {
            let lib = format!("mod a;\nmod b;\n{face}");
            let b = "use crate::a::A;\npub struct B(A);\npub fn f() {}";
            found(&[("lib.rs", &lib), ("a.rs", a), ("b.rs", b)]).len()
        };
        let (word, call) = (
            "use crate::B;\npub struct A;",
            "pub struct A;\nfn g() { crate::b::f() }",
        );
        assert_eq!(
            (
                found("pub use b::B;", word),
                found("pub(crate) use b::B;", word)
            ),
            (0, 1)
        );
        assert_eq!((found("pub use b::f;", call), found("", call)), (1, 1));
        assert_eq!(
            found(
                "pub mod c { pub use crate::b::B; }",
                word.replace("crate::B", "crate::b::B").as_str()
            ),
            0
        );
    }

    #[test]
    fn names_of_modules_methods_tests_and_inner_modules_tie_nothing() {
        let b = "use crate::a::A;\npub struct B(A);";
        for a in [
            "use crate::b;\npub struct A;",
            "pub struct A;\nfn f(b: impl Fn()) { b.B() }",
            "pub struct A;\n#[cfg(test)]\nmod tests { use crate::b::B; }",
            "pub struct A;\n#[cfg(all(test, unix))]\nfn f(_: crate::b::B) {}",
            "pub struct A;\nmod b { pub struct B; }\nfn f(_: b::B) {}",
        ] {
            let circles = found(&[("lib.rs", "mod a;\nmod b;"), ("a.rs", a), ("b.rs", b)]);
            assert!(circles.is_empty(), "{a}: {circles:?}");
        }
    }

    #[test]
    fn macros_are_found_where_they_are_defined() {
        let lib = "mod a;\nmod b;";
        let a = "macro_rules! m { () => {} }\npub(crate) use m;\nuse crate::b::B;";
        assert_eq!(
            found(&[
                ("lib.rs", lib),
                ("a.rs", a),
                ("b.rs", "pub struct B;\ncrate::a::m!();")
            ])
            .len(),
            1
        );
    }
}
