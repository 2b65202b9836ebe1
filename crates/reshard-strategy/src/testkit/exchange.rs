//! What one rank of each group of replicas reads and hands out to the others: in bounded memory, each byte once, and with ranks that
//! fail in the middle of it.

use super::{
    Cut, Observer, Rank, check_sample,
    drive::{Seat, load_on_seats},
    left::{addresses, failed},
    meter::{Meter, local, with_fault},
    sample, sample_template, save_on_ranks,
};
use crate::{LoadFailure, LoadShardedStrategy, Loaded, SaveShardedStrategy};
use bytes::Bytes;
use reshard_comm::{
    Cause, CommError, ProcessGroup,
    testkit::{Fault as GroupFault, FaultGroup},
};
use reshard_model::{
    DType, Data, DeviceTensor, ErrorKind, FlatStateDict, Sharded, testkit::FakeDevice,
};
use reshard_plan::{
    Cast, DefaultLoadPlanner, DefaultSavePlanner, Demand, LoadContext, LoadPlan, LoadPlanner,
    PlanError, SavePlanner, share_reads,
};
use reshard_storage::{
    IfExists, Store,
    testkit::{Fault, FaultStore, MemoryStore, Op},
};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Less than the largest chunk of the sample: rounds are many, and cut items.
const MEMORY: u64 = 8 << 10;
/// How many ranks save.
const SAVED: u32 = 3;
/// Collectives of a load without exchanges, after it is opened: local and global plan, its end, the outcome.
const PLAIN_CALLS: u64 = 7;

pub(super) fn what_ranks_read_for_each_other_is_what_each_would_read(
    save: &SaveShardedStrategy,
    load: &LoadShardedStrategy,
) {
    let objects =
        save.clone().can_handle_sharded_objects() && load.clone().can_handle_sharded_objects();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let planner: Arc<dyn SavePlanner> = Arc::new(DefaultSavePlanner::DEFAULT);
    let rank = |r| Rank {
        strategy: save.clone().into(),
        planner: Arc::clone(&planner),
        flat: sample(Cut::Rows, r, SAVED, objects),
    };
    let saved = save_on_ranks(&store, IfExists::Refuse, (0..SAVED).map(rank).collect());
    saved.into_iter().for_each(|o| drop(o.unwrap()));

    let under_test = UnderTest {
        load,
        objects,
        store,
    };
    under_test.each_byte_is_read_once_a_group_in_bounded_memory();
    under_test.each_rank_gets_what_it_wants();
    under_test.an_exchange_may_cross_casts_transforms_and_devices();
    under_test.a_plan_without_exchanges_takes_no_more_steps();
    under_test.plans_that_do_not_fit_each_other_are_refused();
    under_test.a_store_that_fails_in_the_middle_fails_all();
    under_test.a_hook_that_fails_in_the_middle_fails_all();
    under_test.a_transport_that_fails_anywhere_fails_all();
}

/// In each group one rank reads what several want: another one for each.
#[derive(Debug)]
struct OneReader {
    base: DefaultLoadPlanner,
    groups: Vec<Option<u32>>,
}

impl OneReader {
    fn all(ranks: u32) -> Self {
        Self {
            base: DefaultLoadPlanner::DEFAULT,
            groups: vec![Some(0); ranks as usize],
        }
    }
}

impl LoadPlanner for OneReader {
    fn base(&self) -> &dyn LoadPlanner {
        &self.base
    }

    fn create_global_plan(
        &self,
        plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>, PlanError> {
        let plans = self.base.create_global_plan(plans, cx)?;
        let group = |rank: u32| self.groups.get(rank as usize).copied().flatten();
        let turns = |all: &[Demand]| {
            let turn = |(i, demand): (usize, &Demand)| demand.ranks[i % demand.ranks.len()];
            all.iter().enumerate().map(turn).collect()
        };
        share_reads(plans, cx.metadata, group, turns)
    }
}

/// The lowest rank that wants anything reads it for all.
#[derive(Debug)]
struct Lowest;

impl LoadPlanner for Lowest {
    fn create_global_plan(
        &self,
        plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>, PlanError> {
        let lowest = |all: &[Demand]| all.iter().map(|demand| demand.ranks[0]).collect();
        share_reads(plans, cx.metadata, |_| Some(0), lowest)
    }
}

/// Makes exchanges, and then spoils them.
#[derive(Debug)]
struct Spoiled {
    inner: OneReader,
    globally: fn(&mut [LoadPlan]),
    finally: fn(&mut LoadPlan),
}

impl LoadPlanner for Spoiled {
    fn base(&self) -> &dyn LoadPlanner {
        &self.inner
    }

