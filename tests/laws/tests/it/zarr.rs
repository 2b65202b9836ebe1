//! Zarr arrays: what N ranks save in boxes of irregular grids, M ranks load, with objects and common state beside them.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{Dialect, Durability, OpenOptions};
use reshard_laws::{
    contents::{Contents, choices, contents},
    law,
    place::{Place, stores},
    ranks::{group, load, save},
    zarrs::{Zarr, zarrs},
};

/// With element types that Zarr has names for.
fn named(mut contents: Contents) -> Contents {
    for t in &mut contents.tensors {
        t.dtype = Zarr::named(t.dtype);
    }
    contents
}

proptest! {
    #![proptest_config(law(64))]

    #[test]
    fn what_n_ranks_save_in_arrays_m_ranks_load(
        contents in contents().prop_map(named), n in 1u32..5, m in 1u32..5, mut choices in choices(),
        zarr in zarrs(), on_disk in prop::bool::weighted(0.2),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let memory = Place::new();
        let url = if on_disk { dir.path().join("ckpt").display().to_string() } else { memory.url().into() };

        let cut = contents.cut(n, &mut choices);
        let states = contents.states(&cut, &mut choices);
        let saved = save(group(n), states, &url, move |_, save| {
            save.dialect(Dialect::Megatron).strategy(zarr.config()).durability(Durability::Process)
        });
        for outcome in saved {
            outcome.unwrap();
        }

        let opened = block_on(OpenOptions::new().stores(stores()).open(&url)).unwrap();
        let report = block_on(opened.verify(true, Default::default())).unwrap();
        prop_assert!(report.damage.is_empty() && report.unchecked.is_empty(), "{:?}", report);
        prop_assert_eq!(report.without_checksum, 0);
        for t in &contents.tensors {
            let got = block_on(opened.tensor(&t.key).unwrap().read(..)).unwrap();
            prop_assert!(got.to_bytes() == t.whole().to_bytes(), "{} differs", t.key);
        }

        let cut = contents.cut(m, &mut choices);
        let (mut templates, mut watches) = (Vec::new(), Vec::new());
        for r in 0..m {
            let (template, watch) = contents.template(&cut, r, n, Dialect::Megatron, &mut choices);
            templates.push(template);
            watches.push(watch);
        }
        for (r, outcome) in (0..).zip(load(group(m), templates, &url, |_, load| load)) {
            let (plain, report) = outcome.unwrap();
            contents.check(&cut, r, n, &plain);
            prop_assert!(report.notes.not_stored.is_empty() && report.notes.casts.is_empty());
        }
        watches.iter().for_each(|w| w.check_filled());
    }
}
