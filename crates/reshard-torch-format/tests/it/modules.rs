//! Pickled modules, opened without executing anything.

use crate::samples::sample;
use bytes::Bytes;
use proptest::prelude::*;
use reshard_model::testkit::law;
use reshard_torch_format::{
    Contents, Error, Limits, Modules, Outline, ScriptClasses,
    archive::{Archive, Verify},
};

fn contents(pickle: impl Into<Bytes>, modules: &Modules) -> Result<Contents, Error> {
    let (pickle, limits) = (pickle.into(), Limits::default());
    let outline = Outline::parse(&pickle, pickle.len() as u64, &limits)?;
    outline.contents_with(Default::default(), modules)
}

fn open() -> Modules {
    Modules::default().with_open(true)
}

/// A module with this state, in instructions.
fn module(state: &str) -> String {
    format!("(imy\nNet\n(d{state}b")
}

#[test]
fn a_module_that_contains_itself_is_an_error() {
    let own = "(imy\nNet\np0\n(dS'_parameters'\n(dsS'_modules'\n(dS'a'\ng0\nssb.";
    let e = contents(own, &open()).unwrap_err().to_string();
    assert!(e.contains("a module that contains itself"), "{e}");
}

/// Each level names the next one twice: the tensors of the last would be there more often than there is memory for.
#[test]
fn a_module_that_is_named_very_often_is_a_limit() {
    let mut pickle = module("S'_parameters'\n(dsS'_modules'\n(ds");
    for level in 0..60 {
        let all = format!("p{level}\n0");
        let state =
            format!("S'_parameters'\n(dsS'_modules'\n(dS'a'\ng{level}\nsS'b'\ng{level}\nss");
        pickle = format!("{pickle}{all}{}", module(&state));
    }
    for modules in [open(), Modules::default()] {
        let e = contents(format!("{pickle}."), &modules).unwrap_err();
        assert!(matches!(e, Error::Limit { .. }), "{e}");
    }
}

#[test]
fn hooks_of_a_module_are_said() {
    for (hooks, want) in [("(d", false), ("(dI1\nNs", true)] {
        let state = format!("S'_parameters'\n(dsS'_modules'\n(dsS'_state_dict_hooks'\n{hooks}s");
        let found = contents(module(&state) + ".", &open()).unwrap();
        assert_eq!(found.modules[0].hooks, want);
        assert_eq!(&*found.modules[0].class, "my.Net");
    }
}

proptest! {
    #![proptest_config(law(1000))]

    #[test]
    fn damaged_modules_never_panic(at in any::<prop::sample::Index>(), byte: u8) {
        let archive = Archive::open(sample("module.pt"), &Limits::default()).unwrap();
        let mut pickle = archive.read("data.pkl", Verify::No).unwrap().to_vec();
        let at = at.index(pickle.len());
        pickle[at] = byte;
        drop(contents(pickle, &open()));
    }

    #[test]
    fn any_code_declares_classes_or_nothing(code in "(class |Module|[(\":=_\\\\ \n\\[\\]]|[a-z]){0,60}") {
        let mut classes = ScriptClasses::default();
        classes.add("m", &code);
        let modules = open().with_script(Some(classes));
        drop(contents(module("S'a'\nNs") + ".", &modules));
    }
}
