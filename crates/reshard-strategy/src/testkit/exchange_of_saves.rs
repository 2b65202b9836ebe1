//! What one rank writes for others: the same bytes as if it had the pieces itself, in bounded memory, and with ranks that fail in
//! the middle of it.

use super::{
    Cut, Observer, Rank, check_sample,
    drive::{Seat, Staging, save_on_seats},
    left::{failed, files, nothing_is_left},
    load_on_ranks,
    meter::{Meter, local, with_fault},
    phases::{NoMemory, handles, spoil},
    sample, sample_template,
};
use crate::{
    AsyncStager, BlockingAsyncStager, LoadShardedStrategy, Result, SaveShardedStrategy, Saved,
};
use reshard_comm::{
    Cause, CommError, ProcessGroup,
    testkit::{Fault as GroupFault, FaultGroup},
};
use reshard_model::{
    BoxError, DType, Data, DeviceTensor, Dims, ErrorKind, FlatStateDict, Path, Region, ReplicaId,
    Sharded, Step, Tensor, TensorSource, testkit::FakeDevice,
};
use reshard_plan::{
    DefaultLoadPlanner, DefaultSavePlanner, Metadata, Offered, PlanError, SavePlan, SavePlanner,
    WriteData, WriteItem, WriteKind, share_writes,
};
use reshard_storage::{
    IfExists, Name, Store,
    testkit::{Fault, FaultStore, MemoryStore, Op},
};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Less than the largest chunk of the sample: rounds are many, and cut items.
const MEMORY: u64 = 8 << 10;
/// Collectives of a save without exchanges, before it writes: `begin`, local and global plan, its end.
const PLAIN_CALLS: u64 = 7;

pub(super) fn what_ranks_write_for_each_other_is_what_each_would_write(
    save: &SaveShardedStrategy,
    load: &LoadShardedStrategy,
) {
    let mut under_test = UnderTest {
        save,
        load,
        objects: false,
    };
    let able =
        save.clone().can_handle_sharded_objects() && load.clone().can_handle_sharded_objects();
    // Objects can be given to others only if the format has a codec.
    if able {
        let with = UnderTest {
            objects: true,
            ..under_test
        };
        let to_first = Assign::new(vec![Some(0); 2], true, |_, _| 0);
        let outcome = with.run(&with.store(), with.seats(&to_first, local(2).collect()));
        let unable =
            |e: &crate::StrategyError| e.to_string().contains("bringing objects to another rank");
        under_test.objects = !outcome.iter().any(|o| o.as_ref().is_err_and(unable));
    }
    under_test.bytes_are_those_of_a_save_whose_writer_has_the_pieces_itself();
    under_test.memory_is_bounded_and_only_peers_meet();
    under_test.an_exchange_may_cross_casts_devices_and_sources();
    under_test.a_plan_without_exchanges_takes_no_more_steps();
    under_test.plans_that_do_not_fit_each_other_are_refused();
    under_test.what_is_staged_may_change_before_it_is_given();
    under_test.a_failed_staging_is_told_to_those_who_wait();
    under_test.a_source_that_fails_fails_all();
    under_test.a_store_that_fails_fails_all();
    under_test.a_transport_that_fails_anywhere_fails_all();
}

type Choose = dyn Fn(&Offered, usize) -> u32 + Send + Sync;
/// Who has an item, who writes it, and the item.
type Decided = Vec<(u32, u32, WriteItem)>;

/// Lets ranks write the pieces of others.
#[derive(Clone)]
struct Assign {
    base: Arc<dyn SavePlanner>,
    groups: Vec<Option<u32>>,
    objects: bool,
    choose: Arc<Choose>,
    decided: Arc<Mutex<Decided>>,
}

impl std::fmt::Debug for Assign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Assign({:?})", self.groups)
    }
}

impl Assign {
    fn new(
        groups: Vec<Option<u32>>,
        objects: bool,
        choose: impl Fn(&Offered, usize) -> u32 + Send + Sync + 'static,
    ) -> Self {
        let base = Arc::new(DefaultSavePlanner::DEFAULT);
        Self {
            base,
            groups,
            objects,
            choose: Arc::new(choose),
            decided: Arc::default(),
        }
    }

    /// Each piece goes to another rank.
    fn turns(ranks: u32, objects: bool) -> Self {
        Self::new(vec![Some(0); ranks as usize], objects, move |_, i| {
            i as u32 % ranks
        })
    }
}

