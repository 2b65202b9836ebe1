//! Any bytes as an `integrity.json`: what is understood is written and understood again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard::megatron::Integrity;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(integrity) = Integrity::parse(bytes) {
        assert_eq!(
            Integrity::parse(&integrity.to_bytes()).ok(),
            Some(integrity)
        );
    }
});
