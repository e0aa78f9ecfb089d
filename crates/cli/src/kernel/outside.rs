//! Memory of a run's processes that its control group does not count, or not within the budget.
//!
//! A process may leave the group: by writing to another one's `cgroup.procs`, in a scope of `systemd-run`, in a
//! container. No budget bounds the memory that it takes there. Memory that it had before stays charged to the group,
//! also if it comes back from swap. So the charge beyond what the group's own processes have is subtracted from
//! what those have that left. The rest lies outside. Memory that a process took elsewhere stays charged there when it
//! comes back, so what it had there is looked at in the same way until it has ended.
//! Secret memory (`memfd_secret`) is charged to the group as pages of files are, which are beside the budget.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use terrace_core::{Bytes, Nanos};
use terrace_kernel::setup::group::Group;
use terrace_live::attach::targets;
use terrace_live::sys::thread_cpu;
use terrace_report::outside::{Cause, OutsideCause, OutsideReport};
use terrace_sampler::{ProcStat, proc_text};

use crate::run::memory::Memory;
use crate::run::secret::Secrets;

/// How often processes are compared with the group's: less often where that takes long, so that it takes a
/// fiftieth of a processor at most.
const EVERY: Duration = Duration::from_millis(100);
const COST: u64 = 50;
/// Less is not looked for.
const LITTLE: Bytes = Bytes::mib(1);

/// Looks at the processes of a run that has a control group of its own.
#[derive(Debug)]
pub(super) struct OutsideWatch {
    group: Group,
    /// Whether files' pages are in the budget, and secret memory with them.
    files_count: bool,
    due: Instant,
    /// Processes that were in the group, and those that they have started.
    known: BTreeMap<u32, Known>,
    secrets: Secrets,
    /// How many have left in all.
    left: u64,
    /// Memory of processes that have left, and secret memory: now, and at most.
    now: [Bytes; 2],
    most: [Bytes; 2],
    /// The most of both, and with what the budget covers.
    peak: Bytes,
    with_budget: Bytes,
}

/// A process that belongs to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// When it started: another one may have its number later.
    started: u64,
    /// Whether it was seen outside of the group.
    has_left: bool,
    /// The most that it had there: no more can lie outside once it is back.
    outside: Bytes,
}

impl Known {
    fn new(started: u64) -> Self {
        Self { started, has_left: false, outside: Bytes::ZERO }
    }
}

/// What is asked of the system.
trait Processes {
    /// When a process started; `None` if it has ended.
    fn started(&self, process: u32) -> Option<u64>;
    /// Memory of a process; `None` if it has ended.
    fn memory(&self, process: u32) -> Option<Memory>;
    /// The descendants of a process.
    fn below(&self, process: u32) -> Vec<u32>;
    /// Those in the group.
    fn members(&self) -> BTreeSet<u32>;
    /// Those in any group of the run's, whichever controller it is of.
    fn placed(&self) -> BTreeSet<u32>;
}

/// This machine, with the group.
struct Machine<'a>(&'a Group);

impl Processes for Machine<'_> {
    fn started(&self, process: u32) -> Option<u64> {
        let stat = proc_text(format!("/proc/{process}/stat")).ok()?;
        ProcStat::parse(&stat)?.started()
    }

    fn memory(&self, process: u32) -> Option<Memory> {
        Memory::of(process)
    }

    fn below(&self, process: u32) -> Vec<u32> {
        targets::started(process)
    }

    fn members(&self) -> BTreeSet<u32> {
        self.0.members_below().into_iter().collect()
    }

    fn placed(&self) -> BTreeSet<u32> {
        self.0.placed_below().into_iter().collect()
    }
}

/// Memory of a process in RAM that is no file's.
fn swappable(memory: &Memory) -> Bytes {
    Bytes(memory.private + memory.shared)
}

/// What may lie outside, beyond what the group is still charged for; `inside` is what the group's own have beside
/// that. Memory that several of those share counts for each.
fn beyond(may_be: Bytes, inside: Bytes, charged: Bytes) -> Bytes {
    may_be - (charged - inside)
}

impl OutsideWatch {
    pub(super) fn new(group: Group, files_count: bool) -> Self {
        Self {
            group,
            files_count,
            due: Instant::now(),
            known: BTreeMap::new(),
            secrets: Secrets::default(),
            left: 0,
            now: [Bytes::ZERO; 2],
            most: [Bytes::ZERO; 2],
            peak: Bytes::ZERO,
            with_budget: Bytes::ZERO,
        }
    }

