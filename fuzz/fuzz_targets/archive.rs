//! Any bytes as an archive of `torch.save`, new or old; what is read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(value) = reshard_torch_format::load(bytes.to_vec().into())
        && let Ok(again) = reshard_torch_format::save(&value)
    {
        let read = reshard_torch_format::load(again.into()).expect("what was written can be read");
        assert_eq!(read, value);
    }
});
