//! Any bytes as a file of `torch.save`, or as the index of a folder. The first byte says what: the file alone; a sound archive over which the
//! bytes are laid (exclusive or); an index.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use reshard::{Tensor, Value};
use reshard_torch_format::save;
use reshard_torch_save::testkit;

static SOUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let weight = Tensor::from_vec(&[3, 2], vec![0f32, 1., 2., 3., 4., 5.]).expect("a tensor");
    let list = Value::List(vec![
        Value::Tensor(weight.clone()),
        Value::Tuple(vec![Value::Tensor(weight.clone())]),
    ]);
    save(&Value::Dict(vec![
        ("weight".into(), weight.into()),
        ("list".into(), list),
        (3.into(), "x".into()),
    ]))
    .expect("it is saved")
});

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, rest)) = bytes.split_first() else {
        return;
    };
    match which % 3 {
        0 => testkit::file(rest),
        1 => {
            let mut file = SOUND.clone();
            file.iter_mut().zip(rest).for_each(|(at, byte)| *at ^= byte);
            testkit::file(&file);
        }
        _ => testkit::index(rest, &SOUND),
    }
});
