//! The simulated operating system beside a model that has every page, and the findings on stock
//! kernels that it has to show.

use proptest::prelude::*;
use terrace_core::{Bytes, Nanos, Pages};
use terrace_provision::{BlockState, Change, NodeId, PolicyKind};
use terrace_sim::machines;
use terrace_sim::os::fallback;
use terrace_sim::os::populate::Pace;
use terrace_sim::os::system::PAGE;
use terrace_sim::os::watermarks;
use terrace_sim::os::{
    Daemon, Event, Instance, MarkSettings, NodeSetup, PageDescriptors, ProcessId, Refusal, Setup,
    System, ZoneKind, populate,
};

/// Two sockets with DRAM, and slow memory near each; blocks of 4 MiB.
fn small(descriptors: PageDescriptors, zone: ZoneKind) -> Setup {
    let machine = machines::builtin("four-node").expect("built in");
    let mut setup = Setup::of(&machine).expect("it has nodes");
    let node = |number: u32| NodeSetup {
        node: NodeId(number),
        processors: if number < 2 { 8 } else { 0 },
        booted: if number < 2 { Bytes::mib(32) } else { Bytes::ZERO },
        hidden: if number < 2 { Bytes::ZERO } else { Bytes::mib(32) },
    };
    setup.nodes = (0..4).map(node).collect();
    setup.distance = vec![
        vec![10, 21, 28, 17],
        vec![21, 10, 17, 28],
        vec![28, 17, 10, 28],
        vec![17, 28, 28, 10],
    ];
    setup.block = Bytes::mib(4);
    setup.page_descriptors = descriptors;
    setup.zone = zone;
    setup
}

/// Who has a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    Kernel,
    Process,
}

struct NaiveBlock {
    node: usize,
    zone: Option<ZoneKind>,
    pages: Vec<Owner>,
    descriptors: Vec<(usize, usize)>,
}

#[derive(Default)]
struct NaiveProcess {
    node: usize,
    allowed: Vec<usize>,
    pages: Vec<(usize, usize)>,
    tables: Vec<(usize, usize)>,
}

/// The same with every page: one is taken after the other.
struct Naive {
    setup: Setup,
    blocks: Vec<NaiveBlock>,
    processes: Vec<NaiveProcess>,
}

const KINDS: [ZoneKind; 2] = [ZoneKind::Normal, ZoneKind::Movable];

impl Naive {
    fn new(setup: Setup) -> Self {
        let mut blocks = Vec::new();
        let size = (setup.block.get() / 4096) as usize;
        for (at, node) in setup.nodes.iter().enumerate() {
            for (amount, zone) in [(node.booted, Some(ZoneKind::Normal)), (node.hidden, None)] {
                for _ in 0..amount.get() / setup.block.get() {
                    let pages = if zone.is_some() { vec![Owner::Nobody; size] } else { Vec::new() };
                    blocks.push(NaiveBlock { node: at, zone, pages, descriptors: Vec::new() });
                }
            }
        }
        let mut naive = Self { setup, blocks, processes: Vec::new() };
        for at in 0..naive.setup.nodes.len() {
            let booted = naive.setup.nodes[at].booted.get() / 4096;
            let held = (booted * naive.setup.page_descriptor.get()).div_ceil(4096);
            for _ in 0..held {
                naive.take(at, &[0, 1, 2, 3], true).expect("room for the kernel");
            }
        }
        naive
    }

    fn zone_pages(&self, node: usize, kind: ZoneKind) -> impl Iterator<Item = &NaiveBlock> {
        self.blocks.iter().filter(move |block| block.node == node && block.zone == Some(kind))
    }

    fn free(&self, node: usize, kind: ZoneKind) -> u64 {
        let free = |block: &NaiveBlock| {
            block.pages.iter().filter(|owner| **owner == Owner::Nobody).count() as u64
        };
        self.zone_pages(node, kind).map(free).sum()
    }

    fn marks(&self) -> Vec<watermarks::Marks> {
        let managed = |node: usize, kind| {
            Pages(self.zone_pages(node, kind).map(|block| block.pages.len() as u64).sum())
        };
        let all: Vec<_> = (0..self.setup.nodes.len())
            .flat_map(|node| KINDS.map(|kind| (kind, managed(node, kind))))
            .collect();
        watermarks::marks(&all, self.setup.marks)
    }

