//! Control groups: how options name them, and which ones this process is in.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

const ROOT: &str = "/sys/fs/cgroup";

/// The directory of a group that is given by it, or by its path below
/// `/sys/fs/cgroup`. `option` is only used in errors.
pub(crate) fn directory(option: &str, given: &Path) -> Result<PathBuf, Failure> {
    let below = Path::new(ROOT).join(given.strip_prefix("/").unwrap_or(given));
    [given.to_owned(), below]
        .into_iter()
        .find(|path| path.join("cgroup.procs").exists())
        .ok_or_else(|| {
            Failure::bad_input(format!("{option}: `{}` is no control group", given.display()))
        })
}

/// The directories of the groups that this process is in, one a hierarchy.
pub(crate) fn ours() -> Vec<PathBuf> {
    directories(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
}

/// The same from the text of `/proc/PID/cgroup`, see cgroups(7).
fn directories(text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = path.trim_start_matches('/');
        // The one hierarchy of version 2 lies at the root, or beside those of version 1.
        let mounts: &[&str] =
            if controllers.is_empty() { &["", "unified"] } else { &[controllers] };
        found.extend(mounts.iter().map(|mount| Path::new(ROOT).join(mount).join(path)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_say_where_a_process_is() {
        let found = directories("4:memory:/a/b\n1:name=systemd:/\n0::/c.slice/d\nrubbish\n");
        for expected in ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/c.slice/d"] {
            assert!(found.iter().any(|path| path == Path::new(expected)), "{expected}: {found:?}");
        }
    }

    #[test]
    fn what_is_no_group_is_refused() {
        assert!(directory("--cgroup", Path::new("/etc")).is_err());
        assert!(directory("--cgroup", Path::new("no-such-group")).is_err());
    }
}
