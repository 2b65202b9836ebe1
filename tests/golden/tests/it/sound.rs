//! Checkpoints that are as their writer left them.

use futures::executor::block_on;
use reshard::{Checkpoint, Progress};
use reshard_golden::{Depth, compare, fixtures};

#[test]
fn every_sound_checkpoint_is_read_bit_for_bit() {
    let (mut count, mut tensors, mut objects) = (0, 0, 0);
    let mut wrong = Vec::new();
    for f in fixtures().iter().filter(|f| f.expected.sound) {
        count += 1;
        let checkpoint = match block_on(Checkpoint::open(&f.url())) {
            Ok(c) => c,
            Err(e) => {
                wrong.push(format!("{f}: {e:?}"));
                continue;
            }
        };
        wrong.extend(
            compare(&checkpoint, &f.expected, Depth::Places).into_iter().map(|w| format!("{f}: {w}")),
        );
        tensors += f.expected.tensors.len();
        objects += f.expected.objects.len();
        match block_on(checkpoint.verify(true, Progress::default())) {
            Err(e) => wrong.push(format!("{f}: verify: {e:?}")),
            Ok(report) => {
                let found = report.damage.iter().chain(&report.unchecked);
                wrong.extend(found.map(|d| format!("{f}: verify: {d:?}")));
            }
        }
    }
    println!("{count} sound checkpoints read: {tensors} tensors, {objects} objects");
    assert!(count > 0, "no sound checkpoint was read");
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}