    fn order(&self, node: usize) -> Vec<usize> {
        let count = self.setup.nodes.len();
        let memory: Vec<bool> = (0..count)
            .map(|node| self.blocks.iter().any(|block| block.node == node && block.zone.is_some()))
            .collect();
        let processors: Vec<bool> =
            self.setup.nodes.iter().map(|node| node.processors > 0).collect();
        fallback::orders(&self.setup.distance, &processors, &memory)[node].clone()
    }

    /// One page.
    fn take(&mut self, node: usize, allowed: &[usize], kernel: bool) -> Option<(usize, usize)> {
        let marks = self.marks();
        for low in [true, false] {
            for other in self.order(node) {
                if !allowed.contains(&other) {
                    continue;
                }
                let kinds = if kernel { vec![ZoneKind::Normal] } else { vec![KINDS[1], KINDS[0]] };
                for kind in kinds {
                    let marks = marks[2 * other + kind as usize];
                    let mark = if low { marks.low } else { marks.min };
                    if self.free(other, kind) <= mark.0 {
                        continue;
                    }
                    let owner = if kernel { Owner::Kernel } else { Owner::Process };
                    for (number, block) in self.blocks.iter_mut().enumerate() {
                        if block.node != other || block.zone != Some(kind) {
                            continue;
                        }
                        if let Some(page) = block.pages.iter().position(|o| *o == Owner::Nobody) {
                            block.pages[page] = owner;
                            return Some((number, page));
                        }
                    }
                }
            }
        }
        None
    }

    fn give(&mut self, (block, page): (usize, usize)) {
        self.blocks[block].pages[page] = Owner::Nobody;
    }

    fn give_all(&mut self, pages: Vec<(usize, usize)>) {
        for page in pages {
            self.give(page);
        }
    }

    fn touch(&mut self, process: usize, pages: u64) -> bool {
        let (node, allowed) =
            (self.processes[process].node, self.processes[process].allowed.clone());
        let has = self.processes[process].pages.len() as u64;
        while (self.processes[process].tables.len() as u64) < (has + pages).div_ceil(512) {
            let Some(page) = self.take(node, &allowed, true) else { return false };
            self.processes[process].tables.push(page);
        }
        for _ in 0..pages {
            let Some(page) = self.take(node, &allowed, false) else { return false };
            self.processes[process].pages.push(page);
        }
        true
    }

    fn release(&mut self, process: usize, pages: u64) {
        for _ in 0..pages {
            let Some(page) = self.processes[process].pages.pop() else { break };
            self.give(page);
        }
        let held = self.processes[process].pages.len().div_ceil(512);
        while self.processes[process].tables.len() > held {
            let page = self.processes[process].tables.pop().expect("there are more");
            self.give(page);
        }
    }

    fn online(&mut self, number: usize) -> bool {
        let node = self.blocks[number].node;
        if self.blocks[number].zone.is_some() {
            return false;
        }
        let size = self.setup.block.get() / 4096;
        let held = (size * self.setup.page_descriptor.get()).div_ceil(4096);
        let mut usable = size;
        if self.setup.page_descriptors == PageDescriptors::Itself {
            usable -= held;
        } else {
            let mut got = Vec::new();
            for _ in 0..held {
                let Some(page) = self.take(node, &[0, 1, 2, 3], true) else {
                    self.give_all(got);
                    return false;
                };
                got.push(page);
            }
            self.blocks[number].descriptors = got;
        }
        self.blocks[number].zone = Some(self.setup.zone);
        self.blocks[number].pages = vec![Owner::Nobody; usable as usize];
        true
    }

