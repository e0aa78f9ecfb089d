//! The first stage of an access: first levels of TLB and cache, and page walks.
//!
//! Most accesses go to a page and a line that were among the two used last in
//! their sets. A `Filter` of such pages and lines finds that out in a few
//! instructions, and what such an access changes is little: nothing, or which
//! of two came last, or a dirty bit. Other hits of both first levels are over
//! here, too. Everything else becomes an entry of a queue, for the second stage
//! ([`beyond_first`](super::beyond_first)).

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use super::access::Access;
use super::beyond_first::{AHEAD, Deferred, What};
use super::hierarchy::{Displaced, Request};
use super::host_arrays::for_this_processor;
use super::machine::{Core, ExactMachine};
use super::page_table::{Entry, Place};
use super::tlb::Translation;

/// Accesses that the look-ahead for page-table entries is ahead.
const FAR: usize = 24;
/// Looking ahead pays when one access in so many walks.
const WALKS: u64 = 32;

/// Instructions up to and with an access, since the one before it; of an entry that is none, too,
/// which is set right where it is found to be ([`ExactMachine::slow`]).
pub(super) fn instructions_of(access: Access) -> u64 {
    access.instructions_with()
}

/// How many accesses after the first two only repeat these two in turn. What
/// leaves two accesses that were known where they were changes nothing, so this
/// is an even number.
#[inline(always)]
fn repetitions(accesses: &[Access]) -> usize {
    let pairs = accesses.iter().zip(&accesses[2..]);
    pairs.take_while(|(before, access)| access.repeats(**before)).count() & !1
}

impl ExactMachine {
    for_this_processor! {
        /// Some accesses of a core, through both stages.
        pub(super) fn run_some | run_some_modern (&mut self, core: usize, accesses: &[Access])
            = run_some_here
    }

    #[inline(always)]
    fn run_some_here(&mut self, core: usize, accesses: &[Access]) {
        let filter = self.cores[core].filter.in_use();
        let (_, unknown) = self.first_stage::<false>(core, accesses, filter);
        self.catch_up(core);
        self.turn_over(core, accesses.len(), filter, unknown);
    }

    /// A turn of so many accesses has gone through both stages.
    pub(super) fn turn_over(&mut self, core: usize, accesses: usize, filter: bool, unknown: usize) {
        let me = &mut self.cores[core];
        if filter {
            me.filter.rate(accesses, unknown);
        }
        let walks = me.tlbs.counts.walks;
        me.look_ahead = (walks - me.walks_before) * WALKS > accesses as u64;
        me.walks_before = walks;
        me.accesses += accesses as u64 - std::mem::take(&mut me.no_accesses);
    }

    /// The first stage of some accesses: of all, or where there are several cores,
    /// up to one that has to wait for its time. Returns how many those are, and how
    /// many of them the filter did not know.
    #[inline(always)]
    pub(super) fn first_stage<const SEVERAL: bool>(
        &mut self,
        core: usize,
        accesses: &[Access],
        filter: bool,
    ) -> (usize, usize) {
        match (self.cores[core].look_ahead, filter) {
            (true, true) => self.run_turn::<true, true, SEVERAL>(core, accesses),
            (true, false) => self.run_turn::<true, false, SEVERAL>(core, accesses),
            (false, true) => self.run_turn::<false, true, SEVERAL>(core, accesses),
            (false, false) => self.run_turn::<false, false, SEVERAL>(core, accesses),
        }
    }

