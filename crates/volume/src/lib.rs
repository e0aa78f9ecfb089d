//! Persistent memory as a block device that never tears a sector.
//!
//! For servers (NBD, FUSE) and programs that want a disk's guarantee on memory: a sector that is
//! being written when the power fails, or when the process is killed, is wholly old or wholly new
//! afterwards. DAX devices, files on DAX, plain files and block devices can hold a volume; what
//! survives what on each is told by [`Durability`].
//!
//! A map leads from sectors to blocks. A write stores its data in a free block, makes them
//! durable, and then exchanges one 8-byte entry of the map. Which blocks are free is derived from
//! the map at mount, so no second structure can disagree with it. The guarantee is for each
//! sector by itself. `docs/volume-format.md` specifies the format.
//!
//! | file | concept |
//! |---|---|
//! | [`pm`] | the medium: stores, write-backs, fences |
//! | [`device`] | what is behind a block device, and what it holds |
//! | [`image`] | files and devices that hold a volume, and who may use them |
//! | [`superblock`] | what a volume is, at both of its ends |
//! | [`entry`] | an entry of the map |
//! | [`volume`] | a mounted volume, and reading |
//! | [`lane`] | writing, one thread each |
//! | [`group`] | writes that share a commit |
//! | [`free`] | blocks that hold no sector |
//! | [`nbd`] | a volume as a network block device |
//! | [`fuse`] | a volume as a file |
//! | [`ublk`] | a volume as a block device of the kernel's |
//! | [`check`] | what is wrong with a volume |
//! | [`maintain`] | making, growing, repairing |
//! | [`error`] | why something was not done |

pub mod check;
pub mod device;
pub mod entry;
pub mod error;
mod free;
pub mod fuse;
mod group;
pub mod image;
pub mod lane;
pub mod maintain;
pub mod nbd;
pub mod pm;
pub mod superblock;
pub mod ublk;
pub mod volume;

pub use check::{Damage, Report, Superblocks, Usage};
pub use entry::{Block, Content, Entry};
pub use error::{Result, VolumeError};
pub use image::{Image, Medium};
pub use lane::Lane;
pub use maintain::{Repaired, create, grow, repair};
pub use pm::{Cpu, Durability, Fault, Pm};
pub use superblock::{SectorSize, Superblock};
pub use volume::{Mount, Volume};
