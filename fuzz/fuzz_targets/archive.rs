//! Any bytes as an archive of `torch.save`, new or old; what is read and can be written can be read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Equality would be too much: a class with a dotted name comes back as the `getattr` that Python writes for it.
    if let Ok(value) = reshard_torch_format::load(bytes.to_vec().into())
        && let Ok(again) = reshard_torch_format::save(&value)
    {
        reshard_torch_format::load(again.into()).expect("what was written can be read");
    }
});
