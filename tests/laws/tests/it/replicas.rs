//! `check_replicas` finds each replica that differs, and nothing else.

use proptest::prelude::*;
use reshard::{
    DType, Dialect, ErrorKind, Region, ShardedTensor, StateDict, Tensor, Value,
    model::{Data, DeviceBuffer, DeviceTensor, Layout},
};
use reshard_laws::{
    place::Place,
    ranks::{group, save},
};
use reshard_model::testkit::FakeDevice;

/// Each tensor is cut by rows for `width` ranks, and each piece has `copies` replicas.
#[derive(Clone, Copy, Debug)]
struct Grid {
    width: u64,
    copies: u64,
    tensors: u64,
}

const ROWS: u64 = 2;
const COLUMNS: u64 = 5;

impl Grid {
    fn ranks(self) -> u64 {
        self.width * self.copies
    }

    /// The state of a rank, in which these elements are changed: tensor, element of the piece.
    fn state(self, rank: u64, changed: &[(u64, u64)]) -> StateDict {
        let mut state = StateDict::new();
        let (at, copy) = (rank % self.width, rank / self.width);
        for tensor in 0..self.tensors {
            let first = (tensor * 1000 + at * 100) as i32;
            let mut elements: Vec<i32> = (0..(ROWS * COLUMNS) as i32).map(|i| first + i).collect();
            for (_, element) in changed.iter().filter(|(t, _)| *t == tensor) {
                elements[*element as usize] ^= 1 << 20;
            }
            let shape = [self.width * ROWS, COLUMNS];
            let region = Region::new([at * ROWS, 0], [ROWS, COLUMNS]);
            let data = Tensor::from_vec(&[ROWS, COLUMNS], elements).unwrap();
            let piece = ShardedTensor::region_of(&key(tensor), DType::Int32, &shape, region);
            state.insert_piece(piece.with_data(data).with_replica_id(copy as u32));
        }
        state
    }
}

fn key(tensor: u64) -> String {
    format!("t{tensor}")
}

fn grids() -> impl Strategy<Value = Grid> {
    (1u64..4, 1u64..4, 1u64..4).prop_map(|(width, copies, tensors)| Grid {
        width,
        copies,
        tensors,
    })
}

proptest! {
    #![proptest_config(reshard_laws::law(48))]

    #[test]
    fn a_planted_difference_is_named_and_equal_replicas_are_saved(
        grid in grids(),
        planted in proptest::option::of((any::<u64>(), any::<u64>(), 0..ROWS * COLUMNS)),
        dialect in proptest::sample::select(vec![Dialect::Megatron, Dialect::Dcp]),
    ) {
        let planted = planted.map(|(rank, tensor, element)| {
            (rank % grid.ranks(), tensor % grid.tensors, element)
        });
        let states = (0..grid.ranks()).map(|rank| {
            let mine = planted.iter().filter(|(r, ..)| *r == rank);
            let mine: Vec<_> = mine.map(|(_, tensor, element)| (*tensor, *element)).collect();
            grid.state(rank, &mine)
        });
        let place = Place::new();
        let states: Vec<_> = states.collect();
        let saved = save(group(grid.ranks() as u32), states.clone(), place.url(), move |_, s| {
            s.dialect(dialect).check_replicas(true)
        });
        let found = planted.filter(|_| grid.copies > 1);
        for saved in saved {
            match (&found, saved) {
                (None, saved) => drop(saved.unwrap()),
                (Some((rank, tensor, _)), saved) => {
                    let error = saved.unwrap_err();
                    prop_assert_eq!(error.kind(), ErrorKind::Invalid);
                    let at = rank % grid.width * ROWS;
                    let piece = format!("{} [{at}:{}, 0:{COLUMNS}]: ", key(*tensor), at + ROWS);
                    let text = error.to_string();
                    prop_assert!(text.contains("other elements (1)") && text.contains(&piece), "{}", text);
                    // The main replica is the one that would be saved.
                    let main = rank % grid.width;
                    let told = match *rank == main {
                        true => format!("from rank {main}"),
                        false => format!("rank {rank} differs from rank {main}"),
                    };
                    prop_assert!(text.contains(&told), "{}", text);
                }
            }
        }
        // Without the check the main replicas are saved, after an error, too.
        let saved = save(group(grid.ranks() as u32), states, place.url(), move |_, s| {
            s.dialect(dialect).overwrite(true)
        });
        saved.into_iter().for_each(|saved| drop(saved.unwrap()));
    }
}

