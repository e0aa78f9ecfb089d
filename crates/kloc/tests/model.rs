//! Random calls against a naive model: vectors, walked from end to end.

use proptest::prelude::*;
use terrace_core::context::{ContextChange, ContextEvent, Cpu, Mobility, ObjectId};
use terrace_core::{
    Bytes, ContextId, ContextIdentity, Nanos, ObjectKind, PageNo, PageRef, RegionId, TierId,
};
use terrace_kloc::{Kmap, KmapConfig, Member};

const CONTEXTS: u32 = 5;
const CPUS: u16 = 3;
/// Shorter than there are contexts, so that knodes fall off the lists.
const LIST: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Call {
    Map,
    Open,
    Access,
    Rename,
    Close,
    Add(u8, u8),
    Free(u8),
    Move(u8, u8),
    Evict,
    Delete,
    Pass,
}

fn calls() -> impl Strategy<Value = Vec<(Call, u32, u16)>> {
    let call = prop_oneof![
        2 => Just(Call::Map),
        3 => Just(Call::Open),
        2 => Just(Call::Access),
        1 => Just(Call::Rename),
        3 => Just(Call::Close),
        5 => (0..11u8, 0..2u8).prop_map(|(kind, tier)| Call::Add(kind, tier)),
        4 => any::<u8>().prop_map(Call::Free),
        3 => (any::<u8>(), 0..2u8).prop_map(|(object, tier)| Call::Move(object, tier)),
        1 => Just(Call::Evict),
        1 => Just(Call::Delete),
        1 => Just(Call::Pass),
    ];
    prop::collection::vec((call, 0..CONTEXTS, 0..CPUS), 0..120)
}

struct Naive {
    id: ContextId,
    opens: u32,
    closed: Nanos,
    cpu: Cpu,
    age: u8,
    members: Vec<(ObjectId, Member)>,
}

fn identity(context: u32) -> ContextIdentity {
    if context.is_multiple_of(2) {
        ContextIdentity::File { device: 1, inode: context.into(), generation: 0 }
    } else {
        ContextIdentity::Socket { cookie: context.into() }
    }
}

fn agree(kmap: &Kmap, model: &[Naive]) -> Result<(), TestCaseError> {
    prop_assert_eq!(kmap.audit(), Ok(()));
    prop_assert_eq!(kmap.knodes().count(), model.len());
    for tier in [TierId(0), TierId(1)] {
        let members = model.iter().flat_map(|n| &n.members).filter(|(_, m)| m.tier == tier);
        prop_assert_eq!(kmap.used(tier), members.map(|(_, m)| m.kind.size()).sum::<Bytes>());
    }
    for naive in model {
        let knode = kmap.knode(naive.id).expect("it lives");
        prop_assert_eq!(kmap.find(knode.context().identity), Some(naive.id));
        prop_assert_eq!(kmap.find_cpu(naive.id), Some(naive.cpu));
        prop_assert_eq!(kmap.age(naive.id), Some(naive.age));
        prop_assert_eq!(knode.in_use(), naive.opens > 0);
        prop_assert_eq!(knode.len(), naive.members.len());
        let of = |page| naive.members.iter().filter(move |(_, m)| m.kind.is_page() == page);
        prop_assert!(knode.page_objects().eq(of(true).map(|(id, m)| (*id, m))));
        prop_assert!(knode.slab_objects().eq(of(false).map(|(id, m)| (*id, m))));
    }
    let mut closed: Vec<_> = model.iter().filter(|n| n.opens == 0).collect();
    closed.sort_by_key(|n| (n.closed, n.id));
    let oldest: Vec<_> = closed.iter().map(|n| n.id).collect();
    let found = kmap.least_recently_used(usize::MAX, 2);
    prop_assert_eq!(&found[..oldest.len()], &oldest[..]);
    let cold: Vec<_> = model.iter().filter(|n| n.opens > 0 && n.age >= 2).map(|n| n.id).collect();
    prop_assert_eq!(found.len() - oldest.len(), cold.len());
    prop_assert!(found[oldest.len()..].iter().all(|id| cold.contains(id)));
    Ok(())
}

