//! What becomes of a template: filled in place, given back, cast, partly loaded.

use proptest::prelude::*;
use reshard::{
    Cast, DType, Dialect, ErrorKind, Region, ShardedTensor, StateDict, StrictHandling, Tensor,
    Value, ValueTree, blocking,
    model::{ShardedTensorFactory, Swiglu},
    plan::cast::convert,
};
use reshard_laws::{
    contents::{Global, choices, contents},
    law,
    place::{Place, stores},
    ranks::{group, load, save, told},
};

fn saved(leaves: Vec<ShardedTensor>) -> Place {
    let place = Place::new();
    let mut state = StateDict::new();
    for leaf in leaves {
        let key = leaf.key.to_string();
        state.insert(key, leaf);
    }
    blocking::run(reshard::save(&state, place.url()).stores(stores())).unwrap();
    place
}

fn vector(key: &str, v: Vec<f32>) -> ShardedTensor {
    ShardedTensor::full(key, Tensor::from_vec(&[v.len() as u64], v).unwrap())
}

fn leaf<'p>(plain: &'p ValueTree, key: &str) -> &'p Tensor {
    plain
        .get(key)
        .and_then(ValueTree::leaf)
        .and_then(Value::as_tensor)
        .unwrap()
}

#[test]
fn a_load_fills_the_callers_vectors_and_gives_them_back() {
    let place = saved(vec![vector("w", vec![1., 2., 3.])]);
    let v = vec![0f32; 3];
    let address = v.as_ptr();
    let mut template = StateDict::new();
    template.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[3], v).unwrap()),
    );
    let mut plain = blocking::run(reshard::load(template, place.url()).stores(stores())).unwrap();
    let v: Vec<f32> = plain
        .remove("w")
        .unwrap()
        .into_leaf()
        .unwrap()
        .into_tensor()
        .unwrap()
        .into_vec()
        .unwrap();
    assert_eq!((v.as_ptr(), &v[..]), (address, &[1., 2., 3.][..]));
}

#[test]
fn a_failed_load_gives_the_callers_vectors_back_as_they_were() {
    let place = saved(vec![vector("w", vec![1., 2., 3.])]);
    let v = vec![7f32; 3];
    let address = v.as_ptr();
    let mut template = StateDict::new();
    template.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[3], v).unwrap()),
    );
    template.insert("x", ShardedTensor::template("x", DType::Int8, &[1]));
    template.insert("step", 3);
    let e = blocking::run(reshard::load(template, place.url()).stores(stores())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    let (_, mut template) = e.into_parts();
    let Some(reshard::model::Leaf::Tensor(t)) = template.remove("w").unwrap().into_leaf() else {
        panic!()
    };
    let reshard::Data::Host(t) = t.data else {
        panic!("the buffer is gone")
    };
    let v: Vec<f32> = t.into_vec().unwrap();
    assert_eq!((v.as_ptr(), &v[..]), (address, &[7.; 3][..]));
    assert!(template.get("x").is_some() && template.get("step").is_some());
}

/// The vector of `w` in what a failed load gave back.
fn given_back(e: reshard::LoadError) -> Vec<f32> {
    let (_, mut template) = e.into_parts();
    let Some(reshard::model::Leaf::Tensor(t)) = template
        .remove("w")
        .and_then(reshard::model::Tree::into_leaf)
    else {
        panic!("the leaf is gone")
    };
    let reshard::Data::Host(t) = t.data else {
        panic!("the buffer is gone")
    };
    t.into_vec().unwrap()
}

#[test]
fn a_template_that_can_not_be_split_comes_back_with_its_buffers() {
    let place = saved(vec![vector("w", vec![1., 2., 3.])]);
    let v = vec![7f32; 3];
    let address = v.as_ptr();
    let mut template = StateDict::new();
    template.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[3], v).unwrap()),
    );
    // A list that mixes sharded and common leaves has no place in Megatron's dialect.
    let mixed = vec![
        reshard::model::Tree::Leaf(vector("x", vec![1.]).into()),
        reshard::model::Tree::Leaf(1.into()),
    ];
    template.insert_tree("mixed", reshard::model::Tree::List(mixed));
    let e = blocking::run(reshard::load(template, place.url()).stores(stores())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    let v = given_back(e);
    assert_eq!(v.as_ptr(), address);
}

