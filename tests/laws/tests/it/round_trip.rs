//! What N ranks save, M ranks load, however it was spread and however it is.

use proptest::prelude::*;
use reshard::{
    Dialect, Durability,
    torch_dist::{Strides, TorchDistConfig},
};
use reshard_laws::{
    cases,
    place::Place,
    ranks::{group, load, save},
    world::{dice, world},
};

fn settings() -> impl Strategy<Value = TorchDistConfig> {
    (0u32..4, any::<bool>()).prop_map(|(files, keep)| {
        let strides = if keep { Strides::Keep } else { Strides::RowMajor };
        let config = TorchDistConfig::new().with_strides(strides);
        // Nought stands for a file an item.
        if files == 0 { config.with_file_per_item(true) } else { config.with_files_per_rank(files) }
    })
}

fn dialect() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::Megatron), Just(Dialect::Dcp)]
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn what_n_ranks_save_m_ranks_load(
        world in world(), n in 1u32..5, m in 1u32..5, mut dice in dice(),
        config in settings(), dialect in dialect(), on_disk in prop::bool::weighted(0.2),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let memory = Place::new();
        let url = if on_disk { dir.path().join("ckpt").display().to_string() } else { memory.url().into() };

        let cut = world.cut(n, &mut dice);
        let states = world.states(&cut, &mut dice);
        let saved = save(group(n), states, &url, move |_, save| {
            save.dialect(dialect).strategy(config.clone()).durability(Durability::Process)
        });
        for outcome in saved {
            outcome.unwrap();
        }

        let cut = world.cut(m, &mut dice);
        let (mut templates, mut watches) = (Vec::new(), Vec::new());
        for r in 0..m {
            let (template, watch) = world.template(&cut, r, n, dialect, &mut dice);
            templates.push(template);
            watches.push(watch);
        }
        for (r, outcome) in (0..).zip(load(group(m), templates, &url, |_, load| load)) {
            let (plain, report) = outcome.unwrap();
            world.check(&cut, r, n, &plain);
            prop_assert!(report.notes.missing.is_empty() && report.notes.casts.is_empty());
        }
        watches.iter().for_each(|w| w.check_filled());
    }
}
