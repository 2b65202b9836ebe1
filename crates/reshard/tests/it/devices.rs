//! Loads into device memory.

use reshard::{
    DType, Data, ErrorKind, Region, ShardedTensor, StateDict, Tensor, blocking,
    model::{DeviceTensor, testkit::FakeDevice},
};

/// Two leaves of 1,000 elements, of which the second begins at this element of the memory of both.
fn load(url: &str, second: u64, view: impl Fn(Region) -> Data) -> Result<(), reshard::LoadError> {
    let mut template = StateDict::new();
    for (key, from) in [("a", 0), ("b", second)] {
        let leaf = ShardedTensor::template(key, DType::UInt32, &[1000]);
        template.insert(key, leaf.with_data(view(Region::new([from], [1000]))));
    }
    blocking::run(reshard::load(template, url)).map(drop)
}

#[test]
fn leaves_that_want_the_same_memory_are_refused_on_a_device_too() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("x").display().to_string();
    let mut state = StateDict::new();
    for (key, value) in [("a", 1u32), ("b", 2)] {
        let t = Tensor::from_vec(&[1000], vec![value; 1000]).unwrap();
        state.insert(key, ShardedTensor::full(key, t));
    }
    blocking::run(reshard::save(&state, &url)).unwrap();
    for (second, overlaps) in [(0, true), (500, true), (999, true), (1000, false)] {
        let memory = FakeDevice::new(8000);
        let device = DeviceTensor::new(DType::UInt32, &[2000], memory).unwrap();
        let on_device = load(&url, second, |part| device.narrow(&part).into());
        let host = Tensor::zeros("host", DType::UInt32, &[2000]).unwrap();
        let parts = [0, second].map(|from| host.narrow(&Region::new([from], [1000])));
        drop(host);
        let parts = std::cell::RefCell::new(parts.into_iter());
        let on_host = load(&url, second, |_| parts.borrow_mut().next().unwrap().into());
        for loaded in [on_device, on_host] {
            match loaded {
                Ok(()) => assert!(!overlaps, "{second}"),
                Err(e) => {
                    assert!(overlaps, "{second}: {e}");
                    assert_eq!(e.kind(), ErrorKind::Invalid);
                    assert!(e.to_string().contains("overlap"), "{e}");
                }
            }
        }
    }
}