#[test]
fn what_was_loaded_comes_back_when_the_common_state_has_its_place() {
    let place = Place::new();
    let mut state = StateDict::new();
    state.insert("somewhere", vector("w", vec![1., 2., 3.]));
    state.insert("w", "common state lies where the template wants a tensor");
    blocking::run(reshard::save(&state, place.url()).stores(stores())).unwrap();
    let v = vec![7f32; 3];
    let address = v.as_ptr();
    let mut template = StateDict::new();
    template.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[3], v).unwrap()),
    );
    let e = blocking::run(reshard::load(template, place.url()).stores(stores())).unwrap_err();
    let v = given_back(e);
    assert_eq!(v.as_ptr(), address);
}

#[test]
fn a_url_that_opens_nothing_gives_the_template_back() {
    let v = vec![7f32; 3];
    let address = v.as_ptr();
    for url in ["nowhere://x", "laws://nowhere", "/nowhere/at/all"] {
        let mut template = StateDict::new();
        template.insert(
            "w",
            ShardedTensor::full("w", Tensor::from_vec(&[3], vec![7f32; 3]).unwrap()),
        );
        let e = blocking::run(reshard::load(template, url).stores(stores())).unwrap_err();
        let (_, template) = e.into_parts();
        assert!(template.get("w").is_some(), "{url}");
    }
    let mut template = StateDict::new();
    template.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[3], v).unwrap()),
    );
    let (_, mut template) = blocking::run(reshard::load(template, "nowhere://x").stores(stores()))
        .unwrap_err()
        .into_parts();
    let Some(reshard::model::Leaf::Tensor(t)) = template.remove("w").unwrap().into_leaf() else {
        panic!()
    };
    let reshard::Data::Host(t) = t.data else {
        panic!("the buffer is gone")
    };
    let v: Vec<f32> = t.into_vec().unwrap();
    assert_eq!(v.as_ptr(), address);
}

#[test]
fn the_buffer_of_a_factory_is_filled_in_place_and_comes_back_when_a_load_fails() {
    // The local rows are [w | v]; the checkpoint has all of w before all of v.
    let leaf = |rank: u64, v: Vec<f32>| {
        let local = Tensor::from_vec(&[4, 2], v).unwrap();
        ShardedTensor::from_rank_offsets("fc1", local, &[(0, rank, 2)]).unwrap()
    };
    let state = |rank: u64, v: Vec<f32>| {
        let mut state = StateDict::new();
        state.insert(
            "fc1",
            ShardedTensorFactory::swiglu(leaf(rank, v), Swiglu::OneKey).unwrap(),
        );
        state
    };
    let values = |rank: u64| (0..8).map(|i| (rank * 8 + i) as f32).collect::<Vec<f32>>();
    let place = Place::new();
    let states = (0..2).map(|r| state(r, values(r))).collect();
    save(group(2), states, place.url(), |_, s| s)
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    let opened = reshard::OpenOptions::new()
        .stores(stores())
        .open(place.url());
    let whole = futures::executor::block_on(
        futures::executor::block_on(opened)
            .unwrap()
            .tensor("fc1")
            .unwrap()
            .read(..),
    );
    let [w, v] = [
        [0., 1., 2., 3., 8., 9., 10., 11.],
        [4., 5., 6., 7., 12., 13., 14., 15.],
    ];
    assert_eq!(whole.unwrap().to_vec::<f32>().unwrap(), [w, v].concat());

    let buffers: Vec<Vec<f32>> = (0..2).map(|_| vec![0.; 8]).collect();
    let addresses: Vec<usize> = buffers.iter().map(|v| v.as_ptr() as usize).collect();
    let mut templates: Vec<StateDict> = (0..).zip(buffers).map(|(r, v)| state(r, v)).collect();
    templates[1].insert(
        "nowhere",
        ShardedTensor::template("nowhere", DType::Int8, &[1]),
    );
    let failed = load(group(2), templates, place.url(), |_, l| l);
    let mut templates: Vec<StateDict> = failed
        .into_iter()
        .map(|o| o.map(drop).unwrap_err().into_parts().1)
        .collect();
    templates[1].remove("nowhere");
    for (r, outcome) in (0..).zip(load(group(2), templates, place.url(), |_, l| l)) {
        let mut plain = outcome.unwrap().0;
        let t = plain
            .remove("fc1")
            .unwrap()
            .into_leaf()
            .unwrap()
            .into_tensor()
            .unwrap();
        assert_eq!(
            t.to_bytes().as_ptr() as usize,
            addresses[r as usize],
            "the same memory"
        );
        assert_eq!(t.to_vec::<f32>().unwrap(), values(r));
    }
}