    fn offline(&mut self, number: usize, headroom: u64) -> bool {
        let Some(kind) = self.blocks[number].zone else { return false };
        if self.blocks[number].pages.contains(&Owner::Kernel) {
            return false;
        }
        let node = self.blocks[number].node;
        let used = self.blocks[number].pages.iter().filter(|o| **o == Owner::Process).count();
        let marks = self.marks();
        let mut room = 0;
        for other in self.order(node) {
            for kind in [KINDS[1], KINDS[0]] {
                let mut free = self.free(other, kind);
                if other == node && Some(kind) == self.blocks[number].zone {
                    free -= (self.blocks[number].pages.len() - used) as u64;
                }
                room += free.saturating_sub(marks[2 * other + kind as usize].low.0);
            }
        }
        if room < used as u64 + headroom {
            return false;
        }
        // Isolated: its free pages are nobody's to take.
        for page in &mut self.blocks[number].pages {
            if *page == Owner::Nobody {
                *page = Owner::Kernel;
            }
        }
        for process in 0..self.processes.len() {
            for at in 0..self.processes[process].pages.len() {
                if self.processes[process].pages[at].0 == number {
                    let page = self.take(node, &[0, 1, 2, 3], false).expect("there is room");
                    self.processes[process].pages[at] = page;
                }
            }
        }
        let _ = kind;
        self.blocks[number].zone = None;
        self.blocks[number].pages.clear();
        let descriptors = std::mem::take(&mut self.blocks[number].descriptors);
        self.give_all(descriptors);
        true
    }

    fn placement(&self, process: usize) -> Vec<(NodeId, Pages)> {
        let mut places: Vec<(NodeId, Pages)> = Vec::new();
        for (block, _) in &self.processes[process].pages {
            let node = self.setup.nodes[self.blocks[*block].node].node;
            match places.last_mut().filter(|(last, _)| *last == node) {
                Some((_, pages)) => pages.0 += 1,
                None => places.push((node, Pages(1))),
            }
        }
        places
    }
}

/// What happens to the system.
#[derive(Clone, Debug)]
enum Op {
    Touch(usize, u64),
    Free(usize, u64),
    Online(usize),
    Offline(usize, u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..4_usize, 1..3000_u64).prop_map(|(process, pages)| Op::Touch(process, pages)),
        2 => (0..4_usize, 1..4000_u64).prop_map(|(process, pages)| Op::Free(process, pages)),
        3 => (16..32_usize).prop_map(Op::Online),
        3 => (16..32_usize, 0..2000_u64).prop_map(|(block, room)| Op::Offline(block, room)),
    ];
    prop::collection::vec(op, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every page lies where it lies when each is taken alone, through touching, freeing,
    /// online and offline; nothing is lost, nothing lies on an offline block, no allocation
    /// goes below `min`.
    #[test]
    fn it_places_pages_as_a_model_with_every_page_does(
        ops in ops(),
        itself in any::<bool>(),
        movable in any::<bool>(),
    ) {
        let descriptors =
            if itself { PageDescriptors::Itself } else { PageDescriptors::Elsewhere };
        let zone = if movable { ZoneKind::Movable } else { ZoneKind::Normal };
        let setup = small(descriptors, zone);
        let mut system = System::new(setup.clone()).expect("a good setup");
        let mut naive = Naive::new(setup.clone());
        let all: Vec<usize> = (0..4).collect();
        for (node, allowed) in [(0, all.clone()), (1, all.clone()), (0, vec![0, 3]), (1, vec![1, 3])] {
            let names: Vec<NodeId> = allowed.iter().map(|&at| setup.nodes[at].node).collect();
            system.process(NodeId(node as u32), if allowed.len() == 4 { &[] } else { &names });
            naive.processes.push(NaiveProcess { node, allowed, ..NaiveProcess::default() });
        }
        for op in ops {
            let zones = || setup.nodes.iter().flat_map(|node| KINDS.map(|kind| (node.node, kind)));
            let before: Vec<_> = zones().map(|(node, kind)| system.zone(node, kind).0).collect();
            let (ours, theirs) = match op.clone() {
                Op::Touch(process, pages) => (
                    system.touch(ProcessId(process), Pages(pages)).is_ok(),
                    naive.touch(process, pages),
                ),
                Op::Free(process, pages) => {
                    system.free(ProcessId(process), Pages(pages));
                    naive.release(process, pages);
                    (true, true)
                }
                Op::Online(block) => (system.online(block).is_ok(), naive.online(block)),
                Op::Offline(block, room) => (
                    system.offline(block, PAGE * room).is_ok(),
                    naive.offline(block, room),
                ),
            };
            prop_assert_eq!(ours, theirs, "{:?}", op);
            if let Err(why) = system.audit() {
                prop_assert!(false, "{:?}: {}", op, why);
            }
            for (at, (node, kind)) in zones().enumerate() {
                let (free, marks) = system.zone(node, kind);
                prop_assert_eq!(free.0, naive.free(at / 2, kind), "{} after {:?}", node, op);
                if matches!(op, Op::Touch(..)) {
                    prop_assert!(free >= marks.min.min(before[at]), "{} after {:?}", node, op);
                }
            }
            for process in 0..4 {
                prop_assert_eq!(
                    system.placement(ProcessId(process)),
                    naive.placement(process),
                    "process {} after {:?}", process, op
                );
            }
        }
    }

    /// A daemon at work, programs that come and go: pages are conserved all the time, and each
    /// block is in the state that its pool says.
    #[test]
    fn the_books_agree_whatever_a_daemon_does(
        steps in prop::collection::vec((0..4_usize, 0..9000_u64, any::<bool>()), 1..60),
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        demotion in any::<bool>(),
    ) {
        let setup = Setup { demotion, ..small(PageDescriptors::Elsewhere, ZoneKind::Movable) };
        let mut system = System::new(setup).expect("a good setup");
        let mut daemon = Daemon::new(kind.build(), &system, Nanos::SECOND);
        let processes: Vec<ProcessId> =
            [0, 1, 0, 1].into_iter().map(|node| system.process(NodeId(node), &[])).collect();
        for (process, pages, frees) in steps {
            if frees {
                system.free(processes[process], Pages(pages));
            } else if system.touch(processes[process], Pages(pages)).is_err() {
                system.end(processes[process]);
            }
            let until = system.now() + Nanos::seconds(7);
            daemon.run(&mut system, until);
            if let Err(why) = system.audit() {
                prop_assert!(false, "{}", why);
            }
        }
        let online = |event: &&Event| matches!(event, Event::Online { .. });
        let offline = |event: &&Event| matches!(event, Event::Offline { .. });
        let now: usize = system
            .pools()
            .iter()
            .map(|pool| pool.blocks.iter().filter(|b| b.state != BlockState::Hidden).count())
            .sum();
        let (came, went) = (
            daemon.journal.iter().filter(online).count(),
            daemon.journal.iter().filter(offline).count(),
        );
        prop_assert_eq!(came - went, now);
    }
}

