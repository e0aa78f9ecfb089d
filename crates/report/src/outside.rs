//! Memory of a run's processes that no budget bounds: what the kernel counts of them beyond what
//! is managed.

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;
use terrace_live::space::unmanaged::Unmanaged;

/// Why memory is not managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// It is shared: anonymous, a memfd, System V's, a file of a tmpfs.
    Shared,
    /// It is private, and nobody asked Terrace for it: mapped by system calls past the C library
    /// (Go, sanitizers, programs with their own), or by the C library itself (threads' stacks).
    NotAsked,
    /// Private copies of pages of a mapped file, whichever: only memory that is no file's is
    /// managed. `/dev/zero` is a file, too.
    FileCopies,
    /// Huge pages of the kernel's pool (hugetlbfs).
    HugePool,
    /// A single mapping is larger than can be managed.
    TooLarge,
    /// As many parts of memory are managed as can be.
    TableFull,
    /// The kernel gives no memory for what is kept of each page, or the address space that is left
    /// is too little.
    NoMemory,
    /// The kernel does not let it be managed: the program has it registered with a userfaultfd of
    /// its own, say.
    Refused,
    /// There were more parts of it than can be noted before anything is managed, or the kernel did
    /// not tell what was mapped by then.
    NotNoted,
    /// Its process was managed, and was given up.
    GivenUp,
    /// Its process runs without Terrace.
    OtherProcesses,
    /// Small mappings, code that was changed, libraries' data, the first thread's stack.
    Small,
    /// It is secret (`memfd_secret`): the kernel counts it among files' pages, and it cannot leave.
    Secret,
    /// Its process has left the control group of a run with the kernel's engine.
    LeftGroup,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Shared,
        Self::NotAsked,
        Self::FileCopies,
        Self::HugePool,
        Self::TooLarge,
        Self::TableFull,
        Self::NoMemory,
        Self::Refused,
        Self::NotNoted,
        Self::GivenUp,
        Self::OtherProcesses,
        Self::Small,
        Self::Secret,
        Self::LeftGroup,
    ];

    /// As metrics and JSON name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::NotAsked => "not-asked",
            Self::FileCopies => "file-copies",
            Self::HugePool => "huge-pool",
            Self::TooLarge => "too-large",
            Self::TableFull => "table-full",
            Self::NoMemory => "no-memory",
            Self::Refused => "refused",
            Self::NotNoted => "not-noted",
            Self::GivenUp => "given-up",
            Self::OtherProcesses => "other-processes",
            Self::Small => "small",
            Self::Secret => "secret",
            Self::LeftGroup => "left-group",
        }
    }

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Shared => "shared memory",
            Self::NotAsked => "private memory that Terrace was not asked for",
            Self::FileCopies => "private copies of files' pages",
            Self::HugePool => "huge pages of the kernel's pool",
            Self::TooLarge => "mappings that are too large to be managed",
            Self::TableFull => "more parts than can be managed",
            Self::NoMemory => "no memory for what is kept of each page",
            Self::Refused => "memory that the kernel does not let be managed",
            Self::NotNoted => "more parts than can be noted before anything is managed",
            Self::GivenUp => "processes that were given up",
            Self::OtherProcesses => "processes without Terrace",
            Self::Small => "stacks, libraries' data and small mappings",
            Self::Secret => "secret memory (memfd_secret)",
            Self::LeftGroup => "processes that have left the control group",
        }
    }
}

impl From<Unmanaged> for Cause {
    fn from(why: Unmanaged) -> Self {
        match why {
            Unmanaged::TableFull => Self::TableFull,
            Unmanaged::NoMemory => Self::NoMemory,
            Unmanaged::Refused => Self::Refused,
            Unmanaged::GivenUp => Self::GivenUp,
            Unmanaged::NotNoted => Self::NotNoted,
        }
    }
}

/// Memory that lies outside of a budget: what is in RAM, is no file's, and is neither managed
/// nor Terrace's own. What several processes share counts once. With the kernel's engine it is what the
/// run's control group does not count, or not within the budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideReport {
    /// All of it, at the last look.
    pub now: Bytes,
    /// The most of it that was seen at once.
    pub peak: Bytes,
    /// The most that was seen at once of it and of what is managed and resident; of what the budget covers
    /// with the kernel's engine.
    pub with_managed_peak: Bytes,
    /// By cause, the largest first.
    pub causes: Vec<OutsideCause>,
    /// What was seen, at the most, of Terrace's own memory in these processes: compressed pages
    /// and its books. It is no part of the above.
    pub own_peak: Bytes,
}

/// What there is for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideCause {
    /// The cause.
    pub cause: Cause,
    /// At the last look.
    pub now: Bytes,
    /// The most that was seen.
    pub peak: Bytes,
}

/// What is told of a run with this budget: so much, or a 64th of it if that is more. Every process
/// has a few MiB that are not managed.
pub fn least(budget: Bytes) -> Bytes {
    Bytes::mib(8).max(budget / 64)
}

/// What was seen, with what a process is known to have had when it was put on plain memory: that
/// was not necessarily seen, for it may have ended soon.
pub(crate) fn given_up_beside(
    outside: Option<Box<OutsideReport>>,
    given_up: Bytes,
    budget: Bytes,
) -> Option<Box<OutsideReport>> {
    if given_up < least(budget) {
        return outside;
    }
    let mut outside = outside.unwrap_or_default();
    outside.peak = outside.peak.max(given_up);
    outside.with_managed_peak = outside.with_managed_peak.max(given_up);
    match outside.causes.iter_mut().find(|part| part.cause == Cause::GivenUp) {
        Some(part) => part.peak = part.peak.max(given_up),
        None => outside.causes.push(OutsideCause {
            cause: Cause::GivenUp,
            now: Bytes::ZERO,
            peak: given_up,
        }),
    }
    outside.causes.sort_by_key(|part| std::cmp::Reverse(part.peak));
    Some(outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_not_to_manage_memory_is_a_cause_with_a_name_of_its_own() {
        let mut names: Vec<_> = Cause::ALL.iter().map(|cause| cause.name()).collect();
        let causes: Vec<_> = Unmanaged::ALL.map(Cause::from).iter().map(|c| c.name()).collect();
        assert_eq!(causes, ["table-full", "no-memory", "refused", "given-up", "not-noted"]);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
        assert!(Cause::ALL.iter().enumerate().all(|(i, &cause)| cause as usize == i));
    }

    #[test]
    fn what_was_given_up_is_told_though_nobody_has_seen_it() {
        let budget = Bytes::mib(16);
        let all = |outside, mib| given_up_beside(outside, Bytes::mib(mib), budget);
        assert_eq!(all(None, 7), None, "too little to be told");
        let alone = all(None, 96).expect("told");
        assert_eq!((alone.peak, alone.with_managed_peak), (Bytes::mib(96), Bytes::mib(96)));
        let part = |cause, mib| OutsideCause { cause, now: Bytes::mib(1), peak: Bytes::mib(mib) };
        let seen = Box::new(OutsideReport {
            peak: Bytes::mib(120),
            with_managed_peak: Bytes::mib(130),
            causes: vec![part(Cause::Shared, 80), part(Cause::GivenUp, 40)],
            ..OutsideReport::default()
        });
        let both = all(Some(seen), 96).expect("told");
        assert_eq!((both.peak, both.with_managed_peak), (Bytes::mib(120), Bytes::mib(130)));
        assert_eq!(both.causes, [part(Cause::GivenUp, 96), part(Cause::Shared, 80)]);
    }
}
