//! What this kernel allows: asked by trying, not by version numbers.

use crate::sys::uffd::{OpenedBy, Uffd, feature};

/// What userfaultfd can do here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UffdProbe {
    /// How a handle that serves system calls' faults, too, was opened; or the
    /// error number that refused it.
    pub opened: Result<OpenedBy, i32>,
    /// All features that the kernel has (0 if the handle was refused).
    pub features: u64,
    /// Whether a fork may be told to us (needs `CAP_SYS_PTRACE`).
    pub fork_events: bool,
}

/// What a user needs for all of it. Access to `/dev/userfaultfd` or `vm.unprivileged_userfaultfd`
/// would be a part of it only.
pub const RIGHT: &str = "CAP_SYS_PTRACE is needed, and suffices for everything (root has it, and hands it on by \
     `setpriv --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace`)";

impl UffdProbe {
    /// Tries.
    pub fn run() -> Self {
        let (handle, by) = match Uffd::open() {
            Ok(opened) => opened,
            Err(e) => return Self { opened: Err(e), features: 0, fork_events: false },
        };
        let features = handle.handshake(0).unwrap_or(0);
        handle.close();
        let fork_events = Uffd::open().is_ok_and(|(handle, _)| {
            let ok = handle.handshake(feature::EVENT_FORK).is_ok();
            handle.close();
            ok
        });
        Self { opened: Ok(by), features, fork_events }
    }

    /// What the pager cannot do without.
    pub const REQUIRED: u64 =
        feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP | feature::MOVE;

    /// Why programs cannot be managed here, or `Ok`.
    pub fn usable(&self) -> Result<(), String> {
        match self.opened {
            Err(libc::ENOSYS) => Err("this kernel has no userfaultfd (CONFIG_USERFAULTFD)".into()),
            Err(libc::EPERM | libc::EACCES) => {
                Err(format!("userfaultfd is refused to this user: {RIGHT}"))
            }
            Err(e) => {
                Err(format!("userfaultfd is refused: {}", std::io::Error::from_raw_os_error(e)))
            }
            Ok(_) if self.features & Self::REQUIRED != Self::REQUIRED => {
                Err("userfaultfd lacks UFFDIO_MOVE or its events (Linux 6.8 or newer is needed)"
                    .into())
            }
            Ok(_) if !self.fork_events => Err(format!(
                "userfaultfd may not report forks here, and a child of the program would read \
                 zeros: {RIGHT}"
            )),
            Ok(_) => Ok(()),
        }
    }
}

/// How a spill file would be written here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillProbe {
    /// Why not by `io_uring`, but by `pwrite`; `None` if by `io_uring`.
    pub io_uring: Option<String>,
    /// Why not past the page cache (`O_DIRECT`) in the directory asked about.
    pub direct: Option<String>,
    /// Why a mapped file (`dax:`) in that directory goes through the page cache.
    pub dax: Option<String>,
    /// File systems that are mounted with DAX.
    pub dax_mounts: Vec<String>,
}

impl SpillProbe {
    /// Tries, for files in this directory.
    pub fn run(directory: &std::path::Path) -> Self {
        let text = |error| std::io::Error::from_raw_os_error(error).to_string();
        let ring = crate::spill::device::probe().err().map(|error| match error {
            libc::ENOSYS => "this kernel has no io_uring (CONFIG_IO_URING)".to_owned(),
            libc::EPERM => {
                "refused: kernel.io_uring_disabled, or a filter of system calls".to_owned()
            }
            error => format!("refused: {}", text(error)),
        });
        let direct = crate::spill::device::probe_direct(directory).err().map(|error| match error {
            libc::EOPNOTSUPP => "not known before a file is made".to_owned(),
            libc::EINVAL => "this file system has no O_DIRECT".to_owned(),
            error => text(error),
        });
        let dax = match crate::spill::mapped::probe(directory) {
            Ok(true) => None,
            Ok(false) => Some("this file system is not mounted with DAX".to_owned()),
            Err(libc::EOPNOTSUPP) => Some("not known before a file is made".to_owned()),
            Err(error) => Some(text(error)),
        };
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Self { io_uring: ring, direct, dax, dax_mounts: dax_mounts(&mounts) }
    }
}

/// Where file systems are mounted with DAX, by `/proc/self/mounts`.
fn dax_mounts(mounts: &str) -> Vec<String> {
    let dax = |options: &str| options.split(',').any(|o| o == "dax" || o == "dax=always");
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let place = fields.next()?;
            fields.nth(1).filter(|options| dax(options)).map(|_| place.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options as ext4, xfs and virtiofs show them.
    #[test]
    fn mounts_with_dax_are_found_by_their_options() {
        let mounts = "/dev/pmem0 /mnt/pmem ext4 rw,relatime,dax=always 0 0\n\
            /dev/pmem1 /old xfs rw,dax,attr2 0 0\n\
            /dev/sda1 / ext4 rw,relatime,dax=never 0 0\n\
            tmpfs /dax tmpfs rw 0 0\n\nshort\n";
        assert_eq!(dax_mounts(mounts), ["/mnt/pmem", "/old"]);
    }
}