/// Brings blocks online, which must be possible.
fn bring(system: &mut System, blocks: &[usize]) {
    for &block in blocks {
        system.online(block).expect("there is room");
    }
}

fn four_nodes() -> Setup {
    Setup::of(&machines::builtin("four-node").expect("built in")).expect("it has nodes")
}

#[test]
fn descriptors_of_all_slow_memory_take_a_sixty_fourth_of_it() {
    for (place, per_block) in [(PageDescriptors::Elsewhere, 0), (PageDescriptors::Itself, 2)] {
        let mut system = System::new(Setup { page_descriptors: place, ..four_nodes() }).unwrap();
        let before = system.memory(NodeId(0)).1;
        let blocks: Vec<usize> =
            system.pools()[0].blocks.iter().map(|block| block.number as usize).collect();
        assert_eq!(blocks.len(), 768);
        bring(&mut system, &blocks);
        let taken = before - system.memory(NodeId(0)).1;
        let usable = system.memory(NodeId(4)).0;
        if place == PageDescriptors::Itself {
            assert_eq!(taken, Bytes::ZERO);
        } else {
            assert_eq!(taken, Bytes::gib(96) / 64, "1.5 GiB of DRAM");
        }
        assert_eq!(usable, Bytes::gib(96) - Bytes::mib(per_block) * 768);
        for &block in &blocks {
            system.offline(block, Bytes::ZERO).expect("nobody uses it");
        }
        assert_eq!(system.memory(NodeId(0)).1, before, "all of it came back");
        system.audit().expect("the books agree");
    }
}

