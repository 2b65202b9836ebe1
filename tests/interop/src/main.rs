//! `reshard-interop`: saves and checks what a spec says, as the Python drivers beside it do. See `README.md`.
#![expect(clippy::print_stdout, reason = "a program whose output is its result")]

mod spec;
mod state;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use reshard::{LocalGroup, Plain, StateDict, Value, blocking};
use spec::Spec;
use std::path::PathBuf;

#[derive(Debug, Parser)]
#[command(about = "The Rust side of the interop tests")]
enum Command {
    /// Saves the state of a spec from in-process ranks.
    Write(Args),
    /// Loads it and compares every bit.
    Check(Args),
}

#[derive(Clone, Debug, clap::Args)]
struct Args {
    #[arg(long)]
    spec: PathBuf,
    #[arg(long)]
    dir: PathBuf,
    #[arg(long, default_value_t = 1)]
    ranks: u32,
    /// For which versions of PyTorch to write: universal, 2.3, 2.4 or 2.15.
    #[arg(long, default_value = "universal")]
    flavour: String,
    /// Each rank writes metadata of its own.
    #[arg(long)]
    rank_local: bool,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Write(args) => write(&args),
        Command::Check(args) => check(&args),
    }
}

/// Runs one thread a rank.
fn on_ranks(ranks: u32, work: impl Fn(u64, &LocalGroup) -> Result<()> + Send + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let groups = LocalGroup::new(ranks).into_iter().enumerate();
        let threads: Vec<_> =
            groups.map(|(rank, group)| scope.spawn(move || work(rank as u64, &group))).collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| anyhow!("a rank panicked"))?)
    })
}

fn write(args: &Args) -> Result<()> {
    let spec = Spec::read(&args.spec)?;
    let url = args.dir.display().to_string();
    on_ranks(args.ranks, |rank, group| {
        let state = state::to_save(&spec, rank, args.ranks.into())?;
        let config: Box<dyn reshard::SaveShardedConfig> =
            serde_json::from_value(serde_json::json!({ "type": "torch_dist", "flavour": args.flavour }))?;
        let save = reshard::save(&state, &url).group(group).dialect(spec.dialect).boxed_strategy(config);
        let save = save.rank_local(args.rank_local);
        blocking::run(save)?;
        Ok(())
    })?;
    println!("saved {} from {} ranks", args.spec.display(), args.ranks);
    Ok(())
}

fn check(args: &Args) -> Result<()> {
    let spec = Spec::read(&args.spec)?;
    let url = args.dir.display().to_string();
    on_ranks(args.ranks, |rank, group| {
        let world = args.ranks.into();
        let template: StateDict = state::to_load(&spec, rank, world)?;
        let loaded: Plain =
            blocking::run(reshard::load(template, &url).group(group)).map_err(reshard::Error::from)?;
        for (path, want) in state::wanted(&spec, rank, world)? {
            let got = loaded.at(&path.0).ok_or_else(|| anyhow!("{path}: missing in what was loaded"))?;
            let got = Value::from(got.clone());
            if got != want {
                bail!("{path}: {got:?} instead of {want:?}");
            }
        }
        Ok(())
    })?;
    let verified = blocking::Checkpoint::open(&url)?.verify(true, reshard::Progress::default())?;
    if let Some(damage) = verified.damage.first() {
        bail!("a sound checkpoint is called damaged: {damage:?}");
    }
    println!("loaded {} on {} ranks, every bit as the spec says", args.spec.display(), args.ranks);
    Ok(())
}
