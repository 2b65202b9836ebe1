//! Any bytes from other processes: nothing panics, and nobody gets in. The fuzz targets do the same for longer.

use proptest::prelude::*;
use reshard_comm_tcp::testkit::{frames, handshakes, requests};

/// Any bytes, or few bytes that differ from right ones.
fn inputs() -> impl Strategy<Value = Vec<u8>> {
    let change = (0..150_usize, any::<u8>());
    let few = prop::collection::vec(change, 0..4).prop_flat_map(|changes| {
        any::<u8>().prop_map(move |choice| {
            let mut input = vec![choice];
            for (at, byte) in &changes {
                input.resize(input.len().max(at + 2), 0);
                input[at + 1] = *byte;
            }
            input
        })
    });
    prop_oneof![few, prop::collection::vec(any::<u8>(), 0..300)]
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn any_frames_are_read_without_a_panic(input in inputs()) {
        frames(&input);
    }

    #[test]
    fn any_requests_are_answered_without_a_panic(input in inputs()) {
        requests(&input);
    }

    #[test]
    fn nobody_gets_in_whatever_it_sends(input in inputs()) {
        handshakes(&input);
    }
}
