//! How long a step waits.

use reshard_comm::{Comm, DEFAULT_DEADLINE, LocalGroup, Rank};
use std::time::Duration;

#[test]
fn a_step_waits_half_an_hour_unless_told_otherwise() {
    let half_an_hour = Duration::from_secs(1800);
    assert_eq!(DEFAULT_DEADLINE, half_an_hour);
    for group in LocalGroup::new(2) {
        let comm = Comm::new(&group);
        assert_eq!(comm.deadline(), half_an_hour);
        assert_eq!(comm.with_coordinator(Rank(1)).deadline(), half_an_hour);
        assert_eq!(
            comm.with_deadline(Duration::from_secs(7)).deadline(),
            Duration::from_secs(7)
        );
    }
    assert_eq!(Comm::single().deadline(), half_an_hour);
}
