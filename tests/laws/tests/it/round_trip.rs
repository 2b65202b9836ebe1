//! What N ranks save, M ranks load, however it was spread and however it is.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{
    Dialect, Durability, OpenOptions, ValueTree,
    model::{Step, Tree},
    strategy::SaveShardedStrategy,
    torch_dist::{Strides, TorchDistConfig},
};
use reshard_example::ExampleConfig;
use reshard_laws::{
    contents::{choices, contents},
    law,
    place::{Place, stores},
    ranks::{group, load, save},
};

/// `torch_dist` in its settings, and a format of a third party.
fn format() -> impl Strategy<Value = Format> {
    let torch = (0u32..4, any::<bool>()).prop_map(|(files, keep)| {
        let strides = if keep {
            Strides::Keep
        } else {
            Strides::RowMajor
        };
        let config = TorchDistConfig::new().with_strides(strides);
        // Nought stands for a file an item.
        Format(Some(if files == 0 {
            config.with_file_per_item(true)
        } else {
            config.with_files_per_rank(files)
        }))
    });
    prop_oneof![4 => torch, 1 => Just(Format(None))]
}

#[derive(Clone, Debug)]
struct Format(Option<TorchDistConfig>);

impl Format {
    fn config(&self) -> SaveShardedStrategy {
        match &self.0 {
            Some(torch) => torch.clone().into(),
            None => ExampleConfig::default().into(),
        }
    }
}

fn dialect() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::Megatron), Just(Dialect::Dcp)]
}

proptest! {
    #![proptest_config(law(64))]

    #[test]
    fn what_n_ranks_save_m_ranks_load(
        contents in contents(), n in 1u32..5, m in 1u32..5, mut choices in choices(),
        format in format(), dialect in dialect(), on_disk in prop::bool::weighted(0.2),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let memory = Place::new();
        let url = if on_disk { dir.path().join("ckpt").display().to_string() } else { memory.url().into() };

        let cut = contents.cut(n, &mut choices);
        let states = contents.states(&cut, &mut choices);
        let saved = save(group(n), states, &url, move |_, save| {
            save.dialect(dialect).strategy(format.config()).durability(Durability::Process)
        });
        for outcome in saved {
            outcome.unwrap();
        }

        let cut = contents.cut(m, &mut choices);
        let (mut templates, mut watches) = (Vec::new(), Vec::new());
        for r in 0..m {
            let (template, watch) = contents.template(&cut, r, n, dialect, &mut choices);
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

    /// Opened by one process, without a template.
    #[test]
    fn an_opened_checkpoint_gives_everything_back(
        contents in contents(), n in 1u32..4, mut choices in choices(), dialect in dialect(), format in format(),
    ) {
        let place = Place::new();
        let cut = contents.cut(n, &mut choices);
        let states = contents.states(&cut, &mut choices);
        let saved = save(group(n), states, place.url(), move |_, save| {
            save.dialect(dialect).strategy(format.config())
        });
        saved.into_iter().for_each(|o| drop(o.unwrap()));
        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        prop_assert_eq!(opened.dialect(), dialect);
        for t in &contents.tensors {
            let got = block_on(opened.tensor(&t.key).unwrap().read(..)).unwrap();
            prop_assert!(got.to_bytes() == t.whole().to_bytes(), "{} differs", t.key);
        }
        let state = block_on(opened.state()).unwrap();
        let extra = ValueTree::from(contents.extra.clone());
        let want = if dialect == Dialect::Dcp { textual(extra) } else { extra };
        prop_assert_eq!(state.get("extra"), Some(&want));
        let report = block_on(opened.verify(true, Default::default())).unwrap();
        prop_assert!(report.damage.is_empty() && report.unchecked.is_empty(), "{:?}", report);
    }
}

/// PyTorch keeps int keys of dicts as text.
fn textual(tree: ValueTree) -> ValueTree {
    match tree {
        Tree::Dict(d) => Tree::Dict(
            d.into_iter()
                .map(|(k, v)| (Step::from(k.to_string()), textual(v)))
                .collect(),
        ),
        // A list without tensors and dicts is one object.
        Tree::List(v) => Tree::List(v.into_iter().map(textual).collect()),
        leaf => leaf,
    }
}
