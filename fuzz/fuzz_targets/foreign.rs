//! Recognises files and folders of other programs by bytes and names.

#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard::strategy::Foreign;

fuzz_target!(|data: (&[u8], &[u8], &str)| {
    let (head, tail, path) = data;
    drop(Foreign::of_file(head, tail));
    drop(Foreign::of_name(path));
    drop(Foreign::of_folder([path].into_iter()));
    drop(Foreign::may_be_in(path));
});
