//! Files: their inodes and names, and the calls that make, open, close and delete them.

use terrace_core::context::{ContextChange, ContextIdentity};
use terrace_core::{ContextId, ObjectKind};

use super::call::{Advice, CallError, MOST};
use super::index::Index;
use super::kernel::{Caller, JOURNAL, Kernel};
use super::slab::{Cache, Object};

const INODE: Cache = Cache::Of(ObjectKind::Inode);
const DENTRY: Cache = Cache::Of(ObjectKind::Dentry);
pub(super) const EXTENT: Cache = Cache::Of(ObjectKind::Extent);
pub(super) const JOURNAL_BUFFER: Cache = Cache::Of(ObjectKind::JournalBuffer);

/// Number of the device that the simulated file system is on.
const DEVICE: u64 = 1;

/// Transfers of a file's pages that are under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transfers {
    pub(super) count: u32,
    /// When those of each kind are done.
    pub(super) read_done: f64,
    pub(super) write_done: f64,
}

/// How far a file is read ahead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadAhead {
    /// The page that a sequential reader wants next.
    pub(super) next: u32,
    /// The end of what was asked for ahead, and how much that was.
    pub(super) end: u32,
    pub(super) window: u32,
    /// The end of what contexts were told of ([`ContextChange::Ahead`]).
    pub(super) told: u32,
    /// How its readers said that they go on. On Linux each open file has this by itself; here, all
    /// that are open of one file have it together, until the last of them is closed.
    pub(super) advised: Advice,
}

/// A file that exists.
#[derive(Debug)]
pub(super) struct File {
    /// The context of its inode; anonymous while that is not in memory.
    pub(super) context: ContextId,
    /// How often it is open or mapped.
    pub(super) opens: u32,
    pub(super) maps: u32,
    /// Whether its name is gone: it is deleted with the last close.
    pub(super) unlinked: bool,
    pub(super) size: u64,
    pub(super) inode: Option<Object>,
    dentry: Option<Object>,
    pub(super) handles: Vec<Object>,
    pub(super) extents: Vec<Object>,
    /// Extents on the disk, while no inode is in memory.
    extents_on_disk: u32,
    /// Pages that the last extent may still grow by.
    pub(super) extent_room: u32,
    /// Whether it has pages that have no place on the disk yet.
    pub(super) unplaced: bool,
    pub(super) journal: Vec<Object>,
    pub(super) index: Index,
    /// Places of dirty pages.
    pub(super) dirty: Vec<u32>,
    pub(super) transfers: Transfers,
    pub(super) ahead: ReadAhead,
    /// Number of its last close.
    close: u64,
}

impl File {
    pub(super) fn new() -> Self {
        Self {
            context: ContextId::ANONYMOUS,
            opens: 0,
            maps: 0,
            unlinked: false,
            size: 0,
            inode: None,
            dentry: None,
            handles: Vec::new(),
            extents: Vec::new(),
            extents_on_disk: 0,
            extent_room: 0,
            unplaced: false,
            journal: Vec::new(),
            index: Index::default(),
            dirty: Vec::new(),
            transfers: Transfers::default(),
            ahead: ReadAhead::default(),
            close: 0,
        }
    }

    /// A file of which nothing is in memory.
    pub(super) fn on_disk(size: u64, extents: u32) -> Self {
        Self { size, extents_on_disk: extents, ..Self::new() }
    }

    pub(super) fn identity(number: u32, generation: u32) -> ContextIdentity {
        ContextIdentity::File { device: DEVICE, inode: u64::from(number), generation }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>()
            + (self.handles.capacity() + self.extents.capacity() + self.journal.capacity())
                * size_of::<Object>()
            + self.dirty.capacity() * 4
            + self.index.heap_bytes()
    }
}

impl Kernel {
    /// A file that is known to exist.
    pub(super) fn file(&mut self, number: u32) -> &mut File {
        if number == JOURNAL {
            return &mut self.journal_file;
        }
        self.files[number as usize].as_mut().expect("the caller has looked it up")
    }

    /// Looks a name up.
    fn look_up(&mut self, number: u32) -> Result<&mut File, CallError> {
        let file = self.files.get_mut(number as usize).and_then(Option::as_mut);
        file.filter(|file| !file.unlinked).map(|file| &mut **file).ok_or(CallError::NoFile(number))
    }

    /// A file that is open.
    pub(super) fn opened(&mut self, number: u32) -> Result<&mut File, CallError> {
        let file = self.files.get_mut(number as usize).and_then(Option::as_mut);
        let file = file.ok_or(CallError::NoFile(number))?;
        if file.handles.is_empty() { Err(CallError::NotOpen(number)) } else { Ok(file) }
    }

