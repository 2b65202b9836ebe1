//! scratch
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking"
)]
use futures::executor::block_on;
use reshard_comm::{ProcessGroup, Rank};
use reshard_comm_mpi::MpiGroup;
fn main() {
    let group = MpiGroup::builder().part_limit(7000).init().unwrap();
    block_on(async {
        let me = group.rank().0 as u8;
        let all = group.all_gather(vec![me].into()).await.unwrap().concat();
        println!("{me} {all:?}");
        let large = vec![me; 3 << 20];
        let got = group
            .broadcast((me == 0).then(|| large.clone().into()), Rank(0))
            .await
            .unwrap();
        assert!(got == vec![0; 3 << 20]);
        let t = std::time::Instant::now();
        for _ in 0..100 {
            group.barrier().await.unwrap();
        }
        println!("{me} barrier {:?}", t.elapsed() / 100);
        let sub = group
            .split(Some(u32::from(me % 2)), 0)
            .await
            .unwrap()
            .unwrap();
        println!(
            "{me} {:?}",
            sub.all_gather(vec![me].into()).await.unwrap().concat()
        );
    });
}
