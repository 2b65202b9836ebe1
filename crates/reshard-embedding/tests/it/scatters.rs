//! Scatters are what they would be one after the other on the whole.

use crate::{rows, table};
use half::{bf16, f16};
use proptest::prelude::*;
use reshard_embedding::{EmbeddingError, Ids, Result, ShardedVariable};
use reshard_model::{DType, Element, ErrorKind, Tensor};

type Scatter = fn(&mut ShardedVariable, Ids<'_>, &Tensor) -> Result<()>;

type Model = fn(i64, i64) -> i64;

const SCATTERS: [(Scatter, Model); 7] = [
    (|v, i, t| v.scatter_add(i, t), i64::wrapping_add),
    (|v, i, t| v.scatter_sub(i, t), i64::wrapping_sub),
    (|v, i, t| v.scatter_mul(i, t), i64::wrapping_mul),
    (|v, i, t| v.scatter_div(i, t), i64::wrapping_div),
    (|v, i, t| v.scatter_max(i, t), i64::max),
    (|v, i, t| v.scatter_min(i, t), i64::min),
    (|v, i, t| v.scatter_update(i, t), |_, new| new),
];

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn a_scatter_into_parts_is_a_loop_over_the_whole(
        rows in rows(), width in 0u64..3, op in 0usize..7,
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![-9i64..0, 1i64..9, Just(i64::MIN)]), 0..20),
    ) {
        let mut v = table(&rows, &[width]);
        let total = rows.iter().sum::<u64>() as usize;
        let ids: Vec<i64> = changes.iter().map(|(i, _)| i.index(total) as i64).collect();
        let values: Vec<i64> = changes.iter().flat_map(|(_, x)| (0..width as i64).map(|i| x.wrapping_add(i).max(1))).collect();
        let (scatter, model) = SCATTERS[op];
        let mut want = v.to_tensor().unwrap().to_vec::<i64>().unwrap();
        for (i, id) in ids.iter().enumerate() {
            for c in 0..width as usize {
                let at = *id as usize * width as usize + c;
                want[at] = model(want[at], values[i * width as usize + c]);
            }
        }
        let values = Tensor::from_vec(&[ids.len() as u64, width], values).unwrap();
        scatter(&mut v, (&ids).into(), &values).unwrap();
        prop_assert_eq!(v.to_tensor().unwrap().to_vec::<i64>().unwrap(), want);
    }

    #[test]
    fn nothing_changes_when_one_id_is_wrong(
        rows in rows(), op in 0usize..7, at in any::<prop::sample::Index>(),
        wrong in prop_oneof![Just(i64::MIN), Just(-1), Just(i64::MAX), Just(0)],
    ) {
        let mut v = table(&rows, &[]);
        let before = v.to_tensor().unwrap();
        let total = rows.iter().sum::<u64>() as i64;
        let mut ids: Vec<i64> = (0..total).collect();
        let at = at.index(ids.len());
        ids[at] = if wrong == 0 { total } else { wrong };
        let values = Tensor::from_vec(&[total as u64], vec![7i64; total as usize]).unwrap();
        let e = SCATTERS[op].0(&mut v, (&ids).into(), &values).unwrap_err();
        let EmbeddingError::IdOutOfRange { id, at: position, .. } = e else { return Err(TestCaseError::fail(e.to_string())) };
        prop_assert_eq!((id, position), (ids[at], at));
        prop_assert_eq!(v.to_tensor().unwrap(), before);
    }
}

#[test]
fn the_same_id_again_sees_what_the_first_has_done() {
    let mut v = table(&[1, 2], &[]);
    v.scatter_update(&[2, 2], &Tensor::from_vec(&[2], vec![10i64, 20]).unwrap())
        .unwrap();
    v.scatter_div(
        &[2, 2, 1],
        &Tensor::from_vec(&[3], vec![3i64, 3, 1]).unwrap(),
    )
    .unwrap();
    assert_eq!(v.to_tensor().unwrap().to_vec::<i64>().unwrap(), [0, 1, 2]);
}

