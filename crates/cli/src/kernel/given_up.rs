//! A budget that was given up since nothing left: why, with the figures of the moment at which it is told.

use terrace_core::Bytes;
use terrace_kernel::files::Root;
use terrace_kernel::setup::{SwapUse, zram};

/// The figures of now.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivenUp {
    /// Whether it still is given up.
    pub(super) is_now: bool,
    /// What is resident, and was at most.
    pub(super) resident: (Bytes, Bytes),
    /// What of the machine's swap is free.
    pub(super) free: Bytes,
}

impl GivenUp {
    /// What is to be said of it. A device may have free swap and take no page more.
    pub(super) fn told(self, root: &Root, swap: &SwapUse) -> String {
        let Self { is_now, resident: (now, peak), free } = self;
        let why = match zram::at_limit(root, &swap.devices) {
            Some((memory, limit)) => format!(
                "the device, {}, takes {memory} of memory and may take {limit}: no more fits, \
                 whatever of swap is free",
                swap.what
            ),
            None => format!("full swap, or locked memory; {free} of swap are free"),
        };
        if is_now {
            format!(
                "the budget cannot be kept: {now} are resident, of which the kernel puts nothing out \
                 ({why}); the program is not slowed down for it"
            )
        } else {
            format!(
                "the budget was not kept for a time in which the kernel put nothing out: {now} are \
                 resident, {peak} were at most ({why})"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use terrace_kernel::setup::SwapKind;

    use super::*;

    #[test]
    fn a_device_at_its_limit_is_named_and_not_free_swap() {
        let directory = tempfile::tempdir().unwrap();
        let (root, mib) = (Root::at(directory.path()), Bytes::mib);
        let device = directory.path().join("sys/block/zram3");
        fs::create_dir_all(&device).unwrap();
        let stat = |memory: u64| {
            let text = format!("545000000 540000000 {memory} {} {memory} 0 0 0 0\n", 512 << 20);
            fs::write(device.join("mm_stat"), text).unwrap();
        };
        let swap = SwapUse {
            kind: SwapKind::Zram,
            what: "zram3".into(),
            devices: vec![3],
            own: true,
            recompresses: false,
            writes_back: false,
            scarce: None,
        };
        let given_up = |is_now| GivenUp { is_now, resident: (mib(189), mib(190)), free: mib(510) };
        stat(512 << 20);
        assert_eq!(
            given_up(true).told(&root, &swap),
            "the budget cannot be kept: 189 MiB are resident, of which the kernel puts nothing out \
             (the device, zram3, takes 512 MiB of memory and may take 512 MiB: no more fits, whatever \
             of swap is free); the program is not slowed down for it"
        );
        stat(100 << 20);
        let told = given_up(true).told(&root, &swap);
        assert!(told.contains("(full swap, or locked memory; 510 MiB of swap are free)"), "{told}");
        let told = given_up(false).told(&root, &swap);
        assert!(told.starts_with("the budget was not kept for a time"), "{told}");
        assert!(told.contains("189 MiB are resident, 190 MiB were at most"), "{told}");
    }
}