    fn create_global_plan(
        &self,
        plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>, PlanError> {
        let mut plans = self.inner.create_global_plan(plans, cx)?;
        (self.globally)(&mut plans);
        Ok(plans)
    }

    fn finish_plan(&self, mut plan: LoadPlan) -> Result<LoadPlan, PlanError> {
        (self.finally)(&mut plan);
        Ok(plan)
    }
}

struct UnderTest<'c> {
    load: &'c LoadShardedStrategy,
    objects: bool,
    store: Arc<dyn Store>,
}

type Seats = Vec<(Seat, Rank<LoadShardedStrategy, dyn LoadPlanner>)>;
type Outcomes = Vec<Result<Loaded, LoadFailure>>;

impl UnderTest<'_> {
    /// Ranks that all want the same; where a cell of objects is wanted, some of them the same.
    fn template(&self, rank: u32, ranks: u32) -> FlatStateDict {
        let mut out = sample_template(Cut::Replicated, rank, ranks, self.objects.then_some(SAVED));
        if self.objects && rank > 0 {
            // Cells of fewer ranks, so that some are wanted by several.
            let cell = sample_template(Cut::Replicated, rank / 2, ranks, Some(SAVED)).pop();
            out.extend(cell);
        }
        out
    }

    fn seats(
        &self,
        planner: impl Fn(u32) -> Arc<dyn LoadPlanner>,
        groups: Vec<Arc<dyn ProcessGroup>>,
    ) -> Seats {
        let ranks = groups.len() as u32;
        let seat = |group: Arc<dyn ProcessGroup>| {
            let r = group.rank().0;
            let seat = Seat {
                exchange_memory: MEMORY,
                ..Seat::new(group, Arc::clone(&self.store))
            };
            let strategy = self.load.clone();
            (
                seat,
                Rank {
                    strategy: strategy.into(),
                    planner: planner(r),
                    flat: self.template(r, ranks),
                },
            )
        };
        groups.into_iter().map(seat).collect()
    }

    fn one_reader(&self, ranks: u32) -> Seats {
        self.seats(|_| Arc::new(OneReader::all(ranks)), local(ranks).collect())
    }

    fn read(&self, seats: Seats) -> u64 {
        let loaded = load_on_seats(seats)
            .into_iter()
            .map(|l| l.map_err(|f| f.error).unwrap());
        let totals = loaded.map(|loaded| {
            check_sample(&loaded.state);
            loaded.totals
        });
        totals.map(|totals| totals.bytes).sum()
    }

    fn each_byte_is_read_once_a_group_in_bounded_memory(&self) {
        let plain = |ranks: u32| {
            let planner = |_| Arc::new(DefaultLoadPlanner::DEFAULT) as Arc<dyn LoadPlanner>;
            self.read(self.seats(planner, local(ranks).collect()))
        };

        // What one rank alone reads is the measure: each group may read that once.
        let once = plain(1);
        let groupings = [
            vec![Some(0), Some(0)],
            vec![Some(3), Some(3), Some(3)],
            vec![Some(0), Some(0), Some(0), Some(0)],
            vec![Some(0), Some(1), Some(0), Some(1)],
            vec![Some(0), Some(1), Some(1), None, Some(0)],
            vec![Some(0), Some(0), Some(0), Some(0), Some(0)],
        ];
        for groups in groupings {
            let ranks = groups.len() as u32;
            let most: Vec<Arc<AtomicU64>> = groups.iter().map(|_| Arc::default()).collect();
            let metered = local(ranks)
                .zip(&most)
                .map(|(inner, most)| Meter::on(inner, most));
            let planner = |_| {
                let (base, groups) = (DefaultLoadPlanner::DEFAULT, groups.clone());
                Arc::new(OneReader { base, groups }) as Arc<dyn LoadPlanner>
            };
            let read = self.read(self.seats(planner, metered.collect()));

            // A rank without a group reads for itself.
            let readers = groups.iter().flatten().collect::<BTreeSet<_>>().len()
                + groups.iter().filter(|group| group.is_none()).count();
            assert_eq!(
                read,
                once * readers as u64,
                "{groups:?}: each chunk is read once a group"
            );
            for (group, most) in groups.iter().zip(most) {
                let most = most.load(Ordering::Relaxed);
                assert_eq!(
                    most > 0,
                    group.is_some(),
                    "only ranks with an exchange take part in it"
                );
                assert!(
                    most <= MEMORY / 2,
                    "{groups:?}: {most} bytes are on their way at once"
                );
            }
        }

        // Without an exchange every rank reads everything, so the sums above can't be equal by accident.
        assert_eq!(plain(3), 3 * once);
    }

