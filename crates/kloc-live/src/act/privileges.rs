//! The rights that the daemon needs, by name; it drops all others.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// What a right is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its name, as capabilities(7) has it.
    pub name: &'static str,
    /// The right.
    pub right: CapabilitySet,
    /// What for.
    pub reason: &'static str,
    /// Whether it is needed after the beginning.
    pub keeps: bool,
}

/// All rights that are needed.
pub const NEEDS: [Need; 7] = [
    Need { name: "CAP_BPF", right: CapabilitySet::BPF, reason: "load eBPF programs", keeps: false },
    Need {
        name: "CAP_PERFMON",
        right: CapabilitySet::PERFMON,
        reason: "attach them to the kernel",
        keeps: false,
    },
    Need {
        name: "CAP_SYS_ADMIN",
        right: CapabilitySet::SYS_ADMIN,
        reason: "watch file systems by fanotify, where there is no eBPF",
        keeps: false,
    },
    Need {
        name: "CAP_DAC_READ_SEARCH",
        right: CapabilitySet::DAC_READ_SEARCH,
        reason: "open files by their handles",
        keeps: true,
    },
    Need {
        name: "CAP_LEASE",
        right: CapabilitySet::LEASE,
        reason: "prove that nobody else has a file open",
        keeps: true,
    },
    Need {
        name: "CAP_FOWNER",
        right: CapabilitySet::FOWNER,
        reason: "see what of a file is cached, and leave its times alone",
        keeps: true,
    },
    Need {
        name: "CAP_SYS_NICE",
        right: CapabilitySet::SYS_NICE,
        reason: "move pages that others map to a slow node",
        keeps: true,
    },
];

/// Rights that are missing, of those that are needed to look and, if it is asked for, to act.
pub fn missing(acts: bool) -> Vec<Need> {
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    // The older, larger right includes the two that eBPF needs.
    let all = has.contains(CapabilitySet::SYS_ADMIN);
    let is_missing = |need: &&Need| {
        let is_there = has.contains(need.right) || (!need.keeps && all);
        let is_needed = acts || !need.keeps;
        // Without a second node nothing is moved, and with eBPF nothing is watched by fanotify.
        let can_do_without = CapabilitySet::SYS_NICE | CapabilitySet::SYS_ADMIN;
        is_needed && !is_there && !can_do_without.contains(need.right)
    };
    NEEDS.iter().filter(is_missing).copied().collect()
}

/// Drops all rights but those that are needed from now on; their names. Of this thread, and of
/// those that it makes later.
///
/// # Errors
/// If the kernel refuses.
pub fn drop_others() -> std::io::Result<Vec<&'static str>> {
    let has = capabilities(None)?.permitted;
    let keep: Vec<_> = NEEDS.iter().filter(|need| need.keeps && has.contains(need.right)).collect();
    let set = keep.iter().fold(CapabilitySet::empty(), |set, need| set | need.right);
    let sets =
        CapabilitySets { effective: set, permitted: set, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    Ok(keep.iter().map(|need| need.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own: a right that was dropped does not come back.
    #[test]
    fn what_is_dropped_is_gone_and_what_is_needed_stays() {
        let before = capabilities(None).expect("readable").permitted;
        let after = std::thread::spawn(|| {
            let kept = drop_others().expect("one may always have less");
            (kept, capabilities(None).expect("readable").permitted)
        });
        let (kept, after) = after.join().expect("no panic");
        assert!(before.contains(after));
        assert!(!after.intersects(CapabilitySet::SYS_ADMIN | CapabilitySet::BPF));
        assert_eq!(kept.contains(&"CAP_LEASE"), before.contains(CapabilitySet::LEASE));
    }
}
