//! All mutants of a file in one source: a function asks at run time which of its bodies it is to run.

use std::ops::Range;

use anyhow::{Context as _, Result};
use syn::visit::Visit;

use super::mutant::Mutant;

/// The program's environment says which mutant is meant.
pub(crate) const CHOICE: &str = "RESHARD_MUTANT";

/// Names a file in which a program writes the functions that it has entered.
pub(crate) const ENTERED: &str = "RESHARD_MUTANT_ENTERED";

/// What the root of a crate needs, for [`weave`]d functions of it.
pub(crate) const CHOOSER: &str = r#"
#[allow(clippy::all, missing_docs)]
pub(crate) fn __mutant(function: usize) -> usize {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static CHOSEN: OnceLock<usize> = OnceLock::new();
    static PATH: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    // Asked at every entry, so it must be quick: tests hold limits of time.
    static SEEN: [AtomicBool; 4096] = [const { AtomicBool::new(false) }; 4096];
    if let Some(path) = PATH.get_or_init(|| std::env::var_os("RESHARD_MUTANT_ENTERED"))
        // Of more functions than these each entry is written down.
        && SEEN.get(function).is_none_or(|seen| {
            !seen.load(Ordering::Relaxed) && !seen.swap(true, Ordering::Relaxed)
        })
    {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // In one call, since other processes write, too.
        drop(file.and_then(|mut file| std::io::Write::write_all(&mut file, format!("{function}\n").as_bytes())));
    }
    *CHOSEN.get_or_init(|| std::env::var("RESHARD_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0))
}
"#;

/// A source with many bodies.
#[derive(Debug)]
pub(crate) struct Woven {
    pub(crate) text: String,
    pub(crate) bodies: Vec<Body>,
}

/// A mutant in a woven source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) id: usize,
    /// The least number of a mutant in this function.
    pub(crate) function: usize,
    /// The lines of the woven source that are its own, the first one being 1.
    pub(crate) lines: Range<usize>,
}

/// The mutants that lie in bodies of functions get numbers; the others can't be chosen at run time, and are left out.
pub(crate) fn weave(source: &str, mutants: &[(usize, &Mutant)]) -> Result<Woven> {
    let mut functions = Functions(Vec::new());
    functions.visit_file(&syn::parse_file(source).context("a source that is no Rust")?);
    let places = mutants
        .iter()
        .map(|(id, mutant)| Some((*id, bytes(source, mutant)?, &*mutant.replacement)));
    let places: Vec<_> = places
        .collect::<Option<_>>()
        .context("a mutant lies outside of its source")?;
    let mut woven = Woven {
        text: String::new(),
        bodies: Vec::new(),
    };
    let mut done = 0;
    for body in functions.0 {
        let inside = |place: &Range<usize>| body.start <= place.start && place.end <= body.end;
        let own: Vec<_> = places
            .iter()
            .filter(|(_, place, _)| inside(place))
            .collect();
        let Some(function) = own.iter().map(|(id, ..)| *id).min() else {
            continue;
        };
        woven.text.push_str(&source[done..body.start]);
        woven
            .text
            .push_str(&format!("{{ match crate::__mutant({function}) {{\n"));
        for (id, place, replacement) in own {
            let first = woven.next_line();
            let (before, behind) = (
                &source[body.start..place.start],
                &source[place.end..body.end],
            );
            woven
                .text
                .push_str(&format!("{id} => {before} {replacement} {behind}\n"));
            let lines = first..woven.next_line();
            woven.bodies.push(Body {
                id: *id,
                function,
                lines,
            });
        }
        woven
            .text
            .push_str(&format!("_ => {}\n}} }}", &source[body.clone()]));
        done = body.end;
    }
    woven.text.push_str(&source[done..]);
    // Many bodies within each of many bodies would take the compiler forever.
    for asked in ["#[inline(always)]", "#[inline]"] {
        woven.text = woven.text.replace(asked, "#[inline(never)]");
    }
    Ok(woven)
}

impl Woven {
    fn next_line(&self) -> usize {
        self.text.matches('\n').count() + 1
    }
}

/// Where in the source a mutant is.
fn bytes(source: &str, mutant: &Mutant) -> Option<Range<usize>> {
    let at = |(line, column): (usize, usize)| {
        let line: &str = source.split_inclusive('\n').nth(line.checked_sub(1)?)?;
        let start = line.as_ptr() as usize - source.as_ptr() as usize;
        let column = column.checked_sub(1)?;
        let within = line
            .char_indices()
            .map(|(i, _)| i)
            .chain([line.len()])
            .nth(column)?;
        Some(start + within)
    };
    Some(at(mutant.from)?..at(mutant.to)?)
}

/// Bodies of functions that can ask something at run time, and lie in no other function, in order. Those that return `impl`
/// something are left out: all bodies would have to return the same type.
struct Functions(Vec<Range<usize>>);

/// Whether `impl` something stands in a type.
struct Opaque(bool);

impl Visit<'_> for Opaque {
    fn visit_type_impl_trait(&mut self, _: &syn::TypeImplTrait) {
        self.0 = true;
    }
}