    /// No two ranks want the same leaves, and one reads for all: its streams to different ranks hold different bytes, and fill up
    /// at different times.
    fn each_rank_gets_what_it_wants(&self) {
        for ranks in 2..6 {
            let planner = |_| Arc::new(Lowest) as Arc<dyn LoadPlanner>;
            let mut seats = self.seats(planner, local(ranks).collect());
            // All waits at once, and rounds end within large items.
            seats
                .iter_mut()
                .for_each(|(seat, _)| seat.exchange_memory = 10 * MEMORY);
            for (r, (_, rank)) in seats.iter_mut().enumerate().skip(1) {
                let mut n = 0;
                rank.flat.retain(|_, _| {
                    n += 1;
                    !(n + 2 * r + 1).is_multiple_of(3)
                });
            }
            for loaded in load_on_seats(seats) {
                check_sample(&loaded.map_err(|f| f.error).unwrap().state);
            }
        }
    }

    /// Each rank its own way: as it is, in wider elements, on a device.
    fn an_exchange_may_cross_casts_transforms_and_devices(&self) {
        let ranks = 4;
        let seats = |shared: bool| {
            let base = DefaultLoadPlanner::DEFAULT.cast(Cast::Any);
            let groups = vec![shared.then_some(0); ranks as usize];
            let planner = move |_| {
                Arc::new(OneReader {
                    base,
                    groups: groups.clone(),
                }) as Arc<dyn LoadPlanner>
            };
            let mut seats = self.seats(planner, local(ranks).collect());

            // Rank 0 takes everything as it is, so the ranks want the same bytes in different forms.
            for (r, (_, rank)) in seats.iter_mut().enumerate() {
                for leaf in rank.flat.values_mut() {
                    let Sharded::Tensor(t) = leaf else { continue };
                    match (r, t.dtype) {
                        (1 | 3, DType::Float32) => (t.dtype, t.data) = (DType::Float64, Data::None),
                        (2 | 3, DType::Int16 | DType::UInt8) => {
                            let bytes = t.local_shape.iter().product::<u64>() * t.dtype.size();
                            let memory = FakeDevice::new(bytes);
                            let device =
                                DeviceTensor::new(t.dtype, &t.local_shape, memory).unwrap();
                            t.data = Data::Device(device);
                        }
                        _ => {}
                    }
                }
            }
            seats
        };

        // A load without an exchange says what is right.
        let all = |outcomes: Outcomes| -> Vec<Vec<Bytes>> {
            let states = outcomes
                .into_iter()
                .map(|l| l.map_err(|f| f.error).unwrap().state);
            states
                .map(|state| state.values().filter_map(elements).collect())
                .collect()
        };
        assert_eq!(
            all(load_on_seats(seats(true))),
            all(load_on_seats(seats(false)))
        );
    }

    fn a_plan_without_exchanges_takes_no_more_steps(&self) {
        let calls = |planner: Arc<dyn LoadPlanner>| {
            let groups: Vec<FaultGroup> = local(2).map(FaultGroup::counting).collect();
            let counted = groups
                .iter()
                .map(|g| Arc::new(g.clone()) as Arc<dyn ProcessGroup>)
                .collect();
            self.read(self.seats(|_| Arc::clone(&planner), counted));
            // Two of them are for opening.
            groups.iter().map(|g| g.calls() - 2).collect::<Vec<_>>()
        };
        let plain = calls(Arc::new(DefaultLoadPlanner::DEFAULT));
        // A strategy whose format loads no objects agrees that there are none, or loads them separately.
        let known = [PLAIN_CALLS, PLAIN_CALLS + 2, 2 * PLAIN_CALLS];
        assert!(
            known.map(|n| [n; 2]).contains(&[plain[0], plain[1]]),
            "{plain:?} steps"
        );
        let alone = OneReader {
            base: DefaultLoadPlanner::DEFAULT,
            groups: vec![Some(0), Some(1)],
        };
        assert_eq!(calls(Arc::new(alone)), plain, "nobody shares anything");
        assert!(calls(Arc::new(OneReader::all(2)))[0] > plain[0]);
    }

