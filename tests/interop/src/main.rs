//! `reshard-interop`: saves and checks what a spec says, as the Python drivers beside it do. See `README.md`.
#![expect(clippy::print_stdout, reason = "a program whose output is its result")]

mod planners;
mod spec;
mod state;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use futures::executor::block_on;
use planners::{Loading, Saving};
use reshard::strategy::testkit::layered;
use reshard::{
    AsyncCallsQueue, AsyncSaver, CommonForm, Dialect, LocalGroup, ProcessGroup, StateDict, Value,
    ValueTree, blocking,
    strategy::{LoadShardedStrategy, SaveShardedStrategy},
};
use reshard_comm_tcp::TcpGroup;
use reshard_parallel as _;
use serde_json::json;
use spec::Spec;
use std::path::PathBuf;

#[derive(Debug, Parser)]
#[command(about = "The Rust side of the interop tests")]
enum Command {
    /// Saves the state of a spec from in-process ranks.
    Write(Write),
    /// Loads it and compares every bit.
    Check(Check),
}

#[derive(Clone, Debug, clap::Args)]
struct Args {
    #[arg(long)]
    spec: PathBuf,
    #[arg(long)]
    dir: PathBuf,
    #[arg(long, default_value_t = 1)]
    ranks: u32,
    /// This process is one rank of a job, as torchrun says in the environment.
    #[arg(long)]
    beside_torchrun: bool,
}

#[derive(Clone, Debug, clap::Args)]
struct Write {
    #[command(flatten)]
    args: Args,
    /// The settings of the format, in JSON, if it is not torch_dist.
    #[arg(long)]
    format: Option<String>,
    /// For which versions of PyTorch to write: universal, 2.3, 2.4 or 2.15.
    #[arg(long, default_value = "universal")]
    flavour: String,
    /// How common state is stored.
    #[arg(long, default_value = "file")]
    common: Common,
    /// Each rank writes metadata of its own.
    #[arg(long)]
    rank_local: bool,
    /// Each dict below the top is one object.
    #[arg(long)]
    no_flatten: bool,
    /// With a planner of PyTorch's page.
    #[arg(long)]
    planner: Option<Saving>,
    /// In files of so many bytes at most, cutting tensors that are larger.
    #[arg(long)]
    max_shard_size: Option<u64>,
    /// Replicas share the work.
    #[arg(long)]
    fully_parallel: bool,
    /// Write `integrity.json`.
    #[arg(long)]
    integrity: bool,
    /// In the background, several times; the last one counts.
    #[arg(long)]
    background: Option<Background>,
}

/// Where common state goes, in Megatron's dialect.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Common {
    /// Into `common.pt`.
    File,
    /// Into an object among the sharded ones, as Megatron Core 0.19 stores it.
    Object,
}

/// Who finishes a save in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Background {
    /// A thread, as in DCP's `async_save`.
    Saver,
    /// The training loop, as in Megatron Core's `AsyncCallsQueue`.
    Queue,
}

#[derive(Clone, Debug, clap::Args)]
struct Check {
    #[command(flatten)]
    args: Args,
    /// With a planner of PyTorch's page.
    #[arg(long)]
    planner: Option<Loading>,
    /// With these settings, in JSON.
    #[arg(long)]
    settings: Option<String>,
    /// Check the files by `integrity.json`, which has to be there.
    #[arg(long)]
    integrity: bool,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Write(args) => write(&args),
        Command::Check(args) => check(&args),
    }
}

/// Runs one thread a rank, or this process's rank.
fn on_ranks(
    args: &Args,
    work: impl Fn(u64, u64, &dyn ProcessGroup) -> Result<()> + Send + Sync,
) -> Result<()> {
    if args.beside_torchrun {
        let group = TcpGroup::from_env()?;
        return work(group.rank().0.into(), group.size().into(), &group);
    }
    std::thread::scope(|scope| {
        let (work, ranks) = (&work, args.ranks.into());
        let groups = LocalGroup::new(args.ranks).into_iter().enumerate();
        let threads: Vec<_> = groups
            .map(|(rank, group)| scope.spawn(move || work(rank as u64, ranks, &group)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| anyhow!("a rank panicked"))?)
    })
}

