//! Planners that change elements on their way, wherever these are, and in every format. A planner that changes only the plan or only the
//! elements is refused.

use proptest::prelude::*;
use reshard::{
    DType, Data, Dialect, ErrorKind, OpenOptions, Region, ShardedTensor, StateDict, Tensor,
    model::{BoxError, DeviceTensor, Dims, TensorSource, local_chunk},
    plan::{
        DefaultSavePlanner, PlanError, SaveContext, SavePlan, SavePlanner, WriteData, WriteItem,
        WriteKind,
    },
};
use reshard_laws::{
    formats::format,
    law,
    place::stores,
    ranks::{group, save},
};
use reshard_model::{FlatStateDict, testkit::FakeDevice};
use std::sync::Arc;

/// A planner around another one.
#[derive(Clone, Debug)]
enum Change {
    /// Stores another type.
    Cast(DType),
    /// Changes the sign of each float.
    Negate,
    /// Plans another type, and does not cast the elements.
    OnlyPlan(DType),
    /// Casts the elements, and does not plan it.
    OnlyElements(DType),
    /// Gives elements of another shape.
    Reshape,
}

#[derive(Debug)]
struct Changing(Change, Arc<dyn SavePlanner>);

impl SavePlanner for Changing {
    fn base(&self) -> &dyn SavePlanner {
        &*self.1
    }

    fn create_local_plan(
        &self,
        state: &FlatStateDict,
        cx: &SaveContext<'_>,
    ) -> Result<SavePlan, PlanError> {
        let mut plan = self.base().create_local_plan(state, cx)?;
        if let Change::Cast(to) | Change::OnlyPlan(to) = self.0 {
            for item in &mut plan.items {
                if let WriteKind::Tensor(t) = &mut item.kind {
                    t.dtype = to;
                }
            }
        }
        Ok(plan)
    }

    fn transform_object(&self, item: &WriteItem, data: WriteData) -> Result<WriteData, PlanError> {
        let WriteData::Tensor(data) = self.base().transform_object(item, data)? else {
            panic!("{item:?} is no tensor")
        };
        Ok(WriteData::Tensor(match self.0 {
            Change::Cast(to) | Change::OnlyElements(to) => data.cast(to)?,
            Change::Negate => Data::Lazy(Arc::new(Negated(data.source().unwrap()))),
            Change::Reshape => Data::Lazy(Arc::new(Reshaped(data.source().unwrap()))),
            Change::OnlyPlan(_) => data,
        }))
    }
}

struct Negated(Arc<dyn TensorSource>);

impl TensorSource for Negated {
    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn shape(&self) -> Dims {
        self.0.shape()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        self.0.read(region, out)?;
        // The sign is the highest bit.
        for element in out.chunks_exact_mut(self.dtype().size() as usize) {
            *element.last_mut().unwrap() ^= 0x80;
        }
        Ok(())
    }
}

/// Has a row too many.
struct Reshaped(Arc<dyn TensorSource>);

impl TensorSource for Reshaped {
    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn shape(&self) -> Dims {
        let mut shape = self.0.shape();
        shape[0] += 1;
        shape
    }

    fn read(&self, _: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        out.fill(0);
        Ok(())
    }
}

fn stacked(changes: &[Change]) -> Arc<dyn SavePlanner> {
    let base: Arc<dyn SavePlanner> = Arc::new(DefaultSavePlanner::DCP);
    let stack = |base, change: &Change| -> Arc<dyn SavePlanner> {
        Arc::new(Changing(change.clone(), base))
    };
    changes.iter().fold(base, stack)
}

/// Where elements are.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Host,
    Device,
    Lazy,
}

const SHAPE: [u64; 2] = [7, 3];

/// All are numbers in float16, too.
fn whole() -> Tensor {
    Tensor::from_vec(&SHAPE, (0..21).map(|i| i as f32 - 4.5).collect()).unwrap()
}