    fn plans_that_do_not_fit_each_other_are_refused(&self) {
        type Global = fn(&mut [LoadPlan]);
        type Case<'s> = (Global, fn(&mut LoadPlan), &'s [&'s str]);

        // Each case spoils the plans of all ranks or the finished plan of each rank, and says what the error must name.
        let cases: [Case<'_>; 4] = [
            (
                |p| drop(p[1].exchange.serves.pop()),
                |_| (),
                &["rank 1", "does not hand it out"],
            ),
            (
                |p| drop(p[2].exchange.receives.pop()),
                |_| (),
                &["to rank 2", "does not wait for it"],
            ),
            (
                |p| p[0].exchange.serves[0].to = [9].into(),
                |_| (),
                &["rank 0", "to rank 9 of 3"],
            ),
            (
                |_| (),
                |plan| plan.exchange.serves.reverse(),
                &["finish_plan must not change an exchange"],
            ),
        ];
        for (globally, finally, says) in cases {
            let planner = |_| {
                Arc::new(Spoiled {
                    inner: OneReader::all(3),
                    globally,
                    finally,
                }) as Arc<dyn LoadPlanner>
            };
            let e = self.fails(self.seats(planner, local(3).collect()));
            assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
            assert!(
                says.iter().all(|say| e.to_string().contains(say)),
                "{e}, and not {says:?}"
            );
        }
    }

    /// All ranks get the same error, and their templates.
    fn fails(&self, seats: Seats) -> CommError {
        failed(
            templates_come_back(seats)
                .into_iter()
                .map(|o| o.map_err(|f| f.error))
                .collect(),
        )
    }

    fn a_store_that_fails_in_the_middle_fails_all(&self) {
        let ranks = 3;
        let mut met = 0;
        for op in [Op::ReadInto, Op::ReadRanges, Op::Read] {
            // Not every format calls all of these, nor as often; a fault that is not met does no harm.
            for (nth, bad) in [(0, 1), (1, 0), (2, 2), (4, 1), (7, 0)] {
                let mut seats = self.one_reader(ranks);
                let faulty = FaultStore::new(Arc::clone(&self.store));
                faulty.fail(op, nth, Fault::Before);
                seats[bad as usize].0.store = Arc::new(faulty);
                let outcomes = templates_come_back(seats);
                if outcomes.iter().all(Result::is_ok) {
                    continue;
                }
                let e = failed(
                    outcomes
                        .into_iter()
                        .map(|o| o.map_err(|f| f.error))
                        .collect(),
                );
                let CommError::Ranks { causes, step } = &e else {
                    panic!("{e}")
                };
                met += u32::from(*step == "read");
                assert_eq!(causes.keys().map(|r| r.0).collect::<Vec<_>>(), [bad], "{e}");
                assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            }
        }
        // A format may read all in one call.
        assert!(met > 0, "reads of an exchange were to fail");
    }

    fn a_hook_that_fails_in_the_middle_fails_all(&self) {
        for hook in [
            "planner.lookup_tensor",
            "planner.commit_tensor",
            "reader.read_tensors",
        ] {
            for (nth, bad) in [(0, 0), (3, 2), (9, 1)] {
                let count = Arc::new(AtomicU64::new(0));
                let heard = Arc::clone(&count);
                let observer = Observer::new(move |h| {
                    match h == hook && heard.fetch_add(1, Ordering::Relaxed) == nth {
                        true => Err("a fault".into()),
                        false => Ok(()),
                    }
                });
                let mut seats = self.one_reader(3);
                let rank = &mut seats[bad as usize].1;
                rank.planner = Arc::new(observer.on(OneReader::all(3)));
                let mut strategy = LoadShardedStrategy::clone(&rank.strategy);
                strategy.format = Arc::new(observer.on(strategy.format));
                rank.strategy = strategy.into();
                let outcomes = templates_come_back(seats);

                // A hook that this format does not call so often is not met, so there is nothing to check.
                if count.load(Ordering::Relaxed) <= nth {
                    continue;
                }
                let e = failed(
                    outcomes
                        .into_iter()
                        .map(|o| o.map_err(|f| f.error))
                        .collect(),
                );

                let CommError::Ranks { causes, .. } = &e else {
                    panic!("{hook}: {e}")
                };
                assert_eq!(
                    causes.keys().map(|r| r.0).collect::<Vec<_>>(),
                    [bad],
                    "{hook}: {e}"
                );
                assert!(e.to_string().contains("a fault"), "{hook}: {e}");
            }
        }
    }

    /// One rank is gone, or silent, at any of its collectives: no rank hangs, none thinks that all is well, and all have their
    /// templates.
    fn a_transport_that_fails_anywhere_fails_all(&self) {
        let boom = Cause::new(ErrorKind::Unavailable, "a fault");
        // Two groups, or one, and a rank that has to do with neither.
        for groups in [
            vec![Some(0); 3],
            vec![Some(0), Some(1), Some(0), Some(1), None],
        ] {
            let ranks = groups.len() as u32;
            let load = |bad: u32, at: u64, fault: Option<GroupFault>| {
                let (wrapped, dynamic) = with_fault(ranks, bad, at, fault.as_ref());
                let planner = |_| {
                    let (base, groups) = (DefaultLoadPlanner::DEFAULT, groups.clone());
                    Arc::new(OneReader { base, groups }) as Arc<dyn LoadPlanner>
                };
                let mut seats = self.seats(planner, dynamic);
                if matches!(fault, Some(GroupFault::Silence)) {
                    seats
                        .iter_mut()
                        .for_each(|(seat, _)| seat.deadline = Duration::from_millis(100));
                }
                // Handles on groups that live on break nothing.
                let outcomes = templates_come_back(seats);
                (outcomes, wrapped[bad as usize].calls())
            };
            for bad in [0, ranks.min(3) - 1] {
                let (loaded, calls) = load(bad, 0, None);
                assert!(loaded.iter().all(Result::is_ok) && calls > PLAIN_CALLS + 2);
                let all = [0, 1, 2, 4].map(|n| PLAIN_CALLS + n);
                let all = all.into_iter().chain([calls - 3, calls - 2]);
                // The last call of all only tells what all know already, so others may be done. A format of small chunks has few calls.
                for at in all.filter(|at| at + 1 < calls) {
                    for fault in [GroupFault::Fail(boom.clone()), GroupFault::Silence] {
                        let (outcomes, _) = load(bad, at, Some(fault.clone()));
                        for (rank, outcome) in outcomes.into_iter().enumerate() {
                            assert!(
                                outcome.is_err(),
                                "rank {rank} goes on: {fault:?} of {bad} at call {at}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// The elements of a loaded tensor, wherever they are.
fn elements(leaf: &Sharded) -> Option<Bytes> {
    match leaf {
        Sharded::Tensor(t) => match &t.data {
            Data::Host(host) => Some(host.to_bytes()),
            Data::Device(device) => Some(device.to_host(&t.key).unwrap().to_bytes()),
            _ => panic!("{} was not loaded", t.key),
        },
        Sharded::Object(_) => None,
    }
}

/// Loads; whatever comes of it, each rank has its template's own buffers again.
fn templates_come_back(seats: Seats) -> Outcomes {
    let before: Vec<_> = seats
        .iter()
        .map(|(_, rank)| addresses(&rank.flat))
        .collect();
    let outcomes = load_on_seats(seats);
    for (rank, (outcome, before)) in outcomes.iter().zip(before).enumerate() {
        let flat = match outcome {
            Ok(loaded) => {
                check_sample(&loaded.state);
                &loaded.state
            }
            Err(failure) => &failure.template,
        };
        let after = addresses(flat);
        assert!(
            before.iter().all(|(p, a)| after.get(p) == Some(a)),
            "a buffer of rank {rank} was lost"
        );
    }
    outcomes
}
