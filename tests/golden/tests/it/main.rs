//! Checkpoints that PyTorch and Megatron Core wrote.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail and speak as tests do"
)]

mod damaged;
mod knobs;
mod loads;
mod meshes;
mod one_reader;
mod other_programs;
mod places;
mod rank_files;
mod read;
mod removal;
mod safetensors;
mod saved;
mod shared;
mod sound;
mod templates;
mod tf_bundle;
mod tf_embedding;
mod tf_interop;
mod tf_policy;
mod tf_restores;
mod torch_save;

use futures::executor::block_on;
use reshard::{Cast, LoadError, LocalGroup, StateDict, ValueTree, strategy::LoadShardedStrategy};

/// Loads on as many ranks as there are templates, each a thread.
fn load(templates: Vec<StateDict>, url: &str, cast: Cast) -> Vec<Result<ValueTree, LoadError>> {
    load_by(None, templates, url, cast)
}

/// The same by a strategy with these settings, if there are some.
fn load_by(
    settings: Option<&serde_json::Value>,
    templates: Vec<StateDict>,
    url: &str,
    cast: Cast,
) -> Vec<Result<ValueTree, LoadError>> {
    let groups = LocalGroup::new(templates.len() as u32);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = groups
            .into_iter()
            .zip(templates)
            .map(|(group, template)| {
                scope.spawn(move || {
                    block_on(async {
                        let load = reshard::load(template, url).group(&group).cast(cast);
                        match settings {
                            None => load.await,
                            Some(settings) => {
                                let config: LoadShardedStrategy =
                                    serde_json::from_value(settings.clone()).unwrap();
                                load.strategy(config).await
                            }
                        }
                    })
                })
            })
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}