    #[inline(always)]
    fn run_turn<const LOOK_AHEAD: bool, const FILTER: bool, const SEVERAL: bool>(
        &mut self,
        core: usize,
        accesses: &[Access],
    ) -> (usize, usize) {
        let mut unknown = 0;
        let mut at = 0;
        while at < accesses.len() {
            if FILTER {
                at += self.skim(core, &accesses[at..]);
                if at == accesses.len() {
                    break;
                }
                unknown += 1;
            }
            if LOOK_AHEAD {
                // What lies between will be asked for from where it is unknown.
                for far in [at + FAR, at + FAR + 1] {
                    if let Some(access) = accesses.get(far)
                        && access.line() != accesses[far - 1].line()
                    {
                        self.memory.table.prefetch(access.address());
                    }
                }
            }
            let access = accesses[at];
            let first = if SEVERAL { self.queue.waiting.len() } else { 0 };
            self.cores[core].instructions += instructions_of(access);
            self.front::<FILTER>(core, access);
            if SEVERAL && self.blocked {
                // It is as if it had not begun.
                self.cores[core].instructions -= instructions_of(access);
                break;
            }
            at += 1;
            if SEVERAL && self.queue.waiting.len() > first + 1 {
                for rest in &mut self.queue.waiting[first + 1..] {
                    rest.what = rest.what.with(What::REST);
                }
            }
            if SEVERAL && self.queue.waiting.len() >= AHEAD {
                break;
            }
        }
        (at, unknown)
    }

    /// The fault of an access, if it has one: its time has come, and that of the access itself comes
    /// after it, when other cores may be due. Whether there was one.
    pub(super) fn fault_alone(&mut self, core: usize, access: Access) -> bool {
        if !access.is_data() {
            return false;
        }
        let address = access.address();
        let second = access.crosses().then_some((address | 63) + 1);
        let mut parts = core::iter::once(address).chain(second);
        let Some(absent) = parts.find(|&at| self.mapped(at).is_none()) else { return false };
        self.cores[core].instructions += instructions_of(access);
        let store = access.is_store();
        let done = self.fault_now(core, absent, store, access.is_dependent()).is_some();
        self.cores[core].instructions -= instructions_of(access);
        // Where no memory can be, there is no fault that would help.
        done || self.error.is_some()
    }

    /// A fault of a core's current instruction, once everything before it is as far as it has to be.
    fn fault_now(&mut self, core: usize, address: u64, store: bool, dependent: bool) -> Option<()> {
        self.catch_up(core);
        let me = &mut self.cores[core];
        me.clock.begin(me.instructions, dependent);
        self.fault(core, address, store)
    }

    /// Both stages of one access.
    pub(super) fn alone(&mut self, core: usize, access: Access) {
        self.cores[core].instructions += instructions_of(access);
        self.front::<true>(core, access);
        self.catch_up(core);
    }

    /// Accesses that the filter knows, up to one that it does not; returns how
    /// many.
    #[inline(always)]
    pub(super) fn skim(&mut self, core: usize, accesses: &[Access]) -> usize {
        let Core { filter, tlbs, instructions, .. } = &mut self.cores[core];
        let lines = self.caches.first_level(core);
        let mut issued = *instructions;
        let mut count = 0;
        while let Some(&access) = accesses.get(count)
            && let Some(known) = filter.find(access)
        {
            if known.line_second {
                lines.swap_recent(known.line_set);
            }
            if known.stored {
                lines.dirty_last(known.line_set);
            }
            if let Some((size, set)) = known.page_second {
                tlbs.swap_recent(size, set);
            }
            issued += instructions_of(access);
            count += 1;
            let repeated = if count > 1 { repetitions(&accesses[count - 2..]) } else { 0 };
            issued +=
                accesses[count..count + repeated].iter().copied().map(instructions_of).sum::<u64>();
            count += repeated;
        }
        *instructions = issued;
        count
    }

    /// An access that the filter does not know.
    #[inline(always)]
    fn front<const FILTER: bool>(&mut self, core: usize, access: Access) {
        let (address, store) = (access.address(), access.is_store());
        let me = &mut self.cores[core];
        if access.is_special() {
            return self.slow(core, access);
        }
        let Some(translation) = me.tlbs.first(address) else {
            return self.not_in_first_tlb(core, access, address);
        };
        let stores = translation.takes_stores();
        if store && !stores {
            return self.slow(core, access);
        }
        let line = translation.physical(address) >> 6;
        if self.queue.in_order && !self.caches.hits_l1(core, line, store) {
            return self.slow(core, access);
        }
        if FILTER {
            me.filter.remember(access.line(), translation.size, store, stores);
        }
        let request = if store { Request::Store } else { Request::Load };
        if let Some(displaced) = self.caches.first_or_fill(core, line, request, false) {
            let instruction = me.instructions;
            let what = What::access(address, store, false);
            self.defer(core, Deferred { line, instruction, what, displaced });
        }
    }