#[test]
fn replicas_in_device_memory_are_compared_and_views_as_what_they_show() {
    let whole = Tensor::from_vec(&[2, 4], (0..8i32).collect()).unwrap();
    let part = whole.narrow(&Region::new([0, 1], [2, 2]));
    let copy = |elements: Vec<i32>| Tensor::from_vec(&[2, 2], elements).unwrap();
    let on_device = |elements| {
        let tensor = copy(elements);
        let memory = FakeDevice::new(tensor.nbytes());
        let all = Layout::contiguous(4, &[2, 2]).unwrap();
        memory.copy_from_host(&all, &tensor.to_bytes()).unwrap();
        DeviceTensor::new(DType::Int32, &[2, 2], memory).unwrap()
    };
    let saves = |others: Data| {
        let datas = [Data::from(part.clone()), others];
        let states = datas.into_iter().zip(0u32..).map(|(data, rank)| {
            let piece = ShardedTensor::template("w", DType::Int32, &[2, 2]);
            let mut state = StateDict::new();
            state.insert_piece(piece.with_data(data).with_replica_id(rank));
            state
        });
        let place = Place::new();
        let states = states.collect();
        let mut saved = save(group(2), states, place.url(), |_, s| s.check_replicas(true));
        saved.remove(0).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(saves(copy(vec![1, 2, 5, 6]).into()), Ok(()));
    assert_eq!(saves(on_device(vec![1, 2, 5, 6]).into()), Ok(()));
    let error = saves(on_device(vec![1, 2, 5, 7]).into()).unwrap_err();
    assert!(
        error.contains("w [0:2, 0:2]: rank 1 differs from rank 0"),
        "{error}"
    );
}

#[test]
fn every_rank_has_to_ask_for_it() {
    let grid = Grid {
        width: 1,
        copies: 2,
        tensors: 1,
    };
    let states = (0..2).map(|rank| grid.state(rank, &[])).collect();
    let place = Place::new();
    let saved = save(group(2), states, place.url(), |rank, s| {
        s.check_replicas(rank.0 == 1)
    });
    for saved in saved {
        let error = saved.unwrap_err().to_string();
        assert!(
            error.contains("`check_replicas`: rank 0 has false, rank 1 has true"),
            "{error}"
        );
    }
}

#[test]
fn plain_tensors_that_are_left_to_the_coordinator_are_no_replicas() {
    let state = |x: f32| {
        let tensor = || Value::Tensor(Tensor::from_vec(&[1], vec![x]).unwrap());
        let mut state = StateDict::new();
        state.insert("w", tensor());
        let mut inner = StateDict::new();
        inner.insert("rng", tensor());
        inner.insert_tree(
            "all",
            StateDict::List(vec![StateDict::Leaf(tensor().into())]),
        );
        state.insert_tree("optim", inner);
        state
    };
    let place = Place::new();
    let saved = save(
        group(2),
        vec![state(1.0), state(2.0)],
        place.url(),
        |_, s| {
            s.dialect(Dialect::Dcp)
                .coordinators_plain_tensors(true)
                .check_replicas(true)
        },
    );
    saved.into_iter().for_each(|saved| drop(saved.unwrap()));
}

#[test]
fn of_very_many_differences_the_first_are_named() {
    let grid = Grid {
        width: 1,
        copies: 2,
        tensors: 30,
    };
    let changed: Vec<_> = (0..30).map(|tensor| (tensor, 3)).collect();
    let states = vec![grid.state(0, &[]), grid.state(1, &changed)];
    let place = Place::new();
    let saved = save(group(2), states, place.url(), |_, s| s.check_replicas(true));
    let error = saved[0].as_ref().unwrap_err().to_string();
    assert!(
        error.contains("other elements (30)") && error.contains("and 10 more"),
        "{error}"
    );
    assert_eq!(error.matches("rank 1 differs from rank 0").count(), 20);
}
