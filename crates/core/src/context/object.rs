//! The kinds of kernel objects that belong to contexts.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// One kernel object. Unlike an address, a number is not used again.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ObjectId(pub u64);

/// How the kernel allocates an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocator {
    /// Objects of one size share pages (`kmem_cache_alloc`, `kmalloc`).
    Slab,
    /// Whole pages (`alloc_pages`).
    Page,
}

/// Whether an object can be moved to other memory while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mobility {
    /// Any kernel moves it: it is reached through a page table or an index that can be changed.
    Movable,
    /// A stock kernel holds its address and cannot move it; a kernel whose allocator gives
    /// such objects virtual addresses of their own (as KLOCs does) can.
    Relocatable,
    /// A device holds its physical address while it lives.
    Pinned,
}

/// The part of the kernel that uses an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subsystem {
    /// File systems and block devices.
    Storage,
    /// The network.
    Network,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident {
        $name:literal, $paper:literal, $subsystem:ident, $size:expr, $allocator:ident,
        $mobility:ident, $source:literal
    })*) => {
        /// A kind of kernel object: the rows of Table 1 of the KLOCs paper.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(rename_all = "kebab-case")]
        pub enum ObjectKind {
            $($(#[$doc])* $kind,)*
        }

        impl ObjectKind {
            /// How many kinds there are.
            pub const COUNT: usize = [$($name),*].len();

            /// Every kind, in the order of its index.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$kind),*];

            /// What people call it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// What the paper calls it.
            pub const fn paper_name(self) -> &'static str {
                match self { $(Self::$kind => $paper,)* }
            }

            /// The part of the kernel that uses it. Inodes serve both; they count as storage.
            pub const fn subsystem(self) -> Subsystem {
                match self { $(Self::$kind => Subsystem::$subsystem,)* }
            }

            /// What one object takes, without what its slab page loses at its end.
            pub const fn size(self) -> Bytes {
                match self { $(Self::$kind => Bytes($size),)* }
            }

            /// How the kernel allocates it.
            pub const fn allocator(self) -> Allocator {
                match self { $(Self::$kind => Allocator::$allocator,)* }
            }

            /// Whether it can be moved.
            pub const fn mobility(self) -> Mobility {
                match self { $(Self::$kind => Mobility::$mobility,)* }
            }

            /// Where size, allocator and mobility are from.
            pub const fn source(self) -> &'static str {
                match self { $(Self::$kind => $source,)* }
            }
        }
    };
}

// Sizes: `objsize` of `/proc/slabinfo`, or `struct` sizes of `/sys/kernel/btf/vmlinux`, both of
// Linux 6.18 on x86-64 (2026-11-26).
kinds! {
    /// The inode of a file.
    Inode {
        "inode", "inode_struct", Storage, 1128, Slab, Relocatable,
        "slabinfo: ext4_inode_cache; fs/ext4/super.c ext4_alloc_inode"
    }
    /// A name in a directory.
    Dentry {
        "dentry", "dentry", Storage, 192, Slab, Relocatable,
        "slabinfo: dentry; fs/dcache.c __d_alloc"
    }
    /// Consecutive blocks of a file.
    Extent {
        "extent", "extent", Storage, 40, Slab, Relocatable,
        "slabinfo: ext4_extent_status; fs/ext4/extents_status.c __es_alloc_extent"
    }
    /// A metadata block in a journal's transaction.
    JournalBuffer {
        "journal buffer", "journal", Storage, 120, Slab, Relocatable,
        "slabinfo: jbd2_journal_head; fs/jbd2/journal.c journal_alloc_journal_head"
    }
    /// A page of a file.
    PageCachePage {
        "page-cache page", "page_cache", Storage, 4096, Page, Movable,
        "mm/filemap.c filemap_alloc_folio; moved by mm/migrate.c migrate_folio"
    }
    /// Block input or output under way.
    Bio {
        "bio", "block", Storage, 184, Slab, Relocatable,
        "slabinfo: bio-184; block/bio.c bio_alloc_bioset"
    }
    /// A request to a block device. It lies in the pages of the device's tags.
    BlkMqRequest {
        "blk-mq request", "blk_mq", Storage, 304, Page, Pinned,
        "btf: struct request 248 + virtblk_req 56; block/blk-mq.c blk_mq_alloc_rqs"
    }
    /// A socket.
    Sock {
        "sock", "sock", Network, 2368, Slab, Relocatable,
        "slabinfo: TCP; net/core/sock.c sk_prot_alloc"
    }
    /// The header of a packet.
    Skbuff {
        "skbuff", "skbuff", Network, 256, Slab, Relocatable,
        "slabinfo: skbuff_head_cache; net/core/skbuff.c __alloc_skb"
    }
    /// The data of a packet that a program sends, or that a driver copied.
    SkbuffData {
        "skbuff data", "skbuff->data", Network, 576, Slab, Relocatable,
        "slabinfo: skbuff_small_head; net/core/skbuff.c kmalloc_reserve"
    }
    /// A page that a network device writes packets to.
    ReceiveBuffer {
        "receive buffer", "rx_buf", Network, 4096, Page, Pinned,
        "net/core/page_pool.c page_pool_alloc_pages; mapped for the device"
    }
}

impl ObjectKind {
    /// The kind's place in per-kind tables.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether it takes whole pages of its own, which can be moved with their context.
    pub const fn is_page(self) -> bool {
        matches!(self.allocator(), Allocator::Page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables are indexed by it.
    #[test]
    fn kinds_are_those_of_table_1_in_the_order_of_their_index() {
        assert_eq!(ObjectKind::COUNT, 11);
        for (index, kind) in ObjectKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert!(kind.size().get() <= 4096, "{} fits into a page", kind.name());
            assert!(!kind.source().is_empty());
        }
        let network = ObjectKind::ALL.iter().filter(|k| k.subsystem() == Subsystem::Network);
        assert_eq!(network.count(), 4);
    }

    /// A recording names kinds by their words, not by their numbers.
    #[test]
    fn kinds_are_written_as_words() {
        let json = serde_json::to_string(&ObjectKind::BlkMqRequest).expect("plain");
        assert_eq!(json, "\"blk-mq-request\"");
    }
}