#[test]
fn near_slow_memory_is_used_before_far_dram() {
    let mut system = System::new(four_nodes()).unwrap();
    let blocks: Vec<usize> =
        system.pools()[0].blocks.iter().take(80).map(|block| block.number as usize).collect();
    bring(&mut system, &blocks);
    let hog = system.process(NodeId(0), &[]);
    system.touch(hog, Pages(Bytes::gib(45).get() / 4096)).expect("there is room");
    let places = system.placement(hog);
    assert_eq!(places.iter().map(|place| place.0.0).collect::<Vec<_>>(), [0, 4, 1], "{places:?}");
    let slow = places[1].1;
    assert!(PAGE * slow.0 > Bytes::gib(10) - Bytes::mib(64), "but for its watermark: {slow}");
}

/// Slow memory in the processors' own node, in a movable zone: Linux takes it first.
#[test]
fn movable_memory_of_the_same_node_is_used_before_its_dram() {
    let mut setup = small(PageDescriptors::Elsewhere, ZoneKind::Movable);
    setup.nodes[0].hidden = Bytes::mib(32);
    let mut system = System::new(setup).unwrap();
    let own = system.pools()[0].clone();
    assert_eq!(own.target_node, NodeId(0));
    let own: Vec<usize> = own.blocks.iter().map(|block| block.number as usize).collect();
    bring(&mut system, &own);
    let dram = system.zone(NodeId(0), ZoneKind::Normal).0;
    let hog = system.process(NodeId(0), &[]);
    system.touch(hog, Pages(4000)).unwrap();
    let tables = Pages(4000_u64.div_ceil(512));
    assert_eq!(system.zone(NodeId(0), ZoneKind::Normal).0, dram - tables);
}

/// One socket of 32 MiB and its slow memory, movable, as in a guest of ours: the kernel's own objects run out of DRAM
/// while slow memory is free, and each of the three remedies helps.
#[test]
fn movable_slow_memory_does_not_save_a_hog_and_each_remedy_does() {
    let run = |change: &dyn Fn(&mut Setup)| {
        let mut setup = small(PageDescriptors::Itself, ZoneKind::Movable);
        setup.nodes[1].booted = Bytes::ZERO;
        // So much that its page tables alone are more than DRAM keeps between `low` and `min`.
        setup.nodes[3].hidden = Bytes::gib(1);
        change(&mut setup);
        let mut system = System::new(setup).unwrap();
        let blocks: Vec<usize> = system
            .pools()
            .iter()
            .filter(|pool| pool.target_node == NodeId(3))
            .flat_map(|pool| pool.blocks.iter().map(|block| block.number as usize))
            .collect();
        bring(&mut system, &blocks);
        let hog = system.process(NodeId(0), &[]);
        let mut held = Bytes::ZERO;
        while held < Bytes::mib(900) {
            if let Err(why) = system.touch(hog, Pages(512)) {
                assert_eq!(why.what, "page tables");
                assert!(system.memory(NodeId(3)).1 > Bytes::mib(64), "slow memory is free");
                system.audit().expect("the books agree");
                return held;
            }
            held += Bytes::mib(2);
        }
        system.audit().expect("the books agree");
        held
    };
    assert!(run(&|_| ()) < Bytes::mib(900));
    assert_eq!(run(&|setup| setup.demotion = true), Bytes::mib(900), "demotion");
    assert_eq!(run(&|setup| setup.zone = ZoneKind::Normal), Bytes::mib(900), "kernel blocks");
    let scaled = MarkSettings { scale_factor: Some(1000), ..MarkSettings::default() };
    assert_eq!(run(&|setup| setup.marks = scaled), Bytes::mib(900), "more is kept free");
}

#[test]
fn a_block_leaves_only_where_its_pages_find_room() {
    let mut setup = small(PageDescriptors::Elsewhere, ZoneKind::Movable);
    setup.nodes[1].booted = Bytes::ZERO;
    let mut system = System::new(setup).unwrap();
    let block = 8 + 8;
    system.online(block).unwrap();
    let hog = system.process(NodeId(0), &[]);
    system.touch(hog, Pages(8400)).unwrap();
    let held = system.held(hog);
    let refused = system.offline(block, Bytes::mib(4)).unwrap_err();
    assert!(matches!(refused, Refusal::NoRoom { wanted, there } if wanted > there), "{refused}");
    assert_eq!(system.held(hog), held);
    system.free(hog, Pages(4000));
    let moved = system.offline(block, Bytes::mib(4)).expect("now there is room");
    assert_eq!(moved.0, Pages(0), "what was touched last lay there, and is gone");
    system.audit().expect("the books agree");
    assert_eq!(system.offline(block, Bytes::ZERO), Err(Refusal::State));
}

