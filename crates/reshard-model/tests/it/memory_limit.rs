//! The memory limit of a process that has one.

use reshard_model::MemoryLimit;
use std::process::Command;

const NAME: &str = "memory_limit::no_option_exceeds_the_limit_of_the_process";
const CHILD: &str = "RESHARD_TEST_LIMITED";
/// In KiB, as `ulimit` has it.
const LIMIT: u64 = 6_000_000;

#[test]
#[cfg(target_os = "linux")]
fn no_option_exceeds_the_limit_of_the_process() {
    if std::env::var_os(CHILD).is_none() {
        let script = format!("ulimit -v {LIMIT}; exec \"$0\" --exact {NAME} --test-threads=1");
        let mut child = Command::new("sh");
        child
            .args(["-c", &script])
            .arg(std::env::current_exe().unwrap());
        let out = child.env(CHILD, "").output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    // A cgroup may have less.
    let limit = MemoryLimit::of_process().unwrap();
    assert!(limit.bytes <= LIMIT << 10, "{limit}");
    let budget = MemoryLimit::budget;
    assert_eq!(budget(Some(u64::MAX), 0), limit.bytes);
    assert_eq!(budget(Some(7), u64::MAX), 7);
    assert_eq!(budget(None, u64::MAX), limit.bytes / 8);
    assert_eq!(budget(None, 7), 7);
    let refusal = MemoryLimit::refusal(9);
    let told = format!(
        "no memory for 9 bytes; this process may use {} bytes",
        limit.bytes
    );
    assert!(refusal.contains(&told), "{refusal}");
}