    /// Whether it is time to look.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Looks; `covered` is what there is of what the budget covers. The processor time that took.
    pub(super) fn look(&mut self, covered: Bytes) -> Nanos {
        let cpu = thread_cpu();
        let group = self.group.clone();
        let machine = Machine(&group);
        let (left, members) = self.those_that_left(&machine, std::process::id());
        let left: Bytes = left.iter().map(swappable).sum();
        let left = self.beyond(&machine, left, &members, || group.anonymous());
        let secret = self.secret(&machine, &members);
        self.note(left, secret, covered);
        let took = thread_cpu().saturating_sub(cpu);
        self.due = Instant::now() + EVERY.max(Duration::from_nanos(took.get() * COST));
        took
    }

    /// Memory of the processes that have left, and the numbers of those in the group. `own` is the process that
    /// has started the program.
    fn those_that_left(
        &mut self,
        system: &impl Processes,
        own: u32,
    ) -> (Vec<Memory>, BTreeSet<u32>) {
        // Before the group's: who is started in between is in the group.
        let mut tree: BTreeSet<u32> = system.below(own).into_iter().collect();
        for (&process, _) in self.known.iter().filter(|(_, known)| known.has_left) {
            // Of what is there already all below was looked at. Each of these may take a look at every process
            // of the machine.
            if !tree.contains(&process) {
                tree.extend(system.below(process));
            }
        }
        // Whose parent has left and has ended is nobody's child any more.
        let placed = system.placed();
        let members = system.members();
        for &process in members.union(&placed) {
            if !self.known.contains_key(&process)
                && let Some(started) = system.started(process)
            {
                self.known.insert(process, Known::new(started));
            }
        }
        let mut strangers: BTreeMap<u32, Memory> = tree
            .into_iter()
            .filter(|process| !members.contains(process) && !self.known.contains_key(process))
            .filter_map(|process| Some((process, system.memory(process)?)))
            .collect();
        // Of what the command has started itself only the program was in the group.
        loop {
            let is_ours = |(_, memory): &(&u32, &Memory)| self.known.contains_key(&memory.parent);
            let Some(process) = strangers.iter().find(is_ours).map(|(&process, _)| process) else {
                break;
            };
            strangers.remove(&process);
            if let Some(started) = system.started(process) {
                self.known.insert(process, Known::new(started));
            }
        }
        self.known.retain(|process, known| {
            // Of a member that never left its number says enough: nothing else is known of it.
            (members.contains(process) && !known.has_left)
                || system.started(*process) == Some(known.started)
        });
        let outside = self.known.keys().filter(|process| !members.contains(process));
        let outside: Vec<u32> = outside.copied().collect();
        if outside.is_empty() {
            return (Vec::new(), members);
        }
        // A child is among its parent's for a moment before it is among the group's.
        let again = system.members();
        let mut left = Vec::new();
        for process in outside.into_iter().filter(|process| !again.contains(process)) {
            let (Some(known), Some(memory)) =
                (self.known.get_mut(&process), system.memory(process))
            else {
                continue;
            };
            self.left += u64::from(!std::mem::replace(&mut known.has_left, true));
            known.outside = known.outside.max(swappable(&memory));
            left.push(memory);
        }
        (left, members)
    }

    /// What lies outside of what those have that left, and of what those took elsewhere that are back.
    fn beyond(
        &self,
        system: &impl Processes,
        left: Bytes,
        members: &BTreeSet<u32>,
        charged: impl FnOnce() -> Option<Bytes>,
    ) -> Bytes {
        let took = |process: &u32| self.known.get(process).map_or(Bytes::ZERO, |it| it.outside);
        if left.is_zero() && members.iter().all(|process| took(process) < LITTLE) {
            return Bytes::ZERO;
        }
        let (mut may_be, mut inside) = (left, Bytes::ZERO);
        for process in members {
            let Some(memory) = system.memory(*process) else { continue };
            let has = swappable(&memory);
            let part = has.min(took(process));
            (may_be, inside) = (may_be + part, inside + (has - part));
        }
        beyond(may_be, inside, charged().unwrap_or_default())
    }

    /// Secret memory of those in the group. It cannot leave, so the kernel counts it among what is locked.
    fn secret(&mut self, system: &impl Processes, members: &BTreeSet<u32>) -> Bytes {
        if self.files_count || self.group.locked().is_none_or(|locked| locked < LITTLE) {
            return Bytes::ZERO;
        }
        self.secrets.keep(|process| members.contains(&process));
        let of = |&process: &u32| Some(self.secrets.of(process, &system.memory(process)?, true));
        Bytes(members.iter().filter_map(of).sum())
    }

