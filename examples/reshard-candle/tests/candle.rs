//! Tensors and optimizer against candle's own.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{AdamW as CandlesAdamW, Optimizer, ParamsAdamW, VarMap};
use reshard::prelude::*;
use reshard_candle::{AdamW, Variables, from_reshard, restore, state, template, to_reshard};

const TYPES: [DType; 10] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];

fn map(vars: impl IntoIterator<Item = (String, Tensor)>) -> VarMap {
    let map = VarMap::new();
    let mut data = map.data().lock().unwrap();
    data.extend(
        vars.into_iter()
            .map(|(name, tensor)| (name, Var::from_tensor(&tensor).unwrap())),
    );
    drop(data);
    map
}

/// Numbers that all types have.
fn numbers(dtype: DType) -> Tensor {
    let numbers = Tensor::from_vec(vec![0f32, 1., 2., 4., 8., 16.], (2, 3), &Device::Cpu).unwrap();
    numbers.to_dtype(dtype).unwrap()
}

#[test]
fn every_type_comes_back_with_its_bits() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("types");
    let all = || TYPES.map(|dtype| (dtype.as_str().to_owned(), numbers(dtype)));
    let zeros = || all().map(|(name, tensor)| (name, tensor.zeros_like().unwrap()));
    let (mut model, saved) = (
        Variables::new(map(zeros())).unwrap(),
        Variables::new(map(all())).unwrap(),
    );
    let mut optimizer = AdamW::of(&model, ParamsAdamW::default()).unwrap();
    let with_moments = AdamW::of(&saved, ParamsAdamW::default()).unwrap();
    let dict = state(&saved, &with_moments).unwrap();
    blocking::run(save(&dict, &place).dialect(Dialect::Dcp)).unwrap();

    let loaded = blocking::load(template(&model, &optimizer).unwrap(), &place).unwrap();
    restore(&mut model, &mut optimizer, loaded).unwrap();
    for (name, var) in model.by_name() {
        let want = to_reshard(&numbers(var.dtype())).unwrap();
        let got = to_reshard(&var).unwrap();
        assert_eq!(
            (got.dtype(), got.to_bytes()),
            (want.dtype(), want.to_bytes()),
            "{name}"
        );
    }
}

#[test]
fn a_part_of_a_tensor_and_one_without_axes_are_converted() {
    let transposed = numbers(DType::I64).t().unwrap();
    assert_eq!(
        to_reshard(&transposed).unwrap().to_vec::<i64>().unwrap(),
        [0, 4, 1, 8, 2, 16]
    );
    let scalar = Tensor::new(7f64, &Device::Cpu).unwrap();
    let there = to_reshard(&scalar).unwrap();
    assert!(there.shape().is_empty());
    assert_eq!(
        from_reshard(there, &Device::Cpu)
            .unwrap()
            .to_scalar::<f64>()
            .unwrap(),
        7.
    );
}

#[test]
fn what_candle_does_not_have_is_refused_by_name() {
    let complex = reshard::Tensor::from_vec(&[1], vec![[1f32, 2.]]).unwrap();
    let e = from_reshard(complex, &Device::Cpu).unwrap_err().to_string();
    assert!(e.contains("complex64"), "{e}");
    let (mut model, f32s) = (
        Variables::new(map([("w".into(), numbers(DType::F32))])).unwrap(),
        numbers(DType::F64),
    );
    let e = reshard_optim::ModelState::load(&mut model, "w", to_reshard(&f32s).unwrap().into())
        .unwrap_err();
    assert!(
        e.to_string().contains("f32") && e.to_string().contains("float64"),
        "{e}"
    );
}

#[test]
fn steps_are_those_of_candles_adamw_bit_for_bit() {
    let params = || ParamsAdamW {
        lr: 0.03,
        ..Default::default()
    };
    let vars = || ["a", "b"].map(|name| (name.to_owned(), numbers(DType::F32)));
    let (ours, theirs) = (Variables::new(map(vars())).unwrap(), map(vars()));
    let mut own = AdamW::of(&ours, params()).unwrap();
    let mut candles = CandlesAdamW::new(theirs.all_vars(), params()).unwrap();
    let loss = |a: &Tensor, b: &Tensor, step: f64| {
        let sum = ((a * step).unwrap().sqr().unwrap() + b.sin().unwrap()).unwrap();
        sum.sum_all().unwrap()
    };
    let by_name = ours.by_name();
    for step in 1..=7 {
        own.backward_step(&loss(&by_name["a"], &by_name["b"], f64::from(step)))
            .unwrap();
        let (a, b) = {
            let data = theirs.data().lock().unwrap();
            (data["a"].clone(), data["b"].clone())
        };
        candles
            .backward_step(&loss(&a, &b, f64::from(step)))
            .unwrap();
        for (name, theirs) in [("a", a), ("b", b)] {
            let (ours, theirs) = (
                to_reshard(&by_name[name]).unwrap(),
                to_reshard(&theirs).unwrap(),
            );
            assert_eq!(
                ours.to_bytes(),
                theirs.to_bytes(),
                "{name} after step {step}"
            );
        }
    }
}

#[test]
fn a_template_holds_no_elements_and_names_what_a_state_names() {
    let model = Variables::new(map([("w".into(), numbers(DType::F32))])).unwrap();
    let optimizer = AdamW::of(&model, ParamsAdamW::default()).unwrap();
    let paths = |state: StateDict| {
        let mut paths = Vec::new();
        state.visit(&mut |path, _| paths.push(reshard::model::Path::from(path).to_string()));
        paths
    };
    let wanted = template(&model, &optimizer).unwrap();
    wanted.visit(&mut |_, leaf| {
        if let reshard::model::Leaf::Tensor(tensor) = leaf {
            assert!(matches!(tensor.data, Data::None), "{}", tensor.key);
        }
    });
    let all = paths(state(&model, &optimizer).unwrap());
    assert_eq!(paths(wanted), all);
    assert!(
        all.iter().any(|path| path == "optim.state.w.exp_avg"),
        "{all:?}"
    );
}

#[test]
fn what_is_missing_is_named() {
    let mut model = Variables::new(map([("w".into(), numbers(DType::F32))])).unwrap();
    let mut optimizer = AdamW::of(&model, ParamsAdamW::default()).unwrap();
    let mut refused = |path: &str| {
        let dict = state(&model, &optimizer).unwrap();
        let mut loaded: ValueTree = dict.map(&mut |leaf| match leaf {
            reshard::model::Leaf::Value(value) => value,
            other => panic!("a state has values only: {other:?}"),
        });
        let mut part = loaded.remove(path).unwrap();
        if path == "model" {
            part.remove("w").unwrap();
            loaded.insert_tree(path, part);
        }
        restore(&mut model, &mut optimizer, loaded)
            .unwrap_err()
            .to_string()
    };
    let (of_model, of_optimizer) = (refused("model"), refused("optim"));
    assert!(
        of_model.contains("missing") && of_model.contains('w'),
        "{of_model}"
    );
    assert!(of_optimizer.contains("`optim`"), "{of_optimizer}");
}
