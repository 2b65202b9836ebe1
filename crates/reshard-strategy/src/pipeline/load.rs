//! The collective part of a load, and the order of its other parts.

mod device;
mod exchange;
mod kept;
mod layers;
mod lend;
mod objects;
mod permitted;
mod transfer;

pub(crate) use layers::load_in;

use crate::{
    ExchangeTimes, LoadCx, LoadFailure, LoadNotes, Loaded, ReadCx, Result, StorageReader,
    StrategyError, Traffic,
    agree::agree,
    kept::DecidedLoad,
    pipeline::exchange::{Peers, Stopped},
};
use exchange::{Exchange, exchange};
use kept::known_or_planned;
use lend::{Loan, tensors};
use objects::objects;
use permitted::{keys_of, permitted, unsupported};
use reshard_model::{ErrorKind, FlatStateDict, Sharded};
use reshard_plan::{Fault, LoadContext, LoadPlan, Metadata, PlanError, Problem, Problems};
use std::{sync::Arc, time::Instant};
use transfer::transfer;

/// Fills a template from any reader.
pub(crate) async fn load_planned(
    mut template: FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<Loaded, Box<LoadFailure>> {
    // The guard tells the other ranks if this one panics or is dropped. A failed plan was already agreed on.
    let guard = cx.comm.guard("loading");
    let start = Instant::now();
    let Planned { decided, peers } = match plan(&mut template, from, cx).await {
        Ok(planned) => planned,
        Err(error) => {
            guard.done();
            return Err(Box::new(LoadFailure::of_plan(error, template)));
        }
    };
    // Then the local part. Its outcome is not returned yet, because the other ranks wait for it in the step `read`.
    let (plan, planned) = (&decided.plan, start.elapsed());
    let (template, read) = fill(template, plan, peers.as_ref(), from, cx).await;
    let moved = start.elapsed() - planned;
    // A rank that stopped because a peer failed has no cause of its own to report.
    let (mine, heard) = match read {
        Ok(totals) => (Ok(totals), None),
        Err(stopped) => {
            let (mine, heard) = stopped.parted();
            (mine.map(|()| Moved::default()), heard)
        }
    };
    let moves = agree(&cx.comm, "read", mine).await;
    let moves = moves.and_then(|moves| heard.map_or(Ok(moves), |e| Err(e.into())));
    guard.done();
    match moves {
        Ok((mut totals, exchange)) => {
            totals.items += plan.items.len() as u64;
            Ok(Loaded {
                notes: notes(plan, &template, from),
                totals,
                state: template,
                decided: planned,
                moved,
                exchange,
            })
        }
        Err(error) => Err(Box::new(LoadFailure {
            error,
            template,
            decided: Some(planned),
        })),
    }
}

/// Plans a load and gives the plan up: the error says everything that is wrong with the template. The template stays as it is.
///
/// # Collective
/// All ranks call it.
pub(crate) async fn judge(
    template: &FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<()> {
    let guard = cx.comm.guard("planning a load");
    let planned = plan(&mut template.clone(), from, cx).await.map(drop);
    guard.done();
    planned
}

/// A plan that all ranks have agreed on.
struct Planned {
    decided: Arc<DecidedLoad>,
    peers: Option<Peers>,
}

/// Makes DCP's calls up to `finish_plan`, in DCP's order.
async fn plan(
    template: &mut FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<Planned> {
    let (rank, is_coordinator) = (cx.comm.rank().0, cx.comm.is_coordinator());
    let not_understood = from.not_understood();
    let context = LoadContext::new(from.metadata(), rank, is_coordinator)
        .with_elsewhere(&cx.elsewhere)
        .with_not_understood(&not_understood);
    // `set_up` may change the template. If the load fails, the caller must get back what it gave.
    let given = template.clone();
    // A rank that fails still takes the step `plan`, so that all ranks learn it.
    let set_up = (|| {
        from.reset(&cx.store.url());
        cx.planner.set_up(template, &context)?;
        from.set_up(rank, is_coordinator)
    })();
    let local = |template: &FlatStateDict| -> Result<LoadPlan> {
        let plan = cx
            .planner
            .create_local_plan(template, &context)
            .map_err(|e| explained(e, from, cx))?;
        none_in_common(&plan, template, cx)?;
        permitted(&plan, &keys_of(&plan), template, from)?;
        from.prepare_local_plan(plan)
    };
    let planned = match known_or_planned(set_up, local, template, from, (cx, &context)).await {
        Ok(decided) => with_peers(decided, cx).await,
        Err(e) => Err(e),
    };
    if planned.is_err() {
        *template = given;
    }
    planned
}

/// An optional leaf that lies in the common state is stored, but not as a leaf of its own: it must not be passed over.
fn none_in_common(plan: &LoadPlan, template: &FlatStateDict, cx: &LoadCx<'_>) -> Result<()> {
    let leaves = plan.not_stored.iter();
    let leaves = leaves.filter_map(|dest| template.get_index(*dest as usize));
    let problems = leaves.filter(|(_, leaf)| leaf.is_optional());
    let problems: Vec<Problem> = problems
        .filter_map(|(_, leaf)| {
            let is = cx.in_common.get(leaf.key())?.clone();
            let (key, fault) = (leaf.key().into(), Fault::InCommonState { is });
            Some(Problem { key, fault })
        })
        .collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(PlanError::Load(Problems(problems)).into()),
    }
}

/// Splits off the exchange groups.
async fn with_peers(decided: Arc<DecidedLoad>, cx: &LoadCx<'_>) -> Result<Planned> {
    let peers = match decided.exchange {
        None => None,
        Some(group) => Peers::of(group, &cx.comm).await?,
    };
    Ok(Planned { decided, peers })
}

/// The error of a plan. If the format knows why a key can't be read, it is that reason. A key that lies in the common state is told as such.
fn explained(mut e: PlanError, from: &dyn StorageReader, cx: &LoadCx<'_>) -> StrategyError {
    let PlanError::Load(problems) = &mut e else {
        return e.into();
    };
    for problem in &mut problems.0 {
        if let Fault::NotStored { .. } = problem.fault
            && let Some(is) = cx.in_common.get(&problem.key)
        {
            problem.fault = Fault::InCommonState { is: is.clone() };
        }
    }
    let problems = &*problems;
    // Where what is said of a tensor contradicts itself, a hole or another shape only follows from that.
    let contradiction = |p: &Problem| match from.permits(&p.key) {
        Err(e) if e.kind() == ErrorKind::Corrupt => Some(e),
        _ => None,
    };
    let why = || problems.0.iter().find_map(|p| from.why_not(&p.key));
    // A hole is no damage if the format knows who has the elements.
    let lacking = problems.0.iter().find_map(|p| match p.fault {
        Fault::Hole { .. } => Some(format!("{p}: {}", from.lacks(&p.key)?)),
        _ => None,
    });
    if let Some(what) = lacking {
        return StrategyError::NotStored { what };
    }
    match problems.0.iter().find_map(contradiction) {
        Some(contradiction) => contradiction,
        None => why().map_or_else(|| e.into(), |what| unsupported(what, from)),
    }
}

fn notes(plan: &LoadPlan, template: &FlatStateDict, from: &dyn StorageReader) -> LoadNotes {
    let leaf = |i: &u32| template.get_index(*i as usize).map(|(_, leaf)| leaf);
    let stored: Vec<String> = match plan.not_requested.is_empty() {
        true => Vec::new(),
        false => (from.metadata().entries().map(|e| e.key().to_owned()))
            .chain(from.not_understood())
            .collect(),
    };
    let stored = |at: &u32| stored.get(*at as usize).cloned();
    LoadNotes {
        not_stored: (plan.not_stored.iter().filter_map(leaf))
            .map(|leaf| leaf.unique_key().into_owned())
            .collect(),
        not_requested: plan.not_requested.iter().filter_map(stored).collect(),
        casts: plan
            .recasts
            .iter()
            .map(|r| {
                (
                    leaf(&r.dest).map_or_else(String::new, |leaf| leaf.key().into()),
                    r.from,
                    r.to,
                )
            })
            .collect(),
    }
}

/// What was read, and how long ranks read for each other.
type Moved = (Traffic, ExchangeTimes);

/// Moves the bytes. It returns the template whatever happens.
async fn fill(
    template: FlatStateDict,
    plan: &LoadPlan,
    peers: Option<&Peers>,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> (FlatStateDict, Result<Moved, Stopped>) {
    let progress = cx
        .options
        .progress
        .begin(stored_bytes(plan, from.metadata()));
    let how = ReadCx::new(cx.options.verify, &progress).with_storage_data(&plan.storage_data);
    // First this rank's own reads. An error is not returned yet, because peers of an exchange may wait for this rank.
    let (loan, read) = match Loan::take(template, plan, cx.options.copy_ahead) {
        Ok(loan) => {
            let read = match loan.places(plan, from.metadata()) {
                Ok(places) => transfer(places, from, &how, cx).await,
                Err(e) => Err(e),
            };
            // If a device has not taken its data, the peers learn it, too.
            let read = read.and_then(|read| loan.devices().check().map(|()| read));
            (Ok(loan), read)
        }
        Err(failure) => (Err(failure.1), Err(failure.0)),
    };
    // Then the exchange, in which a failed rank tells its peers.
    let read = match peers {
        Some(peers) => {
            let lost = || StrategyError::Internal("places without a loan".into());
            let read = read.and_then(|(totals, places)| {
                let loan = loan.as_ref().map_err(|_| lost())?;
                Ok((totals, places, loan.devices()))
            });
            exchange(peers, plan, read, from, &how, cx).await
        }
        None => read
            .map(|(totals, _)| Exchange {
                totals,
                ..Exchange::default()
            })
            .map_err(Stopped::Here),
    };
    // Peers may still fill what this rank has lent them, if one of them failed.
    if let (Ok(loan), Some(_)) = (&loan, peers) {
        loan.is_returned(cx.comm.deadline()).await;
    }
    // The template gets its buffers back in any case. Objects are put into leaves, so they come after that.
    let loan = match loan {
        Ok(loan) => loan,
        Err(template) => return (template, read.map(|read| (read.totals, read.times))),
    };
    let (mut template, given_back) = loan.give_back();
    let read = match read.and_then(|read| Ok(given_back.map(|devices| (read, devices))?)) {
        Ok((
            Exchange {
                totals,
                objects: there,
                mut times,
            },
            devices,
        )) => {
            times.devices = devices;
            let read = objects(&mut template, plan, there, from, &how, cx).await;
            read.map(|()| (totals, times)).map_err(Stopped::Here)
        }
        Err(e) => Err(e),
    };
    // The planner may see tensors only when all of them are complete.
    let committed = read.and_then(|totals| {
        commit(&template, plan, cx).map_err(Stopped::Here)?;
        Ok(totals)
    });
    (template, committed)
}

/// The bytes of all elements of the plan, as they are stored. An item that contradicts the metadata has none: its read fails.
fn stored_bytes(plan: &LoadPlan, metadata: &Metadata) -> u64 {
    let selections = tensors(plan).filter_map(|item| item.selection(metadata).ok()?);
    selections.fold(0, |sum, of| sum.saturating_add(of.bytes()))
}

/// Passes the filled leaves to the planner.
fn commit(template: &FlatStateDict, plan: &LoadPlan, cx: &LoadCx<'_>) -> Result<()> {
    for item in tensors(plan) {
        let leaf = template.get_index(item.dest as usize);
        let Some((_, Sharded::Tensor(tensor))) = leaf else {
            let what = format!("{} was read into a leaf that is no tensor", item.piece.key);
            return Err(StrategyError::Internal(what));
        };
        cx.planner.commit_tensor(item, tensor)?;
    }
    Ok(())
}