fn state(ranks: u32, rank: u32, memory: Memory, prepended: bool) -> StateDict {
    let (from, len) = local_chunk(SHAPE[0], ranks.into(), rank.into());
    let region = Region::new([from, 0], [len, SHAPE[1]]);
    let tensor = whole().narrow(&region);
    let data = match memory {
        Memory::Host => Data::Host(tensor),
        Memory::Lazy => Data::Lazy(Arc::new(tensor)),
        Memory::Device => {
            let device = FakeDevice::new(tensor.nbytes());
            let device = DeviceTensor::new(tensor.dtype(), tensor.shape(), device).unwrap();
            device.fill("w", &tensor).unwrap();
            Data::Device(device)
        }
    };
    let mut state = StateDict::new();
    let leaf = match prepended {
        // The rank is a layer, as in Megatron Core; the data lack its axis.
        true => {
            let offsets = [(0, rank.into(), ranks.into())];
            ShardedTensor::declare("w", DType::Float32, &[len, SHAPE[1]], &offsets, 1).unwrap()
        }
        false => ShardedTensor::region_of("w", DType::Float32, &SHAPE, region),
    };
    state.insert("w", leaf.with_data(data));
    state
}

fn memory() -> impl Strategy<Value = Memory> {
    prop::sample::select(&[Memory::Host, Memory::Device, Memory::Lazy, Memory::Lazy][..])
}

proptest! {
    #![proptest_config(law(120))]

    #[test]
    fn stacked_planners_change_elements_wherever_they_are(
        format in format(), ranks in 1u32..3, memory in memory(),
        prepended in any::<bool>(),
        changes in prop::collection::vec(prop_oneof![
            Just(Change::Negate),
            prop::sample::select(&[DType::Float16, DType::Float32, DType::Float64][..]).prop_map(Change::Cast),
        ], 1..4),
    ) {
        // Layers are equally long.
        let ranks = if prepended { 1 } else { ranks };
        let (place, planner) = (format.place(), stacked(&changes));
        let states = (0..ranks).map(|rank| state(ranks, rank, memory, prepended)).collect();
        let saved = save(group(ranks), states, place.url(), move |_, save| {
            let planner = Changing(Change::Cast(DType::Float32), Arc::clone(&planner));
            save.dialect(Dialect::Dcp).planner(planner).strategy(format.save_config())
        });
        saved.into_iter().for_each(|saved| drop(saved.unwrap()));

        let opened = OpenOptions::new().stores(stores()).open(place.url());
        let opened = futures::executor::block_on(opened).unwrap();
        let stored = futures::executor::block_on(opened.tensor("w").unwrap().read(..)).unwrap();
        prop_assert_eq!(stored.dtype(), DType::Float32);
        let negated = changes.iter().filter(|change| matches!(change, Change::Negate)).count() % 2 == 1;
        let wanted: Vec<f32> = whole().to_vec::<f32>().unwrap();
        let wanted: Vec<f32> = wanted.into_iter().map(|x| if negated { -x } else { x }).collect();
        prop_assert_eq!(stored.to_vec::<f32>().unwrap(), wanted);
    }

    #[test]
    fn a_planner_that_contradicts_itself_fails_the_save_and_nothing_is_stored(
        format in format(), ranks in 1u32..3, memory in memory(), below in any::<bool>(),
        change in prop_oneof![
            Just(Change::OnlyPlan(DType::Float16)), Just(Change::OnlyElements(DType::Float64)), Just(Change::Reshape),
        ],
    ) {
        let changes = if below { vec![change, Change::Negate] } else { vec![Change::Negate, change] };
        let (place, planner) = (format.place(), stacked(&changes));
        let states = (0..ranks).map(|rank| state(ranks, rank, memory, false)).collect();
        let saved = save(group(ranks), states, place.url(), move |_, save| {
            let planner = Changing(Change::Negate, Arc::clone(&planner));
            save.dialect(Dialect::Dcp).planner(planner).strategy(format.save_config())
        });
        for saved in saved {
            let e = saved.unwrap_err();
            prop_assert_eq!(e.kind(), ErrorKind::Invalid);
            prop_assert!(format!("{e:?}").contains("was given for a chunk of"), "{:?}", e);
        }
        prop_assert!(place.is_empty());
    }
}

/// Data of another type or shape than their leaf declares are found, as those in memory are.
#[test]
fn a_lazy_leaf_is_checked_against_its_declaration() {
    let source = || Data::Lazy(Arc::new(whole()));
    let leaf =
        |dtype, shape: &[u64]| ShardedTensor::template("w", dtype, shape).with_data(source());
    leaf(DType::Float32, &SHAPE).validate().unwrap();
    for wrong in [leaf(DType::Float16, &SHAPE), leaf(DType::Float32, &[3, 7])] {
        assert_eq!(wrong.validate().unwrap_err().kind(), ErrorKind::Invalid);
    }
}
