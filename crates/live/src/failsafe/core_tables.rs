//! Where a core dump has what is needed to complete it.
//!
//! The kernel writes zeros for a page that is absent. The page's content is in the same dump, in
//! the store: `terrace core` puts it where it belongs. A page of memory of its own, the *anchor*,
//! says where the tables are. It lies at the start of a mapping, so that it is found by a look at
//! the first words of each segment of the dump.
//!
//! The kernel empties the anchor in a child (`MADV_WIPEONFORK`): tables that a child has inherited
//! are not true of it before it has a pager of its own, which writes the anchor anew.
//!
//! Which state of a page means what is in [`crate::space::page_state`]. What may be half done when a
//! program dies: a word is marked [`crate::space::page_state::BUSY`] while a thread of ours is at its
//! page. What holds the content is freed only after the word has ceased to name it, so what an
//! absent page's word names is whole.

use core::sync::atomic::{AtomicU64, Ordering::*};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;

use crate::pager::{MANAGER, Pager};
use crate::space::regions::Region;
use crate::sys::{self, PAGE};

/// What the anchor begins with: "TERRACE CORE 1\n\0".
pub const MAGIC: [u64; 2] = [u64::from_le_bytes(*b"TERRACE "), u64::from_le_bytes(*b"CORE 1\n\0")];
/// Raised with every change of the anchor, or of what the tables mean.
pub const VERSION: u64 = 1;

macro_rules! anchor {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The anchor's content after [`MAGIC`]. Addresses are of the process that is dumped.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Anchor {
            $($(#[$doc])* pub $name: u64,)*
        }
        impl Anchor {
            /// How many words it has.
            pub const WORDS: usize = [$(stringify!($name)),*].len();
            /// As it lies in memory.
            pub fn to_words(&self) -> [u64; Self::WORDS] {
                [$(self.$name),*]
            }
            /// What [`Anchor::to_words`] gave.
            pub fn from_words([$($name),*]: [u64; Self::WORDS]) -> Self {
                Self { $($name),* }
            }
        }
    };
}

anchor! {
    /// [`VERSION`] of the library that wrote it.
    version,
    /// Bytes of a page.
    page,
    /// The process, as it knows itself.
    pid,
    /// Of a 32-bit word: not 0 once everything has been brought in for good.
    over,
    /// Of a 32-bit word: not 0 while a fork is under way. Then pages come in without a change of
    /// their words.
    frozen,
    /// Of the pointers to the parts of the table of regions, null where there is none.
    segments,
    /// How many pointers those are.
    segment_count,
    /// Regions in each part.
    segment_len,
    /// Bytes of a region in the table.
    region_size,
    /// Where in a region its first address is, 64 bits.
    region_start,
    /// Where in a region its length in pages is, 32 bits; 0 of one that is not used.
    region_pages,
    /// Where in a region the address of its pages' words is, 64 bits.
    region_words,
    /// Of a 32-bit word: how many regions of the table were ever used.
    used,
    /// The first staging slot.
    slots,
    /// How many slots there are.
    slot_count,
    /// Of the slots' owners, a 64-bit word each ([`crate::evict::staging::owner`]).
    owners,
    /// Of a byte: whether the spill file is mapped.
    mapped,
    /// Of a 64-bit word: the address of the mapped file's first byte.
    mapped_at,
    /// Of a 64-bit word: how much of it is mapped.
    mapped_len,
    /// The spill file's descriptor, in the thread `spill_thread`; `u64::MAX` if there is none.
    spill_fd,
    /// A thread that has it open.
    spill_thread,
    /// The file's device and inode.
    spill_device,
    /// See there.
    spill_inode,
}

/// Memory for an anchor, empty so far.
pub(crate) fn reserve() -> Result<usize, i32> {
    let at = sys::map_private(PAGE)?;
    // SAFETY: a page of ours. A kernel that does not know it is older than those that we run on.
    let _ = unsafe { sys::madvise(at, PAGE, libc::MADV_WIPEONFORK) };
    Ok(at)
}

/// Of anything in this process.
fn address<T: ?Sized>(of: &T) -> u64 {
    core::ptr::from_ref(of).cast::<u8>().addr() as u64
}

impl Pager {
    /// Says where the tables are: from now on pages may be absent. In the thread that has the
    /// spill file open.
    pub(crate) fn write_anchor(&self) {
        let regions = self.regions.layout();
        let (mapped, mapped_at, mapped_len) = self.spill.mapping.addresses();
        let mut anchor = Anchor {
            version: VERSION,
            page: PAGE as u64,
            pid: sys::pid() as u64,
            over: address(self.phase.over()),
            frozen: address(self.freeze.reasons()),
            segments: regions.segments,
            segment_count: regions.segment_count,
            segment_len: regions.segment_len,
            region_size: size_of::<Region>() as u64,
            region_start: regions.start,
            region_pages: regions.pages,
            region_words: regions.words,
            used: regions.used,
            slots: self.evict.staging.base() as u64,
            slot_count: u64::from(self.evict.staging.slots()),
            owners: address(self.evict.staging.owners()),
            mapped,
            mapped_at,
            mapped_len,
            spill_fd: u64::MAX,
            ..Anchor::default()
        };
        if let Some(fd) = self.spill.file() {
            // SAFETY: it is open, and is not closed here.
            let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
            if let Ok(facts) = file.metadata() {
                anchor.spill_fd = fd as u64;
                anchor.spill_thread = self.workers[MANAGER].tid.load(Relaxed) as u64;
                (anchor.spill_device, anchor.spill_inode) = (facts.dev(), facts.ino());
            }
        }
        // SAFETY: a page of ours, which is longer, and which nobody else writes to.
        let page = unsafe { &*(self.anchor as *const [AtomicU64; PAGE / 8]) };
        let (magic, words) = page.split_at(MAGIC.len());
        // What names the rest comes last: a dump may be made at any moment.
        magic[0].store(0, SeqCst);
        words.iter().zip(anchor.to_words()).for_each(|(to, word)| to.store(word, Relaxed));
        magic[1].store(MAGIC[1], Release);
        magic[0].store(MAGIC[0], Release);
    }
}

/// Where the table of regions is, and what it looks like, as in [`Anchor`].
pub(crate) struct RegionLayout {
    pub(crate) segments: u64,
    pub(crate) segment_count: u64,
    pub(crate) segment_len: u64,
    pub(crate) start: u64,
    pub(crate) pages: u64,
    pub(crate) words: u64,
    pub(crate) used: u64,
}

const _: () = assert!((MAGIC.len() + Anchor::WORDS) * 8 <= PAGE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_read_as_it_was_written() {
        let words = core::array::from_fn(|i| i as u64 * 3 + 1);
        assert_eq!(Anchor::from_words(words).to_words(), words);
        assert_eq!(Anchor::from_words(words).version, 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no fork")]
    fn a_child_that_has_no_pager_has_no_anchor() {
        let at = reserve().expect("memory");
        // SAFETY: a page of ours; the child ends at once.
        let status = unsafe {
            (at as *mut u64).write(MAGIC[0]);
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from((at as *const u64).read_volatile() != 0));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!((at as *const u64).read(), MAGIC[0], "the parent keeps it");
            status
        };
        assert_eq!(status, 0);
    }
}