/// A block in a zone for anything holds page tables in the end, and never leaves again.
#[test]
fn a_block_with_objects_of_the_kernel_stays() {
    let mut setup = small(PageDescriptors::Elsewhere, ZoneKind::Normal);
    setup.nodes[0].booted = Bytes::mib(8);
    setup.nodes[1].booted = Bytes::ZERO;
    let mut system = System::new(setup).unwrap();
    let numbers: Vec<usize> = system
        .pools()
        .iter()
        .find(|pool| pool.target_node == NodeId(3))
        .map(|pool| pool.blocks.iter().map(|block| block.number as usize).collect())
        .unwrap();
    bring(&mut system, &numbers);
    let hog = system.process(NodeId(0), &[]);
    for _ in 0..12 {
        system.touch(hog, Pages(512)).unwrap();
    }
    assert_eq!(system.offline(numbers[0], Bytes::ZERO), Err(Refusal::Kernel));
}

#[test]
fn a_demand_that_comes_and_goes_leaves_the_machine_as_it_was() {
    let mut system = System::new(four_nodes()).unwrap();
    let nodes: Vec<NodeId> = system.setup().nodes.iter().map(|node| node.node).collect();
    let before: Vec<_> = nodes.iter().map(|&node| system.memory(node)).collect();
    let mut daemon = Daemon::new(PolicyKind::Resolved.build(), &system, Nanos::SECOND);
    let instances: Vec<Instance> = (0..30)
        .map(|_| {
            let process = system.process(NodeId(0), &[]);
            Instance { process, memory: Pages(Bytes::gib(2).get() / 4096) }
        })
        .collect();
    let pace = Pace { processors: 2, page: Nanos::micros(20), turn: Nanos::millis(10) };
    let populated = populate(&mut system, &mut daemon, &instances, pace);
    assert!(populated.killed.is_empty());
    let closed_form = 30.0 * 2.0 * 262_144.0 * 20e-6 / 2.0;
    let off = populated.took.as_secs() / closed_form;
    assert!((0.99..1.02).contains(&off), "{} s and {closed_form}", populated.took.as_secs());
    let far: Pages = instances
        .iter()
        .flat_map(|one| system.placement(one.process))
        .filter(|(node, _)| !matches!(node.0, 0 | 4))
        .map(|(_, pages)| pages)
        .sum();
    assert_eq!(far, Pages::ZERO, "slow memory came before anything had to lie far away");
    system.audit().expect("the books agree");
    for one in &instances {
        system.end(one.process);
    }
    let until = system.now() + Nanos::seconds(600);
    daemon.run(&mut system, until);
    let after: Vec<_> = nodes.iter().map(|&node| system.memory(node)).collect();
    assert_eq!(before, after);
    let changes: Vec<Change> = daemon.decisions().map(|decision| decision.change).collect();
    assert!(matches!(changes.first(), Some(Change::Integrate(_))));
    assert!(matches!(changes.last(), Some(Change::Remove(_))));
    assert!(changes.len() < 20, "{changes:?}");
}

#[test]
fn a_setup_that_makes_no_machine_is_refused() {
    let mut setup = four_nodes();
    setup.block = Bytes(5000);
    assert!(System::new(setup).unwrap_err().to_string().contains("whole pages"));
    let mut setup = four_nodes();
    setup.nodes[0].booted = Bytes(4096);
    assert!(System::new(setup).unwrap_err().to_string().contains("whole blocks"));
    let mut setup = four_nodes();
    setup.distance.pop();
    assert!(System::new(setup).unwrap_err().to_string().contains("distances"));
    let mut setup = four_nodes();
    setup.kernel = Bytes::gib(300);
    assert!(System::new(setup).unwrap_err().to_string().contains("no room"));
    let other = machines::builtin("cxl").expect("built in");
    assert!(Setup::of(&other).unwrap_err().to_string().contains("[numa]"));
}