    #[inline(never)]
    fn slow(&mut self, core: usize, access: Access) {
        if !access.is_data() {
            // It was counted as an access of data on the way here.
            let me = &mut self.cores[core];
            me.instructions = me.instructions - instructions_of(access) + access.counted();
            me.no_accesses += 1;
            return;
        }
        let second = (access.address() | 63) + 1;
        if access.crosses() {
            for at in [access.address(), second] {
                if self.mapped(at).is_some() {
                    continue;
                }
                if self.ahead {
                    // Both lines have to wait for their time if one has to.
                    self.blocked = true;
                    return;
                }
                // Both pages are there before the access begins.
                if self.fault_now(core, at, access.is_store(), access.is_dependent()).is_none() {
                    return;
                }
            }
        }
        self.access(core, access, access.address());
        if access.crosses() {
            self.access(core, access, second);
        }
    }

    /// The entry that maps an address, if a walk would find one and not stop there.
    #[inline(always)]
    fn mapped(&self, address: u64) -> Option<Place> {
        self.memory.table.place(address).filter(|&place| {
            let entry = self.memory.table.entry(place);
            entry.is_present() && !entry.has(Entry::ARMED)
        })
    }

    fn access(&mut self, core: usize, access: Access, address: u64) {
        match self.cores[core].tlbs.first(address) {
            Some(translation) => {
                let what = What::access(address, access.is_store(), access.is_dependent());
                self.translated(core, address, translation, what);
            }
            None => self.not_in_first_tlb(core, access, address),
        }
    }

    for_this_processor! {
        /// An access whose page the first level of TLBs does not know.
        fn not_in_first_tlb | not_in_first_tlb_modern
            (&mut self, core: usize, access: Access, address: u64) = not_in_first_tlb_here
    }

    #[inline(always)]
    fn not_in_first_tlb_here(&mut self, core: usize, access: Access, address: u64) {
        let mut what = What::access(address, access.is_store(), access.is_dependent());
        let translation = if let Some(translation) = self.cores[core].tlbs.second(address) {
            what = what.with(What::SECOND_TLB);
            translation
        } else if let Some(translation) = self.walk(core, address, &mut what) {
            translation
        } else {
            return;
        };
        self.translated(core, address, translation, what);
    }

    /// An access whose page is known now.
    #[inline(always)]
    fn translated(&mut self, core: usize, address: u64, found: Translation, mut what: What) {
        let store = what.is(What::STORE);
        let translation = if store && !found.takes_stores() {
            self.first_store(core, address, found, &mut what)
        } else {
            found
        };
        let line = translation.physical(address) >> 6;
        let stores = translation.takes_stores();
        self.cores[core].filter.remember(address >> 6, translation.size, store, stores);
        let request = if store { Request::Store } else { Request::Load };
        self.cached(core, line, request, what);
    }

    /// Looks a line up in the first level, and leaves the rest to the second
    /// stage.
    #[inline(always)]
    fn cached(&mut self, core: usize, line: u64, request: Request, what: What) {
        let instruction = self.cores[core].instructions;
        let mut deferred = Deferred { line, instruction, what, displaced: Displaced::NOTHING };
        if self.queue.in_order {
            if self.caches.first(core, line, request) {
                deferred.what = what.with(What::HIT);
            }
            self.defer(core, deferred);
            self.catch_up(core);
            return;
        }
        match self.caches.first_or_fill(core, line, request, true) {
            Some(displaced) => deferred.displaced = displaced,
            None if what.is_plain() => return,
            None => deferred.what = what.with(What::HIT),
        }
        self.defer(core, deferred);
    }

    for_this_processor! {
        /// The page walker: reads what the walk caches do not know through the
        /// caches, and faults where nothing is mapped.
        fn walk | walk_modern
            (&mut self, core: usize, address: u64, what: &mut What) -> Option<Translation>
            = walk_here
    }