impl Functions {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let mut opaque = Opaque(false);
        opaque.visit_return_type(&signature.output);
        if signature.constness.is_none() && !opaque.0 {
            let braces = body.brace_token.span;
            self.0
                .push(braces.open().byte_range().start..braces.close().byte_range().end);
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
        self.add(&f.sig, &f.block);
    }

    fn visit_impl_item_fn(&mut self, f: &'ast syn::ImplItemFn) {
        self.add(&f.sig, &f.block);
    }

    fn visit_trait_item_fn(&mut self, f: &'ast syn::TraitItemFn) {
        if let Some(body) = &f.default {
            self.add(&f.sig, body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "const fn c() -> u8 { 1 + 2 }\n/// ä\n#[inline] fn f(a: u8) -> bool {\n    /* ä */ a < 3\n}\n";

    fn mutant(from: (usize, usize), to: (usize, usize), replacement: &str) -> Mutant {
        Mutant {
            from,
            to,
            replacement: replacement.into(),
            ..Mutant::default()
        }
    }

    #[test]
    fn each_mutant_is_a_body_that_is_chosen_by_number() -> Result<()> {
        let (less, all) = (
            mutant((4, 15), (4, 16), "<="),
            mutant((4, 5), (4, 18), "true"),
        );
        let constant = mutant((1, 24), (1, 25), "-");
        let woven = weave(SOURCE, &[(7, &less), (8, &all), (9, &constant)])?;
        let text = "const fn c() -> u8 { 1 + 2 }\n/// ä\n#[inline(never)] fn f(a: u8) -> bool { match crate::__mutant(7) {\n\
                    7 => {\n    /* ä */ a  <=  3\n}\n8 => {\n     true \n}\n_ => {\n    /* ä */ a < 3\n}\n} }\n";
        assert_eq!(woven.text, text);
        let body = |id, lines| Body {
            id,
            function: 7,
            lines,
        };
        assert_eq!(
            woven.bodies,
            [body(7, 4..7), body(8, 7..10)],
            "what is not in a body that runs is left out"
        );
        syn::parse_file(&woven.text)?;
        let opaque = weave(
            "fn f() -> Option<impl Fn()> { g() }",
            &[(3, &mutant((1, 31), (1, 34), "h()"))],
        )?;
        assert!(
            opaque.bodies.is_empty(),
            "another body may have another type"
        );
        Ok(())
    }

    #[test]
    fn a_mutant_that_lies_elsewhere_is_an_error() {
        assert!(weave(SOURCE, &[(1, &mutant((9, 1), (9, 2), ""))]).is_err());
        assert!(weave("fn f( {", &[]).is_err());
    }

    #[test]
    fn the_chooser_reads_what_is_chosen() {
        assert!(
            [CHOICE, ENTERED]
                .iter()
                .all(|name| CHOOSER.contains(&format!("{name:?}")))
        );
    }
}
