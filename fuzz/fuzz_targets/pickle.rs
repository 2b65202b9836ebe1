//! Any bytes as a pickle, as a tensor's description, as a file with modules, and as pickles that are only scanned.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard_torch_format::{Limits, Modules, Outline, ScriptClasses, TensorRef, pickle};

fuzz_target!(|bytes: &[u8]| {
    let mut graph = pickle::Graph::default();
    drop(pickle::run(bytes, &mut graph, &Limits::default()));
    drop(TensorRef::parse(bytes, &Limits::default()));
    drop(pickle::scan(bytes, &Limits::default()));
    let (owned, limits) = (bytes.to_vec().into(), Limits::default());
    if let Ok(outline) = Outline::parse(&owned, bytes.len() as u64, &limits) {
        let modules = Modules::default().with_open(true);
        drop(outline.contents_with(Default::default(), &modules));
    }
    let mut classes = ScriptClasses::default();
    classes.add("m", &String::from_utf8_lossy(bytes));
});