    #[inline(always)]
    fn walk_here(&mut self, core: usize, address: u64, what: &mut What) -> Option<Translation> {
        let place = self.mapped(address);
        let mut first = What::BEGINS;
        let place = if let Some(place) = place {
            place
        } else if self.ahead {
            // What other cores do before this fault comes first.
            self.blocked = true;
            self.cores[core].tlbs.counts.first_misses -= 1;
            return None;
        } else {
            self.fault_now(core, address, what.is(What::STORE), what.is(What::DEPENDENT))?;
            // The walk that finds the page begins after the fault.
            let me = &mut self.cores[core];
            let begin = me.clock.begin(me.instructions, what.is(What::DEPENDENT));
            self.queue.begin_walk(begin, 0.0);
            first = 0;
            self.memory.table.place(address)?
        };
        *what = what.with(What::WALKED);
        self.memory.table.set(place, Entry::ACCESSED);
        let path = self.memory.table.walk(address);
        let known = self.cores[core].tlbs.walk_begin(address, path.depth);
        let dependent = what.is(What::DEPENDENT);
        for &entry in &path.entries[known..path.depth] {
            let line = entry >> 6;
            // The entry's line is the one used last in its set now.
            self.cores[core].filter.forget_line(line);
            let read = What::walk(dependent).with(first);
            if self.queue.in_order {
                self.cached(core, line, Request::Walk, read);
                first = 0;
                continue;
            }
            let instruction = self.cores[core].instructions;
            let displaced = self.caches.first_or_fill(core, line, Request::Walk, true);
            let (what, displaced) = match displaced {
                Some(displaced) => (read, displaced),
                // Hits before the first miss need no place in the queue.
                None if first != 0 => {
                    first += What::ONE_HIT;
                    continue;
                }
                None => (read.with(What::HIT), Displaced::NOTHING),
            };
            self.defer(core, Deferred { line, instruction, what, displaced });
            first = 0;
        }
        // Where all of them hit, the access itself is the first.
        *what = what.with(first);
        let tlbs = &mut self.cores[core].tlbs;
        tlbs.counts.walks += 1;
        tlbs.counts.walk_reads += (path.depth - known) as u64;
        let translation = Translation { entry: self.memory.table.entry(place), size: place.size() };
        tlbs.fill(address, translation);
        let given_up = tlbs.given_up();
        if let (Some(counts), Some(page)) = (&mut self.runtime.tlb_counts, given_up) {
            counts.given_up(page);
        }
        Some(translation)
    }

    /// A store's page has to be marked as dirty, or is write-protected.
    #[cold]
    fn first_store(
        &mut self,
        core: usize,
        address: u64,
        found: Translation,
        what: &mut What,
    ) -> Translation {
        let mut found = found;
        if found.entry.has(Entry::PROTECTED) {
            self.catch_up(core);
            if what.is(What::BEGINS) {
                // Its walk began before it waits.
                let me = &mut self.cores[core];
                let begin = me.clock.begin(me.instructions, what.is(What::DEPENDENT));
                self.queue.begin_walk(begin, self.latencies.l1_hits[what.hits_before()]);
                *what = what.begun();
            }
            self.wait_for_move(core, address);
            // The page is elsewhere now, or at least no longer protected.
            if let Some(place) = self.memory.table.place(address) {
                found = Translation { entry: self.memory.table.entry(place), size: place.size() };
                self.cores[core].tlbs.forget(address, found.size);
                self.cores[core].tlbs.fill(address, found);
            }
        }
        if let Some(place) = self.memory.table.place(address) {
            self.memory.table.set(place, Entry::DIRTY);
        }
        self.cores[core].tlbs.set_bits(address, found.size, Entry::DIRTY);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::config::SimPolicy;
    use crate::exact::setup::{self, ExactConfig};
    use crate::exact::source::{Stream, StreamKind};
    use crate::machines;
    use proptest::prelude::*;
    use terrace_core::{Bytes, Inclusion, PageSize, Replacement};

    fn config(page_size: PageSize) -> ExactConfig {
        let mut config = ExactConfig::new(machines::optane_cascade_lake(), SimPolicy::AllSlow);
        config.page_size = page_size;
        config
    }

    /// What must not depend on which path an access takes.
    fn essence(machine: &ExactMachine) -> String {
        let core = &machine.cores[0];
        let tiers: Vec<_> = machine.tiers.iter().map(|tier| tier.counts).collect();
        format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            machine.caches.l1_counts().misses,
            machine.caches.l2_counts(),
            machine.caches.llc_counts(),
            core.tlbs.counts,
            core.clock.time(core.instructions),
            tiers,
            machine.runtime.mover.counts,
            machine.runtime.sampler.counts,
        )
    }

