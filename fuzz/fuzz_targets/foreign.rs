//! Recognises files and folders of other programs by bytes and names.

#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard::strategy::Foreign;
use std::hint::black_box;

fuzz_target!(|data: (&[u8], &[u8], &str)| {
    let (head, tail, path) = data;
    black_box(Foreign::of_file(head, tail));
    black_box(Foreign::of_name(path));
    black_box(Foreign::of_folder([path].into_iter()));
    black_box(Foreign::may_be_in(path));
});