proptest! {
    #![proptest_config(law(32))]

    /// One rank asks for what is not there; then all load what is, into the very templates that came back.
    #[test]
    fn templates_that_came_back_can_be_loaded_into(
        contents in contents(), n in 1u32..4, m in 1u32..5, mut choices in choices(), dcp in any::<bool>(),
    ) {
        let dialect = if dcp { Dialect::Dcp } else { Dialect::Megatron };
        let place = Place::new();
        let cut = contents.cut(n, &mut choices);
        for outcome in save(group(n), contents.states(&cut, &mut choices), place.url(), move |_, s| s.dialect(dialect)) {
            outcome.unwrap();
        }
        let cut = contents.cut(m, &mut choices);
        let mut watches = Vec::new();
        let mut templates: Vec<StateDict> = (0..m)
            .map(|r| {
                let (template, watch) = contents.template(&cut, r, n, dialect, &mut choices);
                watches.push(watch);
                template
            })
            .collect();
        let odd = choices.below(m.into()) as usize;
        templates[odd].insert("nowhere", ShardedTensor::template("nowhere", DType::Int8, &[2]));
        let errors: Vec<_> =
            load(group(m), templates, place.url(), |_, l| l).into_iter().map(|o| o.map(drop).unwrap_err()).collect();
        if m > 1 {
            let (step, causes) = told(errors.iter().map(|e| Some(e.error())));
            prop_assert_eq!(step, "plan");
            prop_assert_eq!(causes.keys().copied().collect::<Vec<_>>(), vec![odd as u32]);
        }
        let templates: Vec<StateDict> = errors
            .into_iter()
            .map(|e| {
                let (e, mut template) = e.into_parts();
                assert!(e.kind() == ErrorKind::NotFound, "{e}");
                template.remove("nowhere");
                template
            })
            .collect();
        for (r, outcome) in (0..).zip(load(group(m), templates, place.url(), |_, l| l)) {
            contents.check(&cut, r, n, &outcome.unwrap().0);
        }
        watches.iter().for_each(|w| w.check_filled());
    }
}

#[test]
fn element_types_are_cast_as_far_as_is_allowed() {
    let global = |dtype: DType| Global {
        key: dtype.to_string(),
        dtype,
        shape: vec![9],
        salt: 5,
        prepended: false,
    };
    let place = saved(
        DType::ALL
            .iter()
            .map(|&d| ShardedTensor::full(d.name(), global(d).whole()))
            .collect(),
    );
    let opened = reshard::OpenOptions::new()
        .stores(stores())
        .open(place.url());
    let opened = futures::executor::block_on(opened).unwrap();
    assert_eq!(opened.metadata().tensor_count(), DType::ALL.len());
    for cast in [Cast::Never, Cast::Lossless, Cast::Float, Cast::Any] {
        for &from in DType::ALL {
            for &to in DType::ALL {
                let mut template = StateDict::new();
                template.insert("w", ShardedTensor::template(from.name(), to, &[9]));
                let load = reshard::load(template, place.url())
                    .stores(stores())
                    .cast(cast);
                let outcome = futures::executor::block_on(load.with_report());
                match (cast.allows(from, to), outcome) {
                    (true, Ok((plain, report))) => {
                        let mut want = vec![0; 9 * to.size() as usize];
                        if from == to {
                            want = global(from).whole().to_bytes().to_vec();
                        } else {
                            convert(from, &global(from).whole().to_bytes(), to, &mut want).unwrap();
                            assert_eq!(report.notes.casts, [(from.to_string(), from, to)]);
                        }
                        assert_eq!(leaf(&plain, "w").to_bytes(), want, "{from} to {to}");
                        assert_eq!(leaf(&plain, "w").dtype(), to);
                    }
                    (false, Err(e)) => {
                        let text = format!("{:?} {}", e.kind(), e.error().strategy_error());
                        assert!(text.starts_with("Invalid"), "{text}");
                        assert!(
                            text.contains(from.name()) && text.contains(to.name()),
                            "{text}"
                        );
                    }
                    (allowed, outcome) => {
                        panic!("{from} to {to} by {cast:?}: {allowed}, {:?}", outcome.err())
                    }
                }
            }
        }
    }
}

#[test]
fn a_partial_load_leaves_what_is_missing_as_it_is() {
    let place = saved(vec![vector("w", vec![1., 2.])]);
    let template = || {
        let mut template = StateDict::new();
        template.insert("w", ShardedTensor::template("w", DType::Float32, &[2]));
        template.insert("x", vector("x", vec![9.; 4]));
        template
    };
    let strict =
        blocking::run(reshard::load(template(), place.url()).stores(stores())).unwrap_err();
    assert_eq!(strict.kind(), ErrorKind::NotFound);
    let partial = reshard::load(template(), place.url())
        .stores(stores())
        .strict(StrictHandling::ReturnUnexpected);
    let (plain, report) = futures::executor::block_on(partial.with_report()).unwrap();
    assert_eq!(leaf(&plain, "w").to_vec::<f32>().unwrap(), [1., 2.]);
    assert_eq!(leaf(&plain, "x").to_vec::<f32>().unwrap(), [9.; 4]);
    assert_eq!(report.notes.not_stored, ["x"]);
}