    /// Metadata of the file system changes, in so many buffers of the journal on average.
    pub(super) fn change_metadata(
        &mut self,
        caller: &mut Caller,
        number: u32,
        buffers: f64,
    ) -> Result<(), CallError> {
        self.transaction_blocks = self.transaction_blocks.max(1);
        self.journal_owed += buffers;
        while self.journal_owed >= 1.0 {
            self.journal_owed -= 1.0;
            self.transaction_blocks += 1;
            let context = self.file(number).context;
            let buffer = self.allocate(caller, context, JOURNAL_BUFFER)?;
            self.file(number).journal.push(buffer);
            self.transaction.push(number);
        }
        Ok(())
    }

    /// Makes inode and name of a file in memory.
    fn make_inode(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let context = self.new_context();
        let identity = File::identity(number, context.0);
        self.tell(caller, context, ContextChange::Created { identity });
        self.file(number).context = context;
        let inode = self.allocate(caller, context, INODE)?;
        let dentry = self.allocate(caller, context, DENTRY)?;
        let file = self.file(number);
        (file.inode, file.dentry) = (Some(inode), Some(dentry));
        Ok(())
    }

    /// Has a file's inode in memory, and touches it and its name.
    fn load(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        if self.file(number).inode.is_none() {
            self.make_inode(caller, number)?;
            if self.file(number).opens == 0 {
                // Nobody holds it.
                self.now_closed(number);
            }
            // Its block of the inode table.
            self.submit(caller, number, u32::MAX - 1, 1, false)?;
            caller.now = caller.now.max(self.file(number).transfers.read_done);
            let context = self.file(number).context;
            for _ in 0..core::mem::take(&mut self.file(number).extents_on_disk) {
                let extent = self.allocate(caller, context, EXTENT)?;
                self.file(number).extents.push(extent);
            }
        } else {
            let file = self.file(number);
            let (inode, dentry) = (file.inode, file.dentry);
            if let Some(dentry) = dentry {
                self.use_object(caller, dentry, DENTRY, false);
            }
            if let Some(inode) = inode {
                self.use_object(caller, inode, INODE, false);
            }
        }
        Ok(())
    }

    fn add_handle(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let context = self.file(number).context;
        let handle = self.allocate(caller, context, Cache::File)?;
        let file = self.file(number);
        file.handles.push(handle);
        file.opens += 1;
        self.tell(caller, context, ContextChange::Opened);
        Ok(())
    }

    pub(super) fn create(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        if number > MOST {
            return Err(CallError::Number(number));
        }
        if self.files.len() <= number as usize {
            self.files.resize_with(number as usize + 1, || None);
        }
        if self.files[number as usize].is_some() {
            return Err(CallError::FileExists(number));
        }
        let time = &self.costs.time;
        caller.now += time.create_and_unlink.value.as_f64() / 2.0;
        caller.now += time.open_and_close.value.as_f64();
        self.files[number as usize] = Some(Box::new(File::new()));
        self.make_inode(caller, number)?;
        let buffers = self.costs.objects.journal_buffers_of_create.value;
        self.change_metadata(caller, number, buffers)?;
        self.add_handle(caller, number)
    }

    pub(super) fn open(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        self.look_up(number)?;
        caller.now += self.costs.time.open_and_close.value.as_f64();
        self.load(caller, number)?;
        self.add_handle(caller, number)
    }

    pub(super) fn close(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let file = self.opened(number)?;
        let context = file.context;
        if let Some(handle) = file.handles.pop() {
            self.use_object(caller, handle, Cache::File, true);
            self.deallocate(caller, context, Cache::File, handle);
        }
        let file = self.file(number);
        if file.handles.is_empty() {
            file.ahead.advised = Advice::Normal;
        }
        self.let_go(caller, number);
        Ok(())
    }

    /// A handle or a mapping is gone.
    fn let_go(&mut self, caller: &mut Caller, number: u32) {
        let file = self.file(number);
        file.opens -= 1;
        let (opens, unlinked, context) = (file.opens, file.unlinked, file.context);
        self.tell(caller, context, ContextChange::Closed);
        if opens > 0 {
            return;
        }
        if unlinked {
            self.delete(caller, number);
            return;
        }
        self.now_closed(number);
    }

    /// The shrinker may evict a file's inode when it comes to it.
    fn now_closed(&mut self, number: u32) {
        self.closes += 1;
        let closes = self.closes;
        self.file(number).close = closes;
        self.closed.push_back((number, closes));
    }

    pub(super) fn unlink(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        self.look_up(number)?;
        caller.now += self.costs.time.create_and_unlink.value.as_f64() / 2.0;
        self.load(caller, number)?;
        self.change_metadata(caller, number, 0.0)?;
        let file = self.file(number);
        file.unlinked = true;
        if file.opens == 0 {
            self.delete(caller, number);
        }
        Ok(())
    }