impl SavePlanner for Assign {
    fn base(&self) -> &dyn SavePlanner {
        &*self.base
    }

    fn create_global_plan(
        &self,
        plans: Vec<SavePlan>,
    ) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        let (plans, metadata) = self.base.create_global_plan(plans)?;
        let group = |rank: u32| self.groups[rank as usize];
        // Ranks without a group keep their items.
        let alone = (0u32..).zip(&plans).filter(|(r, _)| group(*r).is_none());
        let mut kept: Decided = alone
            .flat_map(|(r, plan)| plan.items.iter().map(move |item| (r, r, item.clone())))
            .collect();
        let plans = share_writes(plans, group, |all| {
            let writer = |(i, offered): (usize, &Offered)| match offered.item.tensor() {
                None if !self.objects => offered.from,
                _ => (self.choose)(offered, i),
            };
            let writers: Vec<u32> = all.iter().enumerate().map(writer).collect();
            let decided = all
                .iter()
                .zip(&writers)
                .map(|(o, by)| (o.from, *by, o.item.clone()));
            kept.extend(decided);
            writers
        })?;
        *self.decided.lock().unwrap() = kept;
        Ok((plans, metadata))
    }
}

/// Makes exchanges, and then spoils them.
#[derive(Debug)]
struct Spoiled {
    inner: Assign,
    globally: fn(&mut [SavePlan]),
    finally: fn(&mut SavePlan),
}

impl SavePlanner for Spoiled {
    fn base(&self) -> &dyn SavePlanner {
        &self.inner
    }

    fn create_global_plan(
        &self,
        plans: Vec<SavePlan>,
    ) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        let (mut plans, metadata) = self.inner.create_global_plan(plans)?;
        (self.globally)(&mut plans);
        Ok((plans, metadata))
    }

    fn finish_plan(&self, mut plan: SavePlan) -> Result<SavePlan, PlanError> {
        (self.finally)(&mut plan);
        Ok(plan)
    }
}

/// Stores float32 as float64, which the rank that has the elements does.
#[derive(Debug)]
struct Wider;

impl SavePlanner for Wider {
    fn create_local_plan(
        &self,
        state: &FlatStateDict,
        cx: &reshard_plan::SaveContext<'_>,
    ) -> Result<SavePlan, PlanError> {
        let mut plan = self.base().create_local_plan(state, cx)?;
        for item in &mut plan.items {
            if let WriteKind::Tensor(t) = &mut item.kind
                && t.dtype == DType::Float32
            {
                t.dtype = DType::Float64;
            }
        }
        Ok(plan)
    }

    fn transform_object(&self, item: &WriteItem, data: WriteData) -> Result<WriteData, PlanError> {
        Ok(match self.base().transform_object(item, data)? {
            WriteData::Tensor(data) if matches!(data.spec(), Some((DType::Float32, _))) => {
                WriteData::Tensor(data.cast(DType::Float64)?)
            }
            other => other,
        })
    }
}

/// Elements elsewhere; the reads from number `fails` on fail.
struct Elsewhere {
    tensor: Tensor,
    reads: AtomicU64,
    fails: u64,
}

impl TensorSource for Elsewhere {
    fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    fn shape(&self) -> Dims {
        self.tensor.shape().clone()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        if self.reads.fetch_add(1, Ordering::Relaxed) >= self.fails {
            return Err("a fault".into());
        }
        out.copy_from_slice(&self.tensor.narrow(region).to_bytes());
        Ok(())
    }
}

fn elsewhere(tensor: &Tensor, fails: u64) -> Data {
    Data::Lazy(Arc::new(Elsewhere {
        tensor: tensor.clone(),
        reads: AtomicU64::new(0),
        fails,
    }))
}

#[derive(Clone, Copy)]
struct UnderTest<'c> {
    save: &'c SaveShardedStrategy,
    load: &'c LoadShardedStrategy,
    objects: bool,
}

type Seats = Vec<(Seat, Rank<SaveShardedStrategy, dyn SavePlanner>)>;

