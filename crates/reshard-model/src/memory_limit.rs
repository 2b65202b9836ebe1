//! The memory limit of this process: the smallest of its address space and its cgroups.

use std::{fmt, path::Path, sync::LazyLock};

/// The memory limit of this process, in bytes, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The number of bytes.
    pub bytes: u64,
    /// The setting that limits it: `ulimit -v`, or a file of a cgroup.
    pub set_by: String,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this process may use {} bytes of memory ({})",
            self.bytes, self.set_by
        )
    }
}

impl MemoryLimit {
    /// Returns the smallest of `ulimit -v` and the limits of this process's cgroups and their parents. `None` if nothing limits it. It is
    /// determined once.
    pub fn of_process() -> Option<&'static Self> {
        static LIMIT: LazyLock<Option<MemoryLimit>> = LazyLock::new(|| {
            let read = |path: &Path| std::fs::read_to_string(path).ok();
            let cgroups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
            MemoryLimit::smallest(address_space(), of_cgroups(&cgroups, read))
        });
        LIMIT.as_ref()
    }

    fn smallest(address_space: Option<Self>, of_cgroups: Option<Self>) -> Option<Self> {
        let limits = address_space.into_iter().chain(of_cgroups);
        limits.min_by_key(|limit| limit.bytes)
    }

    /// Returns the limit in bytes, `u64::MAX` if there is none.
    pub fn bytes() -> u64 {
        Self::of_process().map_or(u64::MAX, |limit| limit.bytes)
    }

    /// Returns the most memory for one parsed file or cache: `option` if it is set, else `usual`, at most 4 GiB and at most an eighth of the
    /// limit of the process, which needs memory for the files themselves as well. It is never more than that limit.
    pub fn budget(option: Option<u64>, usual: u64) -> u64 {
        let limit = Self::bytes();
        option
            .unwrap_or_else(|| usual.min(4 << 30).min(limit / 8))
            .min(limit)
    }

    /// Describes that there is no memory for `bytes` bytes, with the limit.
    pub fn refusal(bytes: impl fmt::Display) -> String {
        match Self::of_process() {
            Some(limit) => format!("there is no memory for {bytes} bytes; {limit}"),
            None => format!("there is no memory for {bytes} bytes"),
        }
    }
}

fn address_space() -> Option<MemoryLimit> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As);
    limit.current.map(|bytes| MemoryLimit {
        bytes,
        set_by: "ulimit -v".into(),
    })
}

/// The smallest limit of the cgroups that `/proc/self/cgroup` names and of their parents. In a container, the root of the mounted tree is
/// often the process's own cgroup, although its name is a longer one: so folders that don't exist are skipped.
fn of_cgroups(cgroups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<MemoryLimit> {
    let mut least: Option<MemoryLimit> = None;
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            all if all.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for folder in Path::new(group.trim_start_matches('/')).ancestors() {
            let file = Path::new(root).join(folder).join(file);
            // Version 2 says `max` if there is no limit, and version 1 a number beyond all memory.
            let bytes = read(&file).and_then(|text| text.trim().parse().ok());
            let smaller = |bytes: &u64| {
                *bytes < NO_LIMIT && least.as_ref().is_none_or(|least| *bytes < least.bytes)
            };
            if let Some(bytes) = bytes.filter(smaller) {
                least = Some(MemoryLimit {
                    bytes,
                    set_by: file.display().to_string(),
                });
            }
        }
    }
    least
}

/// Version 1 of cgroups has a little less than 2^63 bytes where there is no limit.
const NO_LIMIT: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_both_kinds_counts() {
        let of = |bytes| MemoryLimit {
            bytes,
            set_by: String::new(),
        };
        let smallest = |a: Option<u64>, b: Option<u64>| {
            MemoryLimit::smallest(a.map(of), b.map(of)).map(|limit| limit.bytes)
        };
        assert_eq!(smallest(Some(2), Some(1)), Some(1));
        assert_eq!(smallest(Some(1), Some(2)), Some(1));
        assert_eq!(smallest(None, Some(2)), Some(2));
        assert_eq!(smallest(None, None), None);
    }

    #[test]
    fn the_smallest_limit_of_a_cgroup_and_its_parents_counts() {
        let found = |cgroups: &str, files: &[(&str, &str)]| {
            let read = |path: &Path| {
                let of = files.iter().find(|(name, _)| Path::new(name) == path);
                of.map(|(_, text)| (*text).to_owned())
            };
            of_cgroups(cgroups, read).map(|limit| (limit.bytes, limit.set_by))
        };
        let own = "/sys/fs/cgroup/a/b/memory.max";
        let parent = "/sys/fs/cgroup/a/memory.max";
        let all = [(own, "3000\n"), (parent, "2000\n")];
        assert_eq!(found("0::/a/b\n", &all), Some((2000, parent.into())));
        let all = [(own, "3000\n"), (parent, "max\n")];
        assert_eq!(found("0::/a/b\n", &all), Some((3000, own.into())));
        assert_eq!(found("0::/a\n", &[(parent, "max\n")]), None);
        // The name of the group is that of the host; the container sees its own group as the root.
        let root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        let v1 = "5:cpu,cpuacct:/d/1\n4:memory:/d/1\n1:name=systemd:/d/1\n";
        assert_eq!(found(v1, &[(root, "700\n")]), Some((700, root.into())));
        let none = [(root, "9223372036854771712\n")];
        assert_eq!(found(v1, &none), None);
        // Both versions at once, and lines that are none.
        let both = [(root, "700\n"), ("/sys/fs/cgroup/memory.max", "600")];
        let found = found(&format!("{v1}0::/\n\nx\n:"), &both);
        assert_eq!(found.map(|(bytes, _)| bytes), Some(600));
    }
}
