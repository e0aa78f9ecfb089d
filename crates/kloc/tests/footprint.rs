//! What the structures take, measured by counting what they allocate.
#![allow(unsafe_code)] // a global allocator cannot be safe code

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use terrace_core::context::{Cpu, ObjectId};
use terrace_core::{
    ContextId, ContextIdentity, Nanos, ObjectKind, PageNo, PageRef, RegionId, TierId,
};
use terrace_kloc::{Kmap, KmapConfig, Member};

struct Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything to the system's allocator unchanged; counting touches no memory
// that is handed out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The paper's Table 6 has less than 1 % of the fast memory. Here 16 MiB-files fill it with
/// page-cache pages.
#[test]
fn the_structures_take_less_than_one_percent_of_what_they_are_about() {
    const FILES: u32 = 64;
    const PAGES: u32 = 4096;
    let mut kmap = Kmap::new(KmapConfig::new(16, 32));
    let before = LIVE.load(Relaxed);
    for file in 0..FILES {
        let (id, at) = (ContextId(file + 1), Nanos(u64::from(file)));
        let identity = ContextIdentity::File { device: 1, inode: file.into(), generation: 0 };
        kmap.map_knode(id, identity, Cpu(0), at).expect("new");
    }
    let knodes = LIVE.load(Relaxed) - before;
    for number in 0..FILES * PAGES {
        let (id, kind) = (ContextId(number / PAGES + 1), ObjectKind::PageCachePage);
        let page = PageRef { region: RegionId(number / PAGES), page: PageNo(number % PAGES) };
        let member = Member { page, kind, tier: TierId(0) };
        let at = Nanos(u64::from(FILES));
        kmap.add_object(id, ObjectId(number.into()), member, Cpu(0), at).expect("new");
    }
    let all = LIVE.load(Relaxed) - before;
    let members = f64::from(FILES * PAGES);
    let per_member = (all - knodes) as f64 / members;
    let footprint = kmap.footprint();
    let share = all as f64 / (members * 4096.0);
    println!(
        "{} bytes a knode, {per_member:.1} bytes a member, {:.2} % of the pages",
        knodes / FILES as usize,
        share * 100.0
    );
    assert!((footprint.member / per_member - 1.0).abs() < 0.01, "{footprint:?}, {per_member}");
    assert!(all as u64 <= footprint.total.get(), "{all} is more than {}", footprint.total);
    assert!(share < 0.01, "{share}");
}