fn write(
    Write {
        args,
        format,
        flavour,
        common,
        rank_local,
        no_flatten,
        planner,
        max_shard_size,
        fully_parallel,
        integrity,
        background,
    }: &Write,
) -> Result<()> {
    let spec = Spec::read(&args.spec)?;
    let url = args.dir.display().to_string();
    on_ranks(args, |rank, ranks, group| {
        let state = state::to_save(&spec, rank, ranks)?;
        let format = match format {
            Some(format) => serde_json::from_str(format)?,
            None => json!({ "format": "torch_dist", "flavour": flavour }),
        };
        let config: SaveShardedStrategy = serde_json::from_value(match fully_parallel {
            true => layered(json!({ "type": "fully_parallel" }), &format),
            false => format,
        })?;
        if let Some(background) = background {
            return in_background(*background, &state, &url, spec.dialect, &config, group);
        }
        let save = reshard::save(&state, &url)
            .group(group)
            .dialect(spec.dialect)
            .integrity(*integrity)
            .flatten(!no_flatten)
            .strategy(config);
        let save = save.rank_local(*rank_local).common_form(match common {
            Common::File => CommonForm::File,
            Common::Object => CommonForm::Object,
        });
        let save = match planner {
            None => save,
            Some(Saving::Rename) => save.planner(planners::RenamePlanner),
            Some(Saving::Fp16) => save.planner(planners::FP16Planner),
            Some(Saving::Ddp) => save.planner(planners::DDPLoadBalancingPlanner),
            Some(Saving::Extra) => save.planner(planners::SaveExtraDataPlanner),
        };
        let save = match max_shard_size {
            None => save,
            Some(bytes) => save.policy(reshard::policy::MaxShardSize::new(*bytes)),
        };
        blocking::run(save)?;
        Ok(())
    })?;
    println!("saved {} from {} ranks", args.spec.display(), args.ranks);
    Ok(())
}

/// Three saves by one saver or queue. The last one is at `url`, the others beside it.
fn in_background(
    how: Background,
    state: &StateDict,
    url: &str,
    dialect: Dialect,
    config: &SaveShardedStrategy,
    group: &dyn ProcessGroup,
) -> Result<()> {
    let urls = [format!("{url}-1"), format!("{url}-2"), url.to_owned()];
    let save = |url| -> Result<reshard::Save<'_>> {
        let save = reshard::save(state, url).dialect(dialect);
        Ok(save.strategy(config.clone()))
    };
    block_on(async {
        match how {
            Background::Saver => {
                let mut saver = AsyncSaver::new(group).await?;
                for url in &urls {
                    saver.start(save(url)?).await?.finish().await?;
                }
                saver.close().await?;
            }
            Background::Queue => {
                let mut queue = AsyncCallsQueue::new(group).await?;
                for url in &urls {
                    let request = queue.request(save(url)?).await?;
                    queue.schedule(request)?;
                    queue.maybe_finalize(true).await?;
                }
                queue.close(false).await?;
            }
        }
        Ok(())
    })
}

fn check(
    Check {
        args,
        planner,
        settings,
        integrity,
    }: &Check,
) -> Result<()> {
    let spec = Spec::read(&args.spec)?;
    let url = args.dir.display().to_string();
    on_ranks(args, |rank, world, group| {
        let bare = *planner == Some(Loading::Materialize);
        let template: StateDict = state::to_load(&spec, rank, world, bare)?;
        let load = reshard::load(template, &url).group(group);
        let load = load.verify_integrity(*integrity);
        let load = match settings {
            None => load,
            Some(settings) => load.strategy(serde_json::from_str::<LoadShardedStrategy>(settings)?),
        };
        let load = match planner {
            None => load,
            Some(Loading::Rename) => load.planner(planners::RenamedPlanner),
            Some(Loading::Materialize) => load.planner(planners::MetaModelMaterialize),
        };
        let loaded: ValueTree = blocking::run(load).map_err(reshard::Error::from)?;
        for (path, want) in state::wanted(&spec, rank, world)? {
            let got = loaded
                .at(&path.0)
                .ok_or_else(|| anyhow!("{path}: missing in what was loaded"))?;
            let got = Value::from(got.clone());
            if got != want {
                bail!("{path}: {got:?} instead of {want:?}");
            }
        }
        Ok(())
    })?;
    let verified =
        blocking::Checkpoint::open(&url)?.verify(true, reshard::storage::Progress::default())?;
    if let Some(damage) = verified.damage.first() {
        bail!("a sound checkpoint is called damaged: {damage:?}");
    }
    println!(
        "loaded {} on {} ranks, every bit as the spec says",
        args.spec.display(),
        args.ranks
    );
    Ok(())
}