    /// Streams with what a program does: few pages and lines, some of them far
    /// apart, that collide often, and stretches that repeat two accesses.
    fn accesses() -> impl Strategy<Value = Vec<Access>> {
        let one = (0u64..24, 0u64..8, 0u64..64, prop::bool::ANY, 0u32..40, 0usize..12);
        prop::collection::vec(one, 1..600).prop_map(|draws| {
            let mut accesses: Vec<Access> = Vec::new();
            for (page, line, byte, store, rare, repeat) in draws {
                let address = 0x20_0000 + page * 0x11_1000 + line * 0x840 + byte;
                let access = if store { Access::store(address) } else { Access::load(address) };
                let access =
                    if rare == 0 { access.dependent() } else { access.after(u64::from(rare)) };
                accesses.push(access);
                for _ in 0..repeat.saturating_sub(6) {
                    if let Some(&before) = accesses.iter().nth_back(1) {
                        accesses.push(before);
                    }
                }
            }
            accesses
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(2), ..ProptestConfig::default() })]
        /// The shortcuts of the hot path are shortcuts: the same misses, walks,
        /// moves and time, to the last bit, come out when every access is looked
        /// up, nothing waits for its second stage, and the code is that for any
        /// processor.
        #[test]
        fn the_fast_path_changes_nothing(
            huge in prop::bool::ANY,
            machine in prop::sample::select(vec!["optane-cascade-lake", "cxl", "kindle"]),
            policy in prop::sample::select(vec!["all-slow", "hemem", "tpp", "autonuma", "hscc"]),
            inclusion in prop::option::of(prop::sample::select(vec![
                Inclusion::Inclusive, Inclusion::NonInclusive, Inclusion::Victim])),
            l1 in prop::option::of(prop::sample::select(vec![
                Replacement::Fifo, Replacement::Random, Replacement::TreePlru, Replacement::Srrip])),
            accesses in accesses(),
        ) {
            let policy: SimPolicy = policy.parse().expect("a policy");
            let machine = machines::builtin(machine).expect("built in");
            let mut config = ExactConfig::new(machine, policy);
            config.page_size = if huge { PageSize::Huge } else { PageSize::Base };
            config.fast = Some(Bytes::mib(8));
            config.sampler.period = 7;
            let detail = config.machine.detail.as_mut().expect("it has caches");
            detail.llc.inclusion = inclusion.unwrap_or(detail.llc.inclusion);
            detail.l1.replacement = l1.unwrap_or(detail.l1.replacement);
            let mut fast = ExactMachine::new(&config).expect("set up");
            let mut slow = ExactMachine::new(&config).expect("set up");
            slow.queue.in_order = true;
            slow.modern = false;
            slow.cores[0].filter.stop();
            for machine in [&mut fast, &mut slow] {
                machine.map(0x20_0000, 64 << 20);
                // Long enough for ticks, and for pages to move.
                for _ in 0..8 {
                    machine.run(0, &accesses).expect("runs");
                    let core = &mut machine.cores[0];
                    core.clock.spend(core.instructions, 3e6);
                }
            }
            prop_assert_eq!(essence(&fast), essence(&slow));
        }
    }

    #[test]
    fn huge_pages_save_walks() {
        let walks = |size| {
            let mut source = Stream::new(StreamKind::Gups, 400_000, 512 << 20);
            let report = setup::simulate(&config(size), &mut source, &mut |_, _| ());
            report.expect("it fits").tlb.walks as f64 / 200_000.0
        };
        // 1536 entries reach 6 MiB or 3 GiB.
        let (base, huge) = (walks(PageSize::Base), walks(PageSize::Huge));
        assert!(base > 0.9, "{base}");
        assert!(huge < 0.01, "{huge}");
    }
}
