//! Slices are NumPy's.

use crate::{counted, grid, splits, table};
use proptest::prelude::*;
use reshard_embedding::Index;
use reshard_model::Tensor;

/// What Python's `range(*slice(start, stop, step).indices(n))` gives.
fn python(start: Option<i64>, stop: Option<i64>, step: i64, n: i64) -> Vec<u64> {
    let from_end = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let start = start.map_or(if step > 0 { low } else { high }, |i| {
        from_end(i).clamp(low, high)
    });
    let stop = stop.map_or(if step > 0 { high } else { low }, |i| {
        from_end(i).clamp(low, high)
    });
    let mut out = Vec::new();
    let mut i = start;
    while if step > 0 { i < stop } else { i > stop } {
        out.push(i as u64);
        i = i.saturating_add(step);
    }
    out
}

/// The slice of a whole tensor, element by element.
fn model(whole: &Tensor, subscript: &[Index]) -> Option<(Vec<u64>, Vec<i64>)> {
    let shape = whole.shape();
    let named = subscript
        .iter()
        .filter(|i| !matches!(i, Index::Ellipsis | Index::NewAxis))
        .count();
    let rest = shape.len().checked_sub(named)?;
    let mut entries = Vec::new();
    let mut seen = false;
    for &i in subscript.iter().chain(&[Index::Ellipsis]) {
        match i {
            Index::Ellipsis if seen => {}
            Index::Ellipsis => {
                seen = true;
                entries.extend(vec![Index::from(..); rest]);
            }
            i => entries.push(i),
        }
    }
    let (mut out_shape, mut axes, mut axis) = (Vec::new(), Vec::new(), 0);
    for entry in entries {
        if entry == Index::NewAxis {
            out_shape.push(1);
            continue;
        }
        let n = shape[axis] as i64;
        axis += 1;
        axes.push(match entry {
            Index::At(i) => {
                vec![
                    u64::try_from(if i < 0 { i + n } else { i })
                        .ok()
                        .filter(|&i| i < n as u64)?,
                ]
            }
            Index::Slice { start, stop, step } => {
                let picked = python(start, stop, step.unwrap_or(1), n);
                out_shape.push(picked.len() as u64);
                picked
            }
            _ => unreachable!(),
        });
    }
    let elements = whole.to_vec::<i64>().unwrap();
    let mut places = vec![0u64];
    for (axis, picked) in axes.iter().enumerate() {
        places = places
            .iter()
            .flat_map(|at| picked.iter().map(move |i| at * shape[axis] + i))
            .collect();
    }
    Some((
        out_shape,
        places.into_iter().map(|at| elements[at as usize]).collect(),
    ))
}

fn index() -> impl Strategy<Value = Index> {
    let bound = || prop_oneof![4 => (-12i64..12).prop_map(Some), 2 => Just(None), 1 => Just(Some(i64::MIN)), 1 => Just(Some(i64::MAX))];
    let step = prop_oneof![6 => (-4i64..5).prop_filter("not 0", |s| *s != 0), 1 => Just(i64::MIN), 1 => Just(i64::MAX)];
    prop_oneof![
        5 => (bound(), bound(), step).prop_map(|(a, b, s)| Index::slice(a, b, s)),
        2 => (-6i64..6).prop_map(Index::At),
        1 => Just(Index::NewAxis),
    ]
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn a_slice_of_parts_is_the_slice_of_the_whole(
        splits in splits(0..4), mut subscript in prop::collection::vec(index(), 0..4), ellipsis in prop::option::of(0usize..4),
    ) {
        if let Some(at) = ellipsis {
            subscript.insert(at.min(subscript.len()), Index::Ellipsis);
        }
        let v = grid(&splits);
        match (v.slice(&subscript), model(&counted(v.shape()), &subscript)) {
            (Ok(got), Some((shape, elements))) => {
                prop_assert_eq!(got.shape().to_vec(), shape);
                prop_assert_eq!(got.to_vec::<i64>().unwrap(), elements);
            }
            (got, want) => prop_assert!(got.is_err() && want.is_none(), "{:?} for {:?}", got, want),
        }
    }
}

#[test]
fn entries_of_all_kinds_go_together() {
    let v = table(&[2, 1], &[2, 3]);
    let got = |subscript: &[Index]| {
        let t = v.slice(subscript).unwrap();
        (t.shape().to_vec(), t.to_vec::<i64>().unwrap())
    };
    assert_eq!(got(&[]), (vec![3, 2, 3], (0..18).collect()));
    assert_eq!(
        got(&[(-1).into(), Index::Ellipsis, 0.into()]),
        (vec![2], vec![12, 15])
    );
    assert_eq!(
        got(&[Index::slice(None, None, -2), 1.into(), (1..).into()]),
        (vec![2, 2], vec![16, 17, 4, 5])
    );
    assert_eq!(
        got(&[Index::NewAxis, Index::Ellipsis, Index::NewAxis]).0,
        [1, 3, 2, 3, 1]
    );
    assert_eq!(got(&[Index::slice(5, 1, None)]), (vec![0, 2, 3], vec![]));
}

#[test]
fn slices_are_right_also_when_they_are_large() {
    let v = table(&[70_000, 1, 60_000], &[3]);
    let got = v
        .slice(&[Index::slice(None, None, -1), Index::slice(0, None, 2)])
        .unwrap();
    let want: Vec<i64> = (0..130_001)
        .rev()
        .flat_map(|row| [3 * row, 3 * row + 2])
        .collect();
    assert_eq!(got.to_vec::<i64>().unwrap(), want);
}

#[test]
fn what_numpy_refuses_is_refused_with_its_reason() {
    let v = table(&[2, 1], &[2]);
    let says = |subscript: &[Index], what: &str| {
        let message = v.slice(subscript).unwrap_err().to_string();
        assert!(message.contains(what), "{message}");
    };
    says(
        &[3.into()],
        "index 3 is outside of axis 0, which has length 3",
    );
    says(&[0.into(), (-3).into()], "index -3 is outside of axis 1");
    says(&[Index::slice(None, None, 0)], "step 0");
    says(
        &[0.into(), 0.into(), 0.into()],
        "3 indexes for shape [3, 2], which has 2",
    );
    says(&[Index::Ellipsis, Index::Ellipsis], "at most one ellipsis");
}