proptest! {
    #[test]
    fn random_calls_keep_all_books_equal(calls in calls()) {
        let mut kmap = Kmap::new(KmapConfig::new(usize::from(CPUS), LIST));
        let mut model: Vec<Naive> = Vec::new();
        let mut next = 0;
        for (step, (call, number, cpu)) in calls.into_iter().enumerate() {
            let (at, cpu, id) = (Nanos(step as u64), Cpu(cpu), ContextId(number + 1));
            let place = model.iter().position(|n| n.id == id);
            let event = |change| ContextEvent { at, cpu, context: id, change };
            let mut send = |change| kmap.event(&event(change)).is_ok();
            let lives = place.is_some();
            // What the model takes to be legal, the kmap must take, and nothing else.
            let (legal, done) = match call {
                Call::Map => {
                    let ok = kmap.map_knode(id, identity(number), cpu, at).is_ok();
                    if !lives {
                        let (opens, age, members) = (0, 0, Vec::new());
                        model.push(Naive { id, opens, closed: at, cpu, age, members });
                    }
                    (!lives, ok)
                }
                Call::Open => (lives, send(ContextChange::Opened)),
                Call::Access => (lives, send(ContextChange::Accessed)),
                Call::Rename => (lives, send(ContextChange::Renamed)),
                Call::Close => {
                    (place.is_some_and(|p| model[p].opens > 0), send(ContextChange::Closed))
                }
                Call::Add(kind, tier) => {
                    next += 1;
                    let page = PageRef { region: RegionId(0), page: PageNo(next) };
                    let kind = ObjectKind::ALL[usize::from(kind)];
                    let member = Member { page, kind, tier: TierId(tier) };
                    let object = ObjectId(next.into());
                    let ok = kmap.add_object(id, object, member, cpu, at).is_ok();
                    if let Some(p) = place {
                        model[p].members.push((object, member));
                    }
                    (lives, ok)
                }
                Call::Free(pick) => {
                    let members = place.map_or(0, |p| model[p].members.len());
                    if members > 0 {
                        let naive = &mut model[place.expect("it has members")];
                        let (object, m) = naive.members.remove(usize::from(pick) % members);
                        (true, send(ContextChange::Removed { object, kind: m.kind }))
                    } else {
                        // Nobody has this object: freeing it again must be refused.
                        let object = ObjectId(u64::MAX);
                        (false, send(ContextChange::Removed { object, kind: ObjectKind::Bio }))
                    }
                }
                Call::Move(pick, tier) => {
                    let tier = TierId(tier);
                    let movable: Vec<_> =
                        kmap.movable(id, TierId(1 - tier.0)).map(|(object, _)| object).collect();
                    prop_assert!(lives || movable.is_empty(), "nothing of what ended is moved");
                    if let Some(&object) = movable.get(usize::from(pick) % movable.len().max(1)) {
                        prop_assert!(kmap.moved(id, object, tier).is_ok());
                        let naive = &mut model[place.expect("it has members")];
                        let moved = naive.members.iter_mut().find(|(o, _)| *o == object);
                        let (_, member) = moved.expect("a member of the model");
                        prop_assert_ne!(member.kind.mobility(), Mobility::Pinned);
                        member.tier = tier;
                    }
                    agree(&kmap, &model)?;
                    continue;
                }
                Call::Evict | Call::Delete => {
                    let free =
                        place.is_some_and(|p| model[p].opens == 0 && model[p].members.is_empty());
                    let evicted = matches!(call, Call::Evict);
                    let change =
                        if evicted { ContextChange::Evicted } else { ContextChange::Deleted };
                    let ok = send(change);
                    if free {
                        model.remove(place.expect("it lives"));
                    }
                    (free, ok)
                }
                Call::Pass => {
                    kmap.pass();
                    for naive in &mut model {
                        naive.age += 1;
                    }
                    agree(&kmap, &model)?;
                    continue;
                }
            };
            prop_assert_eq!(legal, done, "{:?} of {}", call, id.0);
            if legal && let Some(naive) = model.iter_mut().find(|n| n.id == id) {
                (naive.age, naive.cpu) = (0, cpu);
                match call {
                    Call::Open => naive.opens += 1,
                    Call::Close => {
                        naive.opens -= 1;
                        if naive.opens == 0 {
                            naive.closed = at;
                        }
                    }
                    _ => {}
                }
            }
            agree(&kmap, &model)?;
        }
    }
}

/// A page that two files claim is a bug of the world, and the audit says so.
#[test]
fn the_audit_finds_a_page_that_belongs_to_two_files() {
    let mut kmap = Kmap::new(KmapConfig::new(1, LIST));
    let page = PageRef { region: RegionId(0), page: PageNo(1) };
    for number in [0, 2] {
        let id = ContextId(number + 1);
        kmap.map_knode(id, identity(number), Cpu(0), Nanos(1)).expect("new");
        let member = Member { page, kind: ObjectKind::PageCachePage, tier: TierId(0) };
        let object = ObjectId(number.into());
        kmap.add_object(id, object, member, Cpu(0), Nanos(2)).expect("new");
    }
    assert!(kmap.audit().expect_err("one page, two files").contains("two files"));
}

/// Figure 5c of the paper includes kinds one by one; and a tier's share can be bounded.
#[test]
fn kinds_can_be_left_out_and_tiers_bounded() {
    let page_cache = 1 << ObjectKind::PageCachePage.index();
    let config = KmapConfig { kinds: page_cache, ..KmapConfig::new(1, LIST) };
    let (mut kmap, id) = (Kmap::new(config), ContextId(1));
    kmap.map_knode(id, identity(0), Cpu(0), Nanos(1)).expect("new");
    for (number, kind) in ObjectKind::ALL.into_iter().enumerate() {
        let page = PageRef { region: RegionId(0), page: PageNo(number as u32) };
        let member = Member { page, kind, tier: TierId(0) };
        kmap.add_object(id, ObjectId(number as u64), member, Cpu(0), Nanos(2)).expect("new");
    }
    assert_eq!(kmap.knode(id).expect("it lives").len(), 1);
    assert_eq!(kmap.used(TierId(0)), Bytes(4096));
    kmap.limit(TierId(0), Some(Bytes(8191)));
    assert!(!kmap.may_place(TierId(0), ObjectKind::PageCachePage));
    assert!(kmap.may_place(TierId(0), ObjectKind::Dentry));
    assert!(kmap.may_place(TierId(1), ObjectKind::PageCachePage));
}
