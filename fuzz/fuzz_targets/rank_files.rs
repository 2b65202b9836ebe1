//! Any bytes as the files of two ranks, or as the `metadata.pkl` of `torch_checkpointing` beside sound ones. The first byte says which.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard_torch_save::testkit;

const METADATA: &[u8] =
    include_bytes!("../../tests/fixtures/rank_files/tc_safetensors_w2/ckpt/metadata.pkl");
const FIRST: &[u8] = include_bytes!("../../tests/fixtures/rank_files/tc_fsdp2_w2/ckpt/model_0.pt");
const SECOND: &[u8] =
    include_bytes!("../../tests/fixtures/rank_files/tc_safetensors_w2/ckpt/model_1.safetensors");

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, rest)) = bytes.split_first() else {
        return;
    };
    match which % 3 {
        0 => testkit::rank_files(rest, FIRST, SECOND),
        1 => testkit::rank_files(METADATA, rest, SECOND),
        _ => testkit::rank_files(METADATA, FIRST, rest),
    }
});
