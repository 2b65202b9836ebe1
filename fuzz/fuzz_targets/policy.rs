//! Any text as a sharding policy's configuration, a size and a slice spec; what is read is the same after it was written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard_policy::{ByteSize, ShardingPolicy, SliceSpec};

fuzz_target!(|text: &str| {
    if let Ok(policy) = serde_json::from_str::<Box<dyn ShardingPolicy>>(text) {
        let written = serde_json::to_string(&policy).expect("a policy is written");
        let again: Box<dyn ShardingPolicy> =
            serde_json::from_str(&written).expect("what was written is read");
        assert_eq!(
            serde_json::to_string(&again).expect("a policy is written"),
            written
        );
    }
    if let Ok(size) = text.parse::<ByteSize>() {
        assert_eq!(
            size.to_string()
                .parse::<ByteSize>()
                .expect("what was written is read"),
            size
        );
    }
    // A slice of no length is written as TensorFlow's Python does it, which its C++ and so we do not read.
    let nothing =
        |spec: &SliceSpec| matches!(spec, SliceSpec::Part { region, .. } if region.is_empty());
    if let Ok(spec) = text.parse::<SliceSpec>()
        && !nothing(&spec)
    {
        assert_eq!(
            spec.to_string()
                .parse::<SliceSpec>()
                .expect("what was written is read"),
            spec
        );
    }
});
