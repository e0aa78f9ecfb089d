//! One of Terrace's threads, with what it needs to serve a fault or to make room alone. What it does
//! is with what it does it to: [`crate::fault`], [`crate::evict`], [`crate::fork`], [`crate::huge`].

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::*};

use terrace_core::Nanos;

use crate::evict::stage::{Victim, WINDOW};
use crate::fault::content::Aligned;
use crate::fault::readahead::Batch;
use crate::pager::{MANAGER, Pager};
use crate::space::proc_maps::Pagemap;
use crate::spill::reader::Reader;
use crate::spill::writer::Desk;
use crate::store::codec::Codec;
use crate::sys::PAGE;
use crate::workers::manager::Tools;

/// What other threads need to know of a worker.
#[derive(Default)]
pub struct WorkerSlot {
    /// The region epoch at which it began what it is doing; 0 while it does nothing.
    pub busy: AtomicU64,
    /// Its thread, 0 if there is none.
    pub tid: AtomicI32,
    /// Not 0 from before its thread is created until that has ended, however it ends: the kernel
    /// clears it, where others go on with the memory (`CLONE_CHILD_CLEARTID`).
    pub(crate) lives: AtomicI32,
    /// When it began to serve a fault, ns; 0 while it serves none.
    pub serving_since: AtomicU64,
    /// Where its [`crate::workers::worker::Worker`] is, on its stack; 0 before it is at work.
    pub(crate) at: AtomicUsize,
    /// The same of what the manager and the writer have beside.
    pub(crate) beside: AtomicUsize,
}

/// One of Terrace's threads, with what it needs to serve a fault alone.
pub struct Worker<'p> {
    /// What all share.
    pub pager: &'p Pager,
    /// Its number.
    pub id: usize,
    /// Its compressor.
    pub codec: Codec,
    pub(crate) pagemap: Pagemap,
    /// Where the content of a page is unpacked to.
    pub(crate) buffer: Box<Aligned<PAGE>>,
    pub(crate) batch: Batch,
    /// Pages that it is about to move out, empty in between; there is room for a window's.
    pub(crate) staged: Vec<Option<Victim>>,
    /// Reads the spill file.
    pub(crate) reader: Reader,
    /// Whether it runs only where nobody else wants to.
    pub polls: bool,
    /// Until when (ns) the background need not try to make room.
    pub stuck_until: u64,
    /// Rounds of making room, in a row, that only made pages this process's alone.
    pub(crate) unshared: u32,
    /// What was counted for the fault that it serves.
    pub counted: Nanos,
    /// Whether that fault is ours: its page was armed.
    pub armed: bool,
}

impl<'p> Worker<'p> {
    /// A worker. Opens files: to be made in its own thread.
    pub fn new(pager: &'p Pager, id: usize) -> Self {
        Self {
            pager,
            id,
            codec: Codec::new(),
            pagemap: Pagemap::open(),
            buffer: Box::new(Aligned([0; PAGE])),
            batch: Batch::new(),
            staged: Vec::with_capacity(WINDOW),
            reader: if pager.config.spill.is_some() { Reader::new() } else { Reader::none() },
            polls: false,
            stuck_until: 0,
            unshared: 0,
            counted: Nanos::ZERO,
            armed: false,
        }
    }

    /// It stays where it is from here on, as long as its thread lives: a forked child finds it there,
    /// to give back what it holds ([`Worker::disband`]).
    pub(crate) fn settle_down(&mut self) {
        let at = core::ptr::from_mut(self).expose_provenance();
        self.pager.workers[self.id].at.store(at, Release);
    }

    /// Gives its memory back, at the end of its thread.
    pub(crate) fn give_back(mut self) {
        self.batch.give_back();
        self.reader.give_back();
    }

    /// Gives back the memory of workers that are not here any more: of the parent of a forked child
    /// (each generation would have that of all before it), or of a program that is on plain memory
    /// for good.
    ///
    /// # Safety
    /// None of their threads exists, and the stacks are as they had left them.
    pub(crate) unsafe fn disband(pager: &Pager) {
        for (id, slot) in pager.workers.iter().enumerate() {
            let (at, beside) = (slot.at.swap(0, AcqRel), slot.beside.swap(0, AcqRel));
            let at = core::ptr::with_exposed_provenance::<ManuallyDrop<Self>>(at);
            if at.is_null() {
                continue;
            }
            // SAFETY: the caller's. A fork is made while nobody is at work: of a worker that serves
            // faults meanwhile only the content of buffers changes.
            let mut worker = unsafe { at.read() };
            // Not `pagemap`: a descriptor in the table of the parent's threads.
            let Self { codec, buffer, batch, staged, reader, .. } = &mut *worker;
            batch.give_back();
            reader.give_back();
            // SAFETY: taken from a worker that nobody uses and that is not dropped.
            unsafe {
                core::ptr::drop_in_place(codec);
                core::ptr::drop_in_place(buffer);
                core::ptr::drop_in_place(staged);
            }
            match (beside, id) {
                (0, _) => {}
                // SAFETY: as above.
                (at, MANAGER) => unsafe { Tools::disband(at) },
                // SAFETY: as above: only a writer has noted something, too.
                (at, _) => unsafe { Desk::disband(at) },
            }
        }
    }
}