impl UnderTest<'_> {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }

    fn seats(
        &self,
        planner: &(impl SavePlanner + Clone),
        groups: Vec<Arc<dyn ProcessGroup>>,
    ) -> Seats {
        let ranks = groups.len() as u32;
        let states = (0..ranks)
            .map(|r| sample(Cut::Rows, r, ranks, self.objects))
            .collect();
        self.seated(|_| Arc::new(planner.clone()), states, groups)
    }

    fn seated(
        &self,
        planner: impl Fn(u32) -> Arc<dyn SavePlanner>,
        states: Vec<FlatStateDict>,
        groups: Vec<Arc<dyn ProcessGroup>>,
    ) -> Seats {
        let seat = |(group, flat): (Arc<dyn ProcessGroup>, FlatStateDict)| {
            let planner = planner(group.rank().0);
            let seat = Seat {
                exchange_memory: MEMORY,
                ..Seat::new(group, self.store())
            };
            (
                seat,
                Rank {
                    strategy: self.save.clone().into(),
                    planner,
                    flat,
                },
            )
        };
        groups.into_iter().zip(states).map(seat).collect()
    }

    /// Saves to `store`, unless a rank has another one.
    fn run(&self, store: &Arc<dyn Store>, mut seats: Seats) -> Vec<Result<Saved>> {
        seats
            .iter_mut()
            .for_each(|(seat, _)| seat.store = Arc::clone(store));
        save_on_seats(seats, IfExists::Refuse, None)
    }

    /// Saves, and loads it.
    fn saved(&self, seats: Seats) -> Arc<dyn Store> {
        self.saved_with_records(seats).0
    }

    /// And the names of the files that describe it.
    fn saved_with_records(&self, seats: Seats) -> (Arc<dyn Store>, BTreeSet<Name>) {
        let (store, ranks) = (self.store(), seats.len() as u32);
        let saved = self
            .run(&store, seats)
            .into_iter()
            .map(|o| o.unwrap().records);
        let records = saved
            .flat_map(|r| r.into_files().map(|(name, _)| name))
            .collect();
        self.check(&store, ranks);
        (store, records)
    }

    fn check(&self, store: &Arc<dyn Store>, ranks: u32) {
        let flat = sample_template(Cut::Columns, 0, 1, self.objects.then_some(ranks));
        let planner = Arc::new(DefaultLoadPlanner::DEFAULT) as _;
        let rank = Rank {
            strategy: self.load.clone().into(),
            planner,
            flat,
        };
        for loaded in load_on_ranks(store, vec![rank]) {
            check_sample(&loaded.map_err(|f| f.error).unwrap().state);
        }
    }

    fn bytes_are_those_of_a_save_whose_writer_has_the_pieces_itself(&self) {
        let all_to = |rank: u32| move |_: &Offered, _: usize| rank;
        for ranks in 2..6 {
            let one = vec![Some(0); ranks as usize];
            let lowest = |offered: &Offered, _: usize| offered.group * 2;
            let planners = [
                Assign::new(one.clone(), self.objects, all_to(0)),
                Assign::new(one.clone(), self.objects, all_to(ranks - 1)),
                Assign::turns(ranks, self.objects),
                Assign::new(
                    (0..ranks).map(|r| Some(r / 2)).collect(),
                    self.objects,
                    lowest,
                ),
                Assign::new(
                    (0..ranks).map(|r| (r != 1).then_some(7)).collect(),
                    self.objects,
                    all_to(1),
                ),
            ];
            for planner in planners {
                let exchanged = self.saved(self.seats(&planner, local(ranks).collect()));
                // The same pieces, each with the rank that writes it.
                let decided = std::mem::take(&mut *planner.decided.lock().unwrap());
                let before: Vec<_> = (0..ranks)
                    .map(|r| sample(Cut::Rows, r, ranks, self.objects))
                    .collect();
                let mut states = vec![FlatStateDict::new(); ranks as usize];
                for r in 0..ranks as usize {
                    for (n, leaf) in before[r].values().enumerate() {
                        // An empty piece is declared, and never written.
                        if matches!(leaf, Sharded::Tensor(t) if t.region().is_empty()) {
                            let path = Path(vec![Step::from("own"), Step::Index(n as u64)]);
                            states[r].insert(path, leaf.clone());
                        }
                    }
                }
                for (n, (from, by, item)) in decided.iter().enumerate() {
                    let (_, leaf) = before[*from as usize]
                        .get_index(item.source as usize)
                        .unwrap();
                    let path = Path(vec![Step::from("given"), Step::Index(n as u64)]);
                    let mut leaf = leaf.clone();
                    // A wrapper may have chosen another replica than the main one.
                    if let Sharded::Tensor(t) = &mut leaf {
                        t.replica_id = ReplicaId::default();
                    }
                    states[*by as usize].insert(path, leaf);
                }
                let plain = |_| Arc::new(DefaultSavePlanner::DEFAULT) as Arc<dyn SavePlanner>;
                let own = self.seated(plain, states, local(ranks).collect());
                let (own, records) = self.saved_with_records(own);
                let (exchanged, own) = (files(&exchanged), files(&own));
                assert!(exchanged.keys().eq(own.keys()), "{planner:?} of {ranks}");
                // Records may name keys in another order, because the ranks offered them in another order.
                for (name, bytes) in own.into_iter().filter(|(name, _)| !records.contains(name)) {
                    assert!(exchanged[&name] == bytes, "{name}, {planner:?} of {ranks}");
                }
            }
        }
    }

    /// Whether the format lets ranks write for each other by itself, as one does that stores whole tensors.
    fn exchanges_by_itself(&self) -> bool {
        let most: [Arc<AtomicU64>; 2] = [Arc::default(), Arc::default()];
        let metered = local(2)
            .zip(&most)
            .map(|(inner, most)| Meter::on(inner, most));
        let plain = |_| Arc::new(DefaultSavePlanner::DEFAULT) as Arc<dyn SavePlanner>;
        let states = (0..2)
            .map(|r| sample(Cut::Rows, r, 2, self.objects))
            .collect();
        self.saved(self.seated(plain, states, metered.collect()));
        most.iter().any(|most| most.load(Ordering::Relaxed) > 0)
    }

    fn memory_is_bounded_and_only_peers_meet(&self) {
        let by_itself = self.exchanges_by_itself();
        let groupings = [
            vec![Some(0), Some(0)],
            vec![Some(0), Some(0), Some(0)],
            vec![Some(0), Some(1), Some(0), Some(1)],
            vec![Some(0), Some(1), Some(1), None, Some(0)],
            vec![Some(0), Some(0), Some(0), Some(0), Some(0)],
        ];
        for groups in groupings {
            let members = |group: u32| {
                (0u32..)
                    .zip(&groups)
                    .filter(move |(_, g)| **g == Some(group))
            };
            let of: Vec<Vec<u32>> = (0..2)
                .map(|g| members(g).map(|(r, _)| r).collect())
                .collect();

            // The members of a group write its pieces in turn, so bytes go in all directions at once.
            let turns = move |offered: &Offered, i: usize| {
                let ranks = &of[offered.group as usize];
                ranks[i % ranks.len()]
            };
            let most: Vec<Arc<AtomicU64>> = groups.iter().map(|_| Arc::default()).collect();
            let metered = local(groups.len() as u32)
                .zip(&most)
                .map(|(inner, most)| Meter::on(inner, most));
            let planner = Assign::new(groups.clone(), self.objects, turns);
            self.saved(self.seats(&planner, metered.collect()));

            // Memory limits what is on its way, however much there is to exchange.
            for (group, most) in groups.iter().zip(most) {
                let most = most.load(Ordering::Relaxed);
                assert!(
                    by_itself || (most > 0) == group.is_some(),
                    "only ranks with an exchange take part in it"
                );
                assert!(
                    most <= MEMORY / 2,
                    "{groups:?}: {most} bytes are on their way at once"
                );
            }
        }
    }

    /// Each rank its own way: as it is, on a device, elsewhere; cast or not.
    fn an_exchange_may_cross_casts_devices_and_sources(&self) {
        let ranks = 3;
        let save = |base: Arc<dyn SavePlanner>, shared: bool| {
            let mut states: Vec<_> = (0..ranks)
                .map(|r| sample(Cut::Rows, r, ranks, self.objects))
                .collect();
            for (r, flat) in states.iter_mut().enumerate() {
                for leaf in flat.values_mut() {
                    let Sharded::Tensor(t) = leaf else { continue };
                    let host = t.data.host().unwrap().clone();
                    match (r, t.dtype) {
                        (_, DType::Float32) => {}
                        (1, _) => {
                            let memory = FakeDevice::new(host.nbytes());
                            let device =
                                DeviceTensor::new(t.dtype, &t.local_shape, memory).unwrap();
                            device.fill(&t.key, &host).unwrap();
                            t.data = Data::Device(device);
                        }
                        (2, _) => t.data = elsewhere(&host, u64::MAX),
                        _ => {}
                    }
                }
            }

            // With `shared` the last rank writes everything, so all other data goes through the exchange.
            let to_last =
                move |offered: &Offered, _: usize| if shared { ranks - 1 } else { offered.from };
            let planner = Assign::new(vec![Some(0); ranks as usize], self.objects, to_last);
            let planner = Assign { base, ..planner };
            let store = self.store();
            let seats = self.seated(
                |_| Arc::new(planner.clone()),
                states,
                local(ranks).collect(),
            );
            self.run(&store, seats)
                .into_iter()
                .for_each(|o| drop(o.unwrap()));
            store
        };
        let same: Arc<dyn SavePlanner> = Arc::new(DefaultSavePlanner::DEFAULT);
        self.check(&save(Arc::clone(&same), true), ranks);
        // All bytes of the elements are there, cast by those who have them.
        let [shared, own] = [true, false].map(|shared| save(Arc::new(Wider), shared));
        let length =
            |store: &Arc<dyn Store>| files(store).values().map(bytes::Bytes::len).sum::<usize>();
        let plain = length(&save(same, true));
        assert!(length(&shared) > plain && length(&own) > plain);

        // The casts must have kept the values: what is loaded is the same, however it was written.
        let flat = sample_template(Cut::Columns, 0, 1, self.objects.then_some(ranks));
        let loaded = [&shared, &own].map(|store| {
            let mut flat = flat.clone();
            for leaf in flat.values_mut() {
                let Sharded::Tensor(t) = leaf else { continue };
                t.data = Data::None;
                if t.dtype == DType::Float32 {
                    t.dtype = DType::Float64;
                }
            }
            let planner = Arc::new(DefaultLoadPlanner::DEFAULT) as _;
            let rank = Rank {
                strategy: self.load.clone().into(),
                planner,
                flat,
            };
            let state = load_on_ranks(store, vec![rank])
                .pop()
                .unwrap()
                .map_err(|f| f.error)
                .unwrap()
                .state;
            let tensors = state.into_values().filter_map(|leaf| match leaf {
                Sharded::Tensor(t) => Some(t.data.host().unwrap().to_bytes()),
                Sharded::Object(_) => None,
            });
            tensors.collect::<Vec<_>>()
        });
        assert!(loaded[0] == loaded[1]);
    }

    fn a_plan_without_exchanges_takes_no_more_steps(&self) {
        let calls = |planner: &Assign| {
            let groups: Vec<FaultGroup> = local(2).map(FaultGroup::counting).collect();
            let counted = groups
                .iter()
                .map(|g| Arc::new(g.clone()) as Arc<dyn ProcessGroup>)
                .collect();
            self.saved(self.seats(planner, counted));
            groups.iter().map(FaultGroup::calls).collect::<Vec<_>>()
        };
        let plain = calls(&Assign::new(vec![None, None], self.objects, |_, _| 0));
        let alone = Assign::new(vec![Some(0), Some(1)], self.objects, |offered, _| {
            offered.from
        });
        if self.exchanges_by_itself() {
            return;
        }
        assert_eq!(calls(&alone), plain, "nobody gives anything");
        assert!(calls(&Assign::turns(2, self.objects))[0] > plain[0]);
    }

    fn plans_that_do_not_fit_each_other_are_refused(&self) {
        type Global = fn(&mut [SavePlan]);
        type Case<'s> = (Global, fn(&mut SavePlan), &'s [&'s str]);

        // Each case spoils the plans of all ranks or the finished plan of each rank, and says what the error must name.
        let cases: [Case<'_>; 6] = [
            (
                |p| drop(p[1].exchange.gives.pop()),
                |_| (),
                &["rank 1", "does not hand it out"],
            ),
            (
                |p| p[0].exchange.gives.iter_mut().for_each(|give| give.to = 9),
                |_| (),
                &["rank 0", "to rank 9 of 3"],
            ),
            (
                |p| p[0].exchange.takes.push(1),
                |_| (),
                &["no item is written with what rank 1 gives"],
            ),
            (
                |p| p[2].exchange.takes.clear(),
                |_| (),
                &["other ranks give, but they give 0"],
            ),
            (
                |_| (),
                |plan| plan.exchange.gives.reverse(),
                &["finish_plan must not change an exchange"],
            ),
            (|_| (), |plan| plan.items.reverse(), &[]),
        ];
        for (globally, finally, says) in cases {
            let planner = |_| {
                Arc::new(Spoiled {
                    inner: Assign::turns(3, self.objects),
                    globally,
                    finally,
                }) as Arc<dyn SavePlanner>
            };
            let states = (0..3)
                .map(|r| sample(Cut::Rows, r, 3, self.objects))
                .collect();
            let (store, seats) = (
                self.store(),
                self.seated(planner, states, local(3).collect()),
            );

            // A planner may reorder its items when it finishes its plan, so this case must succeed.
            if says.is_empty() {
                self.run(&store, seats)
                    .into_iter()
                    .for_each(|o| drop(o.unwrap()));
                self.check(&store, 3);
                continue;
            }
            let e = failed(self.run(&store, seats));
            assert!(matches!(&e, CommError::Ranks { step: "plan", .. }), "{e}");
            assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
            assert!(
                says.iter().all(|say| e.to_string().contains(say)),
                "{e}, and not {says:?}"
            );
            nothing_is_left(&store);
        }
    }

    fn what_is_staged_may_change_before_it_is_given(&self) {
        let ranks = 3;
        let planner = Assign::turns(ranks, self.objects);
        let plain = self.saved(self.seats(&planner, local(ranks).collect()));
        let store = self.store();
        let mut seats = self.seats(&planner, local(ranks).collect());
        seats
            .iter_mut()
            .for_each(|(seat, _)| seat.store = Arc::clone(&store));
        let own = Mutex::new(
            seats
                .iter()
                .map(|(_, rank)| handles(&rank.flat))
                .collect::<Vec<_>>(),
        );
        let stagers =
            (0..ranks).map(|_| Arc::new(BlockingAsyncStager::new()) as Arc<dyn AsyncStager>);
        let staged = move |rank: u32| {
            let own = std::mem::take(&mut own.lock().unwrap()[rank as usize]);
            own.into_iter().for_each(spoil);
        };
        let staging = Staging {
            stagers: stagers.collect(),
            staged: Arc::new(staged),
        };
        let saved = save_on_seats(seats, IfExists::Refuse, Some(staging));
        saved.into_iter().for_each(|o| drop(o.unwrap()));
        assert!(
            files(&store) == files(&plain),
            "a staged save writes the bytes of one that is not"
        );
    }

    /// A rank that can't stage does not write, and its peers do not wait for it.
    fn a_failed_staging_is_told_to_those_who_wait(&self) {
        let (ranks, store) = (3, self.store());
        let mut seats = self.seats(&Assign::turns(ranks, self.objects), local(ranks).collect());
        seats
            .iter_mut()
            .for_each(|(seat, _)| seat.store = Arc::clone(&store));
        let stager = |r| match r {
            1 => Arc::new(NoMemory) as Arc<dyn AsyncStager>,
            _ => Arc::new(BlockingAsyncStager::new()),
        };
        let staging = Staging {
            stagers: (0..ranks).map(stager).collect(),
            staged: Arc::new(|_| ()),
        };
        let e = failed(save_on_seats(seats, IfExists::Refuse, Some(staging)));
        named(&e, 1, "a stager without memory");
        nothing_is_left(&store);
    }

    fn a_source_that_fails_fails_all(&self) {
        let ranks = 3;
        let mut met = 0;
        // What finds the data, before any of them went, and in the middle.
        for (hook, nth, bad) in [
            ("planner.transform_object", 0, 0),
            ("planner.transform_object", 3, 2),
            ("planner.lookup_object", 5, 1),
            ("planner.finish_plan", 0, 2),
        ] {
            let count = AtomicU64::new(0);
            let observer = Observer::new(move |h| {
                match h == hook && count.fetch_add(1, Ordering::Relaxed) == nth {
                    true => Err("a fault".into()),
                    false => Ok(()),
                }
            });
            let store = self.store();
            let mut seats = self.seats(&Assign::turns(ranks, self.objects), local(ranks).collect());
            seats[bad as usize].1.planner =
                Arc::new(observer.on(Assign::turns(ranks, self.objects)));
            let before: Vec<_> = seats.iter().map(|(_, rank)| handles(&rank.flat)).collect();
            let e = failed(self.run(&store, seats));
            named(&e, bad, "a fault");
            nothing_is_left(&store);
            // Nobody holds the state any more.
            before.into_iter().flatten().for_each(spoil);
        }
        // The elements themselves, at each of their reads.
        for (fails, bad) in [(0, 0), (0, 1), (1, 2), (2, 1)] {
            let store = self.store();
            let to_last = move |_: &Offered, _: usize| ranks - 1;
            let planner = Assign::new(vec![Some(0); ranks as usize], self.objects, to_last);
            let mut seats = self.seats(&planner, local(ranks).collect());
            for leaf in seats[bad as usize].1.flat.values_mut() {
                if let Sharded::Tensor(t) = leaf {
                    t.data = elsewhere(&t.data.host().unwrap().clone(), fails);
                }
            }
            let outcomes = self.run(&store, seats);
            if outcomes.iter().all(Result::is_ok) {
                continue;
            }
            met += 1;
            named(&failed(outcomes), bad, "a fault");
            nothing_is_left(&store);
        }
        assert!(met > 1, "sources of an exchange were to fail");
    }

    fn a_store_that_fails_fails_all(&self) {
        let (ranks, by_itself) = (3, self.exchanges_by_itself());
        for (bad, all_to) in [(0, None), (2, None), (1, Some(1))] {
            let inner = self.store();
            let planner = match all_to {
                None => Assign::turns(ranks, self.objects),
                Some(rank) => Assign::new(vec![Some(0); 3], self.objects, move |_, _| rank),
            };
            let mut seats = self.seats(&planner, local(ranks).collect());
            seats
                .iter_mut()
                .for_each(|(seat, _)| seat.store = Arc::clone(&inner));
            let faulty = FaultStore::new(Arc::clone(&inner));
            faulty.fail(Op::Write, 0, Fault::Before);
            seats[bad as usize].0.store = Arc::new(faulty);
            let saved = save_on_seats(seats, IfExists::Refuse, None);
            // The rank may write nothing then.
            if by_itself && saved.iter().all(Result::is_ok) {
                continue;
            }
            let e = failed(saved);
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            named(&e, bad, "");
            nothing_is_left(&inner);
        }
    }

    /// One rank is gone, or silent, at any of its collectives: no rank hangs, and none thinks that all is well.
    fn a_transport_that_fails_anywhere_fails_all(&self) {
        let boom = Cause::new(ErrorKind::Unavailable, "a fault");
        let by_itself = self.exchanges_by_itself();
        // One group, or two and a rank that has to do with neither.
        for groups in [
            vec![Some(0); 3],
            vec![Some(0), Some(1), Some(0), Some(1), None],
        ] {
            let ranks = groups.len() as u32;
            let save = |bad: u32, at: u64, fault: Option<GroupFault>| {
                let (wrapped, dynamic) = with_fault(ranks, bad, at, fault.as_ref());
                let planner = Assign::new(groups.clone(), self.objects, |offered, _| offered.group);
                let mut seats = self.seats(&planner, dynamic);
                if matches!(fault, Some(GroupFault::Silence)) {
                    seats
                        .iter_mut()
                        .for_each(|(seat, _)| seat.deadline = Duration::from_millis(100));
                }
                (
                    self.run(&self.store(), seats),
                    wrapped[bad as usize].calls(),
                )
            };
            for bad in [0, ranks.min(3) - 1] {
                let (saved, calls) = save(bad, 0, None);
                saved.into_iter().for_each(|o| drop(o.unwrap()));
                assert!(by_itself || calls > PLAIN_CALLS + 12, "{calls} calls");
                // How many rounds there are depends on how fast files are written; these are there in any case.
                let met = |at: &u64| !by_itself || *at + 2 < calls;
                for at in [0, 1, 2, 4, 7]
                    .map(|n| PLAIN_CALLS + n)
                    .into_iter()
                    .filter(met)
                {
                    for fault in [GroupFault::Fail(boom.clone()), GroupFault::Silence] {
                        let (outcomes, _) = save(bad, at, Some(fault.clone()));
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

/// Only this rank is named, with this cause.
fn named(e: &CommError, bad: u32, says: &str) {
    let CommError::Ranks { causes, .. } = e else {
        panic!("{e}")
    };
    assert_eq!(causes.keys().map(|r| r.0).collect::<Vec<_>>(), [bad], "{e}");
    assert!(e.to_string().contains(says), "{e}");
}
