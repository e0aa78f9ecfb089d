//! The way out of DRAM.
//!
//! # The path of an eviction
//!
//! 1. `workers/manager.rs`: `manage`: the manager ticks, and makes room when it is woken
//! 2. `evict/headroom.rs`: `keep_headroom`, `make_headroom`: makes room before faults need it
//! 3. `evict/reclaim.rs`: `make_room`: one round: pages are staged, or the oldest of the staged
//!    are compressed
//! 4. `evict/stage.rs`: `stage`, `ask`, `choose`, `find_victim`: asks the policy for victims
//!    and looks them up
//! 5. `decide/decider.rs`: `listen`, `pressure`: the policy hears of faults first, then names
//!    pages
//! 6. `evict/stage.rs`: `move_batch`, `move_run`, `take_run`, `stage_one`: frames move out of
//!    the program's mapping, neighbours in one call
//! 7. `sys/uffd.rs`: `move_frames`: the call, and which pages really moved
//! 8. `evict/quiet_window.rs`: `pays`, `window`: whether a batch is worth a quiet window; the
//!    other processors stand still meanwhile
//! 9. `evict/staging.rs`: `push`, `owner_of`, `mark_done`, `drop_done`: the ring of pages on
//!    their way; a touch takes one back
//! 10. `evict/compress.rs`: `compress_oldest`, `compress_slot`, `pack`: the oldest is
//!     compressed, or put back
//! 11. `store/slabs.rs`: `put`: where compressed pages lie
//! 12. `spill/writer.rs`: `fill_batch`, `write_back`: beyond the store limit the oldest go to
//!     the file
//!
//! # Files
//!
//! | file | concept |
//! |---|---|
//! | [`compress`] | the oldest of the ring are compressed |
//! | [`headroom`] | room ahead of need |
//! | [`pinned_pages`] | pages that stay |
//! | [`quiet_window`] | moments in which all other processors stand still |
//! | [`reclaim`] | making room, and compressing what has left the mapping |
//! | [`stage`] | victims leave the mapping |
//! | [`staging`] | the ring of pages between both |
//! | [`unshare`] | pages that are shared since a fork become this process's alone |

pub(crate) mod compress;
pub(crate) mod headroom;
pub mod pinned_pages;
pub mod quiet_window;
pub(crate) mod reclaim;
pub(crate) mod stage;
pub mod staging;
pub(crate) mod unshare;

use core::sync::atomic::AtomicU32;

use terrace_policy::Needs;

use crate::config::RunConfig;
use crate::evict::quiet_window::Quiet;
use crate::evict::staging::{Staging, StagingRing};
use crate::store::density::Density;
use crate::sys::spin::SpinLock;

/// Pages on their way out.
pub struct Eviction {
    /// Where their frames are meanwhile.
    pub staging: Staging,
    /// The ring over the slots; held by whoever makes room.
    pub(crate) ring: SpinLock<StagingRing>,
    /// Whether the policy wants to know of touches there.
    pub(crate) wants_samples: bool,
    /// Moments in which pages leave at little cost.
    pub(crate) quiet: Quiet,
    /// How tightly pages are packed.
    pub(crate) density: Density,
    /// Taken by the one worker that makes pages this process's alone, and may fault itself.
    pub(crate) unsharing: AtomicU32,
}

impl Eviction {
    /// Nothing on its way yet, and room for so many pages. An error number if there is no address
    /// space for them.
    pub(crate) fn new(
        config: &RunConfig,
        slots: u32,
        needs: Needs,
        density: Density,
    ) -> Result<Self, i32> {
        Ok(Self {
            staging: Staging::new(slots)?,
            ring: SpinLock::new(StagingRing::new(slots, 4096, config.sampling_cap)),
            wants_samples: needs.samples || needs.scans,
            quiet: Quiet::open(&config.dir),
            density,
            unsharing: AtomicU32::new(0),
        })
    }
}