#[test]
fn an_id_that_comes_a_million_times_is_added_a_million_times() {
    let mut v = table(&[1, 2], &[]);
    let n = 1_000_000;
    let mut ids = vec![2i64; n];
    ids[n / 2] = 0;
    v.scatter_add(&ids, &Tensor::from_vec(&[n as u64], vec![1i64; n]).unwrap())
        .unwrap();
    assert_eq!(
        v.to_tensor().unwrap().to_vec::<i64>().unwrap(),
        [1, 1, 2 + n as i64 - 1]
    );
    let upstream = Tensor::from_vec(&[n as u64], vec![1i64; n]).unwrap();
    let gradients =
        reshard_embedding::lookup_gradients(&v, &ids, &upstream, &Default::default()).unwrap();
    assert_eq!(
        gradients[1].to_dense().unwrap().to_vec::<i64>().unwrap(),
        [0, n as i64 - 1]
    );
}

#[test]
fn an_integer_is_not_divided_by_zero_and_a_float_is() {
    let mut v = table(&[1, 2], &[]);
    let before = v.to_tensor().unwrap();
    let e = v
        .scatter_div(&[0, 2], &Tensor::from_vec(&[2], vec![5i64, 0]).unwrap())
        .unwrap_err();
    assert!(e.to_string().contains("division by zero: value 1"), "{e}");
    assert_eq!(v.to_tensor().unwrap(), before);
    let mut f =
        ShardedVariable::from_parts("f", [Tensor::from_vec(&[1], vec![3f32]).unwrap()]).unwrap();
    f.scatter_div(&[0], &Tensor::from_vec(&[1], vec![0f32]).unwrap())
        .unwrap();
    assert_eq!(
        f.to_tensor().unwrap().to_vec::<f32>().unwrap(),
        [f32::INFINITY]
    );
}

#[test]
fn values_have_a_row_for_each_id_and_ids_have_one_axis() {
    let mut v = table(&[2, 2], &[3]);
    let t = |shape: &[u64]| {
        Tensor::from_vec(shape, vec![1i64; shape.iter().product::<u64>() as usize]).unwrap()
    };
    let e = v.scatter_add(&[0, 1], &t(&[2, 2])).unwrap_err();
    assert!(
        e.to_string()
            .contains("values of shape [2, 3] of int64, but [2, 2]"),
        "{e}"
    );
    assert!(v.scatter_add(&[0, 1], &t(&[3])).is_err());
    assert!(
        v.scatter_add(&[0], &Tensor::from_vec(&[1, 3], vec![1i32; 3]).unwrap())
            .is_err()
    );
    assert!(
        v.scatter_add(Ids::shaped(vec![0], &[]).unwrap(), &t(&[3]))
            .is_err()
    );
    assert!(
        v.sparse_read(Ids::shaped(vec![0, 1], &[1, 2]).unwrap())
            .is_err()
    );
}

#[test]
fn every_type_is_moved_and_those_with_arithmetic_are_computed_with() {
    fn sum<T: Element + PartialEq + std::fmt::Debug>(a: T, b: T, want: T) {
        let mut v = ShardedVariable::from_parts("v", [Tensor::from_vec(&[2], vec![a, a]).unwrap()])
            .unwrap();
        v.scatter_add(&[1], &Tensor::from_vec(&[1], vec![b]).unwrap())
            .unwrap();
        assert_eq!(v.to_tensor().unwrap().to_vec::<T>().unwrap(), [a, want]);
    }
    sum(250u8, 10, 4);
    sum(-5i16, 3, -2);
    sum(u64::MAX, 1, 0);
    sum(1.5f64, 2.25, 3.75);
    sum(
        f16::from_f32(2048.0),
        f16::from_f32(3.0),
        f16::from_f32(2052.0),
    ); // rounded to even
    sum(
        bf16::from_f32(256.0),
        bf16::from_f32(1.0),
        bf16::from_f32(256.0),
    );
    for &dtype in DType::ALL {
        let zeros = |n| Tensor::zeros("v", dtype, &[n]).unwrap();
        let ones = Tensor::new(dtype, &[1], vec![1u8; dtype.size() as usize]).unwrap();
        let mut v = ShardedVariable::from_parts("v", [zeros(1), zeros(2)]).unwrap();
        v.scatter_update(&[2], &ones).unwrap();
        assert_eq!(
            v.sparse_read(&[2]).unwrap().to_bytes(),
            ones.to_bytes(),
            "{dtype}"
        );
        if let Err(e) = v.scatter_max(&[0], &ones) {
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            assert!(
                e.to_string().contains(dtype.name()) && e.to_string().contains("maximum"),
                "{e}"
            );
            assert!(
                dtype == DType::Bool || dtype.is_complex() || dtype.name().starts_with("float"),
                "{dtype}"
            );
        }
    }
}