    /// Frees all that a file has. Nobody has it open.
    fn delete(&mut self, caller: &mut Caller, number: u32) {
        self.wait_for_transfers(caller, number);
        self.drop_pages(caller, number);
        self.drop_inode(caller, number);
        let context = self.file(number).context;
        self.tell(caller, context, ContextChange::Deleted);
        self.files[number as usize] = None;
    }

    /// Frees inode, name, extents and journal buffers.
    fn drop_inode(&mut self, caller: &Caller, number: u32) {
        let file = self.file(number);
        let context = file.context;
        let (inode, dentry) = (file.inode.take(), file.dentry.take());
        let (extents, journal) =
            (core::mem::take(&mut file.extents), core::mem::take(&mut file.journal));
        file.extent_room = 0;
        for (cache, objects) in [(EXTENT, extents), (JOURNAL_BUFFER, journal)] {
            for object in objects {
                self.deallocate(caller, context, cache, object);
            }
        }
        for (cache, object) in [(INODE, inode), (DENTRY, dentry)] {
            if let Some(object) = object {
                self.deallocate(caller, context, cache, object);
            }
        }
    }

    /// Evicts the inode that was closed first, of those that nothing holds. False if there is
    /// none to look at.
    pub(super) fn evict_oldest(&mut self, caller: &mut Caller) -> bool {
        let Some((number, close)) = self.closed.pop_front() else { return false };
        let Some(file) = self.files.get_mut(number as usize).and_then(Option::as_mut) else {
            return true;
        };
        if file.opens > 0 || file.close != close || file.inode.is_none() {
            return true;
        }
        if file.transfers.count > 0 || file.index.cached > 0 || !file.journal.is_empty() {
            // It has its turn again.
            self.closed.push_back((number, close));
            return true;
        }
        file.extents_on_disk = file.extents.len() as u32;
        let context = file.context;
        self.drop_inode(caller, number);
        self.file(number).context = ContextId::ANONYMOUS;
        self.tell(caller, context, ContextChange::Evicted);
        self.memory.counts.evicted += 1;
        true
    }

    pub(super) fn rename(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        self.look_up(number)?;
        caller.now += self.costs.time.rename.value.as_f64();
        self.load(caller, number)?;
        let context = self.file(number).context;
        let new = self.allocate(caller, context, DENTRY)?;
        if let Some(old) = self.file(number).dentry.replace(new) {
            self.deallocate(caller, context, DENTRY, old);
        }
        self.change_metadata(caller, number, 0.0)?;
        self.tell(caller, context, ContextChange::Renamed);
        Ok(())
    }

    pub(super) fn stat(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        self.look_up(number)?;
        caller.now += self.costs.time.stat.value.as_f64();
        self.load(caller, number)
    }

    pub(super) fn map(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let file = self.opened(number)?;
        file.opens += 1;
        file.maps += 1;
        let context = file.context;
        caller.now += self.costs.time.map.value.as_f64();
        self.tell(caller, context, ContextChange::Opened);
        Ok(())
    }

    pub(super) fn unmap(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let file = self.files.get_mut(number as usize).and_then(Option::as_mut);
        let file = file.ok_or(CallError::NoFile(number))?;
        file.maps = file.maps.checked_sub(1).ok_or(CallError::NotMapped(number))?;
        caller.now += self.costs.time.map.value.as_f64();
        self.let_go(caller, number);
        Ok(())
    }

    /// Touches the inode and the handle of an open file, as reads and writes do.
    pub(super) fn use_open(&mut self, caller: &mut Caller, number: u32, store: bool) {
        let file = self.file(number);
        let (inode, handle) = (file.inode, file.handles.last().copied());
        if let Some(handle) = handle {
            self.use_object(caller, handle, Cache::File, store);
        }
        if let Some(inode) = inode {
            self.use_object(caller, inode, INODE, store);
        }
    }

    /// A file grows by a page at its end: the extent there does, or there is another.
    pub(super) fn grow_extent(
        &mut self,
        caller: &mut Caller,
        number: u32,
        follows: bool,
    ) -> Result<(), CallError> {
        let file = self.file(number);
        file.unplaced = true;
        let context = file.context;
        let more = if file.extents.is_empty() {
            self.costs.objects.extents_of_first_page.value
        } else {
            u32::from(!follows || file.extent_room == 0)
        };
        if more > 0 {
            let room = self.costs.objects.pages_of_extent.value;
            for _ in 0..more {
                let extent = self.allocate(caller, context, EXTENT)?;
                self.file(number).extents.push(extent);
            }
            self.file(number).extent_room = room;
        } else if let Some(&last) = self.file(number).extents.last() {
            self.use_object(caller, last, EXTENT, true);
        }
        let file = self.file(number);
        file.extent_room = file.extent_room.saturating_sub(1);
        Ok(())
    }
}
