//! Data of tensors, and what is said of checkpoints that do not fit.

use burn::{
    backend::{Autodiff, NdArray},
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, AdamWConfig, GradientsParams, Optimizer},
    tensor::{Tensor, TensorData},
};
use half::{bf16, f16};
use reshard::{model::Leaf, prelude::*};
use reshard_burn::{from_reshard, restore, state, template, to_reshard};

type B = Autodiff<NdArray>;

fn layer(inputs: usize) -> Linear<B> {
    LinearConfig::new(inputs, 2).init(&Default::default())
}

/// What a load of this state dict would return.
fn loaded(state: StateDict) -> ValueTree {
    state.map(&mut |leaf| match leaf {
        Leaf::Value(value) => value,
        other => panic!("a state has values only: {other:?}"),
    })
}

/// A layer after one step, and its optimizer's state in a state dict.
fn trained() -> StateDict {
    let (layer, mut optimizer) = (layer(4), AdamWConfig::new().init());
    let loss = layer
        .forward(Tensor::<B, 2>::ones([3, 4], &Default::default()))
        .mean();
    let grads = GradientsParams::from_grads(loss.backward(), &layer);
    let layer = optimizer.step(0.01, layer, grads);
    state(&layer, &optimizer).unwrap()
}

#[test]
fn every_type_comes_back_with_its_bits() {
    let all = [
        TensorData::new(vec![1f64, -2.5], [2]),
        TensorData::new(vec![1f32, -2.5], [1, 2]),
        TensorData::new(vec![f16::ONE, f16::NEG_ZERO], [2]),
        TensorData::new(vec![bf16::ONE, bf16::NAN], [2]),
        TensorData::new(vec![i64::MIN, 1], [2]),
        TensorData::new(vec![i32::MIN, 1], [2]),
        TensorData::new(vec![i16::MIN, 1], [2]),
        TensorData::new(vec![i8::MIN, 1], [2]),
        TensorData::new(vec![u64::MAX, 1], [2]),
        TensorData::new(vec![u32::MAX, 1], [2]),
        TensorData::new(vec![u16::MAX, 1], [2]),
        TensorData::new(vec![u8::MAX, 1], [2]),
        TensorData::new(vec![true, false], [2]),
        TensorData::new(vec![7f32], []),
    ];
    for data in all {
        let there = to_reshard(data.clone()).unwrap();
        let shape: Vec<u64> = data.shape.iter().map(|n| *n as u64).collect();
        assert_eq!(
            (&there.to_bytes()[..], &there.shape()[..]),
            (data.as_bytes(), &shape[..]),
            "{:?}",
            data.dtype
        );
        let back = from_reshard(there).unwrap();
        assert_eq!(
            (back.as_bytes(), &back.shape, back.dtype),
            (data.as_bytes(), &data.shape, data.dtype)
        );
    }
    let complex = reshard::Tensor::from_vec(&[1], vec![[1f32, 2.]]).unwrap();
    assert!(
        from_reshard(complex)
            .unwrap_err()
            .to_string()
            .contains("complex64")
    );
}

#[test]
fn a_template_holds_no_elements_and_names_what_a_state_names() {
    let paths = |state: &StateDict| {
        let mut paths = Vec::new();
        state.visit(&mut |path, _| paths.push(reshard::model::Path::from(path).to_string()));
        paths
    };
    let wanted = template(&layer(4)).unwrap();
    wanted.visit(&mut |_, leaf| match leaf {
        Leaf::Tensor(tensor) => assert!(matches!(tensor.data, Data::None), "{}", tensor.key),
        other => panic!("{other:?}"),
    });
    let all = paths(&trained());
    assert_eq!(paths(&wanted), all);
    assert!(
        all.iter().any(|path| path == "optim.state.weight.exp_avg"),
        "{all:?}"
    );
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refused = |layer: Linear<B>, loaded: ValueTree| {
        let optimizer = AdamWConfig::new().init();
        restore(layer, optimizer, loaded)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let e = refused(layer(5), loaded(trained()));
    assert!(
        e.contains("weight") && e.contains("[5, 2]") && e.contains("[4, 2]"),
        "{e}"
    );

    // The model's part is taken out, changed and put back.
    let changed = |change: &dyn Fn(&mut ValueTree)| {
        let mut all = loaded(trained());
        let mut model = all.remove("model").unwrap();
        change(&mut model);
        all.insert_tree("model", model);
        all
    };
    let without = changed(&|model| assert!(model.remove("bias").is_some()));
    let e = refused(layer(4), without);
    assert!(e.contains("model.bias") && e.contains("not loaded"), "{e}");

    let wrong = reshard::Tensor::from_vec(&[2], vec![1f64, 2.]).unwrap();
    let other = changed(&|model| drop(model.insert("bias", wrong.clone())));
    let e = refused(layer(4), other);
    assert!(
        e.contains("model.bias") && e.contains("F32") && e.contains("float64"),
        "{e}"
    );
}

#[test]
fn the_state_of_adamw_is_loaded_by_adam() {
    let (fresh, adam) = (layer(4), AdamConfig::new().init());
    let want = trained();
    let (layer, adam) = restore(fresh, adam, loaded(want.clone())).unwrap();
    let got = state(&layer, &adam).unwrap();
    let tensors = |state: StateDict| {
        let leaves = loaded(state).into_nested_values().into_iter();
        leaves
            .map(|value| value.into_tensor().unwrap().to_bytes())
            .collect::<Vec<_>>()
    };
    assert_eq!(tensors(got), tensors(want));
}