    fn note(&mut self, left: Bytes, secret: Bytes, covered: Bytes) {
        self.now = [left, secret];
        for (most, now) in self.most.iter_mut().zip(self.now) {
            *most = now.max(*most);
        }
        let both = left + secret;
        if !both.is_zero() {
            self.peak = self.peak.max(both);
            self.with_budget = self.with_budget.max(both + covered);
        }
    }

    /// How many processes have left the group in all.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Memory outside of the budget now.
    pub(super) fn now(&self) -> Bytes {
        self.now.into_iter().sum()
    }

    /// What was found; `None` if there was nothing.
    pub(super) fn report(&self) -> Option<Box<OutsideReport>> {
        if self.left == 0 && self.peak.is_zero() {
            return None;
        }
        let causes = [Cause::LeftGroup, Cause::Secret].into_iter().zip(self.now).zip(self.most);
        let mut causes: Vec<_> = causes
            .map(|((cause, now), peak)| OutsideCause { cause, now, peak })
            .filter(|part| !part.peak.is_zero())
            .collect();
        causes.sort_by_key(|part| std::cmp::Reverse(part.peak));
        Some(Box::new(OutsideReport {
            now: self.now(),
            peak: self.peak,
            with_managed_peak: self.with_budget,
            causes,
            own_peak: Bytes::ZERO,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MIB: u64 = 1 << 20;
    /// The process of the command.
    const OWN: u32 = 10;

    /// Processes with their parents and when they have started, and those in the group.
    #[derive(Default)]
    struct Stand {
        all: BTreeMap<u32, (u32, u64)>,
        group: BTreeSet<u32>,
        /// Those in the run's group of another controller.
        placed: BTreeSet<u32>,
    }

    impl Processes for Stand {
        fn started(&self, process: u32) -> Option<u64> {
            self.all.get(&process).map(|(_, started)| *started)
        }

        fn memory(&self, process: u32) -> Option<Memory> {
            let (parent, _) = self.all.get(&process)?;
            Some(Memory { parent: *parent, private: MIB, shared: MIB, ..Memory::default() })
        }

        fn below(&self, process: u32) -> Vec<u32> {
            let children = self.all.iter().filter(|(_, (parent, _))| *parent == process);
            children.flat_map(|(&child, _)| [vec![child], self.below(child)].concat()).collect()
        }

        fn members(&self) -> BTreeSet<u32> {
            self.group.clone()
        }

        fn placed(&self) -> BTreeSet<u32> {
            self.placed.union(&self.group).copied().collect()
        }
    }

    fn watch() -> (tempfile::TempDir, OutsideWatch) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("memory.current"), "1\n").unwrap();
        let group = Group::at(directory.path()).unwrap();
        (directory, OutsideWatch::new(group, false))
    }

    fn left(watch: &mut OutsideWatch, system: &Stand) -> usize {
        watch.those_that_left(system, OWN).0.len()
    }

    #[test]
    fn who_leaves_the_group_is_told_until_it_ends_and_so_are_its_children() {
        let (_directory, mut watch) = watch();
        let mut system = Stand::default();
        // The program, a child of it, and somebody of the command's own who never was in the group.
        system.all.extend([(11, (OWN, 1)), (12, (11, 2)), (13, (OWN, 3)), (14, (13, 3))]);
        system.group.extend([11, 12]);
        assert_eq!((left(&mut watch, &system), watch.left()), (0, 0));
        // The child moves itself, and has a child there, which nobody has seen in the group.
        system.group.remove(&12);
        system.all.insert(20, (12, 4));
        assert_eq!((left(&mut watch, &system), watch.left()), (2, 2));
        assert_eq!((left(&mut watch, &system), watch.left()), (2, 2), "no more have left");
        // Their parent ends. Others look after the child, which has one of its own.
        system.all.remove(&12);
        system.all.insert(20, (1, 4));
        system.all.insert(21, (20, 5));
        assert_eq!((left(&mut watch, &system), watch.left()), (2, 3));
        // It comes back.
        system.group.insert(20);
        assert_eq!(left(&mut watch, &system), 1);
        // Somebody else has its number by now.
        system.all.insert(21, (1, 99));
        assert_eq!((left(&mut watch, &system), watch.left()), (0, 3));
    }

    /// A child moves its memory to another group, has a child there, and ends before anybody has looked.
    #[test]
    fn who_was_never_seen_in_the_group_is_found_in_the_other_one_of_the_run() {
        let (_directory, mut watch) = watch();
        let mut system = Stand::default();
        system.all.extend([(11, (OWN, 1)), (20, (1, 4))]);
        system.group.insert(11);
        system.placed.insert(20);
        assert_eq!((left(&mut watch, &system), watch.left()), (1, 1));
        // It moves the rest, too.
        system.placed.clear();
        assert_eq!((left(&mut watch, &system), watch.left()), (1, 1));
        system.all.remove(&20);
        assert_eq!((left(&mut watch, &system), watch.left()), (0, 1));
    }

    /// It was charged for 40 MiB before it left, of which most came back from swap since.
    #[test]
    fn what_the_group_is_still_charged_for_does_not_lie_outside() {
        let outside = |left: u64, inside: u64, charged: u64| {
            beyond(Bytes::mib(left), Bytes::mib(inside), Bytes::mib(charged)).get() / MIB
        };
        assert_eq!(outside(38, 0, 40), 0);
        assert_eq!(outside(104, 0, 40), 64);
        assert_eq!(outside(30, 35, 40), 25);
        assert_eq!(outside(30, 50, 40), 30, "what is shared counts for each");
    }

    /// Each process has 2 MiB. One takes them elsewhere, and comes back.
    #[test]
    fn what_was_taken_elsewhere_lies_outside_though_its_process_is_back() {
        let (_directory, mut watch) = watch();
        let mut system = Stand::default();
        system.all.extend([(11, (OWN, 1)), (12, (OWN, 2))]);
        system.group.extend([11, 12]);
        let mut outside = |system: &Stand, charged: u64| {
            let (left, members) = watch.those_that_left(system, OWN);
            let left = left.iter().map(swappable).sum();
            watch.beyond(system, left, &members, || Some(Bytes::mib(charged))).get() / MIB
        };
        assert_eq!(outside(&system, 1), 0, "none was outside");
        system.group.remove(&12);
        assert_eq!(outside(&system, 2), 2);
        system.group.insert(12);
        assert_eq!(outside(&system, 2), 2);
        assert_eq!(outside(&system, 3), 1, "the rest is the group's");
        assert_eq!(outside(&system, 0), 2, "no more than it had there");
        system.all.remove(&12);
        system.group.remove(&12);
        assert_eq!(outside(&system, 2), 0);
    }

    #[test]
    fn a_member_with_the_number_of_one_that_had_left_took_nothing_elsewhere() {
        let (_directory, mut watch) = watch();
        let mut system = Stand::default();
        system.all.extend([(11, (OWN, 1)), (12, (OWN, 2))]);
        system.group.extend([11, 12]);
        left(&mut watch, &system);
        system.group.remove(&12);
        assert_eq!((left(&mut watch, &system), watch.left()), (1, 1));
        // It ends, and the program starts another one, which leaves as well.
        system.all.insert(12, (11, 9));
        system.group.insert(12);
        let (_, members) = watch.those_that_left(&system, OWN);
        assert_eq!(watch.beyond(&system, Bytes::ZERO, &members, || None), Bytes::ZERO);
        assert_eq!((left(&mut watch, &system), watch.left()), (0, 1));
        system.group.remove(&12);
        assert_eq!((left(&mut watch, &system), watch.left()), (1, 2));
    }

    #[test]
    fn what_lies_outside_is_told_by_cause_with_what_the_budget_covers() {
        let (_directory, mut watch) = watch();
        watch.note(Bytes::ZERO, Bytes::ZERO, Bytes::mib(60));
        assert_eq!(watch.report(), None);
        watch.note(Bytes::mib(30), Bytes::mib(2), Bytes::mib(40));
        watch.note(Bytes::mib(5), Bytes::mib(2), Bytes::mib(60));
        let report = watch.report().unwrap();
        assert_eq!((report.now, report.peak), (Bytes::mib(7), Bytes::mib(32)));
        assert_eq!(report.with_managed_peak, Bytes::mib(72));
        let causes: Vec<_> = report.causes.iter().map(|part| (part.cause, part.peak)).collect();
        assert_eq!(causes, [(Cause::LeftGroup, Bytes::mib(30)), (Cause::Secret, Bytes::mib(2))]);
    }
}