#[test]
fn all_that_is_missing_anywhere_is_named_at_once() {
    let place = saved(vec![vector("layers.weight", vec![1., 2.])]);
    let template = |keys: &[&str]| {
        let mut template = StateDict::new();
        for key in keys {
            template.insert(*key, ShardedTensor::template(key, DType::Float32, &[2]));
        }
        template
    };
    let templates = vec![
        template(&["layers.wieght", "b"]),
        template(&["layers.weight"]),
        template(&["c"]),
    ];
    let errors: Vec<_> = load(group(3), templates, place.url(), |_, l| l)
        .into_iter()
        .map(|o| o.map(drop).unwrap_err())
        .collect();
    let (step, causes) = told(errors.iter().map(|e| Some(e.error())));
    assert_eq!(
        (step, causes.keys().copied().collect::<Vec<_>>()),
        ("plan", vec![0, 2])
    );
    assert!(
        causes[&0].contains("layers.wieght") && causes[&0].contains("did you mean layers.weight"),
        "{causes:?}"
    );
    assert!(
        causes[&0].contains("b is not in the checkpoint") && causes[&2].contains("c is not"),
        "{causes:?}"
    );
}

/// Megatron's eight, over ranks with different templates: what is stored and not asked for, and the reverse.
#[test]
fn strictness_reaches_all_ranks() {
    let place = saved(vec![
        vector("a", vec![1.]),
        vector("b", vec![1.]),
        vector("c", vec![1.]),
    ]);
    let template = |key: &str| {
        let mut template = StateDict::new();
        template.insert(key, ShardedTensor::template(key, DType::Float32, &[1]));
        template
    };
    for strict in StrictHandling::ALL {
        let both = |keys: [&str; 2]| {
            let templates = keys.map(template).into();
            load(group(2), templates, place.url(), move |_, l| {
                l.strict(strict)
            })
        };
        for outcome in both(["a", "c"]) {
            let found = outcome.map(|(_, report)| report.notes.not_requested);
            match (strict, found) {
                (StrictHandling::RaiseAll, found) => {
                    let e = found.unwrap_err().to_string();
                    assert!(
                        e.contains("b is in the checkpoint, but no rank asks"),
                        "{e}"
                    );
                }
                (StrictHandling::LogAll | StrictHandling::ReturnAll, found) => {
                    assert_eq!(found.unwrap(), ["b"]);
                }
                (_, found) => assert!(found.unwrap().is_empty()),
            }
        }
        let fails = strict.needs_stored();
        for (rank, outcome) in both(["a", "x"]).into_iter().enumerate() {
            match outcome {
                Ok((plain, report)) => {
                    let lost: &[&str] = if rank == 1 { &["x"] } else { &[] };
                    assert!(!fails && report.notes.not_stored == lost, "{strict}");
                    assert_eq!(
                        plain.get("x").is_some() || plain.get("a").is_some(),
                        rank == 0
                    );
                }
                Err(e) => assert!(fails && e.to_string().contains("x is not in"), "{e}"),
            }
        }
    }
}

#[test]
fn another_global_shape_is_loaded_where_the_leaf_allows_it() {
    let place = saved(vec![vector("w", vec![1., 2., 3.])]);
    for (len, want) in [
        (5, vec![1., 2., 3., 0., 0.]),
        (2, vec![1., 2.]),
        (3, vec![1., 2., 3.]),
    ] {
        let mut template = StateDict::new();
        let t = vector("w", vec![9.; len]).with_shape_mismatch_allowed();
        template.insert("w", t);
        let plain = blocking::run(reshard::load(template, place.url()).stores(stores())).unwrap();
        assert_eq!(leaf(&plain, "w").to_vec::<f32>().unwrap(), want);
    }
    let mut template = StateDict::new();
    template.insert(
        "w",
        ShardedTensor::region_of("w", DType::Float32, &[6], Region::new([2], [3])),
    );
    let e = blocking::run(reshard::load(template, place.url()).stores(stores())).unwrap_err();
    let text = e.error().strategy_error().to_string();
    assert!(text.contains("[3]") && text.contains("[6]"), "{text}");
}
