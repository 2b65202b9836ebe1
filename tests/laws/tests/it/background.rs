//! A save in the background writes what a save writes that is awaited.

use proptest::prelude::*;
use reshard::{AsyncCallsQueue, AsyncSaver, Dialect, Save, Staging, policy::AllInOne};
use reshard_comm::testkit::on_ranks;
use reshard_laws::{
    contents::{choices, contents},
    law,
    place::{Place, stores},
    ranks::{group, save},
};
use std::sync::Arc;

/// What both saves have in common.
#[derive(Clone, Copy, Debug)]
struct How {
    dcp: bool,
    /// Ranks write pieces of each other, in an exchange.
    gathers: bool,
    shares: bool,
}

impl How {
    fn set<'a>(self, save: Save<'a>) -> Save<'a> {
        let save = save.dialect(if self.dcp {
            Dialect::Dcp
        } else {
            Dialect::Megatron
        });
        let save = save.staging(if self.shares {
            Staging::Share
        } else {
            Staging::Copy
        });
        if self.gathers {
            save.policy(AllInOne { gather: true })
        } else {
            save
        }
    }
}

proptest! {
    #![proptest_config(law(48))]

    #[test]
    fn saves_in_the_background_write_the_same_bytes(
        contents in contents(), n in 1u32..5, mut choices in choices(), dcp: bool, gathers: bool, shares: bool, queue: bool,
    ) {
        let how = How { dcp, gathers, shares };
        let cut = contents.cut(n, &mut choices);
        let awaited = Place::new();
        for saved in save(group(n), contents.states(&cut, &mut choices), awaited.url(), move |_, s| how.set(s)) {
            saved.unwrap();
        }

        let background = Place::new();
        let url: Arc<str> = background.url().into();
        let ranks = group(n).into_iter().zip(contents.states(&cut, &mut choices)).collect();
        on_ranks(ranks, move |(group, state)| {
            let url = Arc::clone(&url);
            async move {
                let save = how.set(reshard::save(&state, &*url).stores(stores()));
                if queue {
                    let mut queue = AsyncCallsQueue::new(&*group).await.unwrap();
                    let request = queue.request(save).await.unwrap();
                    drop(state);
                    queue.schedule(request).unwrap();
                    assert_eq!(queue.close(false).await.unwrap().len(), 1);
                } else {
                    let mut saver = AsyncSaver::new(&*group).await.unwrap();
                    let handle = saver.start(save).await.unwrap();
                    drop(state);
                    handle.finish().await.unwrap();
                    saver.close().await.unwrap();
                }
            }
        });
        let (first, second) = (awaited.files(), background.files());
        prop_assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
        for (name, bytes) in &first {
            prop_assert!(second[name] == bytes, "{} differs", name);
        }
        prop_assert_eq!(background.leftovers(), 0);
    }
}
