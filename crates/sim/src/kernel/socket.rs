//! Sockets: packets from the receive ring to the queue of a socket, and from a program to the
//! network. The other end is another host.

use std::collections::VecDeque;

use terrace_core::context::{ContextChange, ContextIdentity};
use terrace_core::{ContextId, ObjectKind};

use super::call::{CallError, MOST};
use super::kernel::{Caller, Kernel};
use super::memory::{Lines, PAGE, PageId, Role};
use super::slab::{Cache, Object};

const INODE: Cache = Cache::Of(ObjectKind::Inode);
const DENTRY: Cache = Cache::Of(ObjectKind::Dentry);
const SOCK: Cache = Cache::Of(ObjectKind::Sock);
const SKBUFF: Cache = Cache::Of(ObjectKind::Skbuff);
const DATA: Cache = Cache::Of(ObjectKind::SkbuffData);

/// A packet, or what the driver made of several.
#[derive(Clone, Debug)]
struct Packet {
    skbuff: Object,
    /// Headers; of a packet that is sent, all that it carries.
    data: Vec<Object>,
    /// Receive buffers: page and object.
    buffers: Vec<(u32, u64)>,
    bytes: u32,
}

/// A packet that was sent and is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack {
    at: f64,
    socket: u32,
    context: ContextId,
}

/// A socket that is open.
#[derive(Debug)]
pub(super) struct Socket {
    context: ContextId,
    sock: Object,
    inode: Object,
    dentry: Object,
    handle: Object,
    queue: VecDeque<Packet>,
    sent: VecDeque<Packet>,
}

impl Kernel {
    fn look_up_socket(&mut self, number: u32) -> Result<&mut Socket, CallError> {
        let socket = self.sockets.get_mut(number as usize).and_then(Option::as_mut);
        socket.map(|socket| &mut **socket).ok_or(CallError::NoSocket(number))
    }

    pub(super) fn socket(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        if number > MOST {
            return Err(CallError::Number(number));
        }
        if self.sockets.len() <= number as usize {
            self.sockets.resize_with(number as usize + 1, || None);
        }
        if self.sockets[number as usize].is_some() {
            return Err(CallError::SocketExists(number));
        }
        caller.now += self.costs.time.connection.value.as_f64() / 3.0;
        let context = self.new_context();
        let identity = ContextIdentity::Socket { cookie: u64::from(context.0) };
        self.tell(caller, context, ContextChange::Created { identity });
        let inode = self.allocate(caller, context, INODE)?;
        let dentry = self.allocate(caller, context, DENTRY)?;
        let sock = self.allocate(caller, context, SOCK)?;
        let handle = self.allocate(caller, context, Cache::File)?;
        self.tell(caller, context, ContextChange::Opened);
        let (queue, sent) = (VecDeque::new(), VecDeque::new());
        let socket = Socket { context, sock, inode, dentry, handle, queue, sent };
        self.sockets[number as usize] = Some(Box::new(socket));
        Ok(())
    }

    pub(super) fn connect(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let socket = self.look_up_socket(number)?;
        let (context, sock) = (socket.context, socket.sock);
        caller.now += self.costs.time.connection.value.as_f64() / 3.0;
        caller.now += self.costs.device.round_trip.value.as_f64();
        self.use_object(caller, sock, SOCK, true);
        self.tell(caller, context, ContextChange::Accessed);
        Ok(())
    }

    pub(super) fn accept(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        self.socket(caller, number)?;
        caller.now += self.costs.time.connection.value.as_f64() / 3.0;
        Ok(())
    }

    /// Packets arrive: the device writes receive buffers, the driver makes one skbuff of them
    /// (GRO), which knows its socket (KLOCs, section 4.2.3).
    pub(super) fn arrive(
        &mut self,
        caller: &mut Caller,
        number: u32,
        bytes: u32,
    ) -> Result<(), CallError> {
        let socket = self.look_up_socket(number)?;
        let (context, sock) = (socket.context, socket.sock);
        // The processor that takes the interrupt works; nobody waits for that yet.
        let mut driver = Caller { ..*caller };
        let mut buffers = Vec::new();
        let segment = self.costs.objects.segment.value;
        for packet in 0..bytes.div_ceil(segment).max(1) {
            let page = self.memory.reserve(Role::Receive, number, 0);
            let object = self.new_object();
            self.added(&driver, context, object, ObjectKind::ReceiveBuffer, page);
            self.memory.place(PageId::Kernel(page), driver.now)?;
            // The driver looks at the headers.
            self.touch(&mut driver, page, Lines::fields(0, 2, packet == 0));
            buffers.push((page, object));
        }
        let skbuff = self.allocate(&mut driver, context, SKBUFF)?;
        let data = vec![self.allocate(&mut driver, context, DATA)?];
        self.use_object(&mut driver, sock, SOCK, true);
        let packet = Packet { skbuff, data, buffers, bytes };
        self.look_up_socket(number)?.queue.push_back(packet);
        // It is in its socket's queue before the program can know of it.
        caller.now = driver.now;
        Ok(())
    }

    pub(super) fn epoll(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let socket = self.look_up_socket(number)?;
        let (sock, ready) = (socket.sock, !socket.queue.is_empty());
        if !ready {
            return Err(CallError::NothingArrived(number));
        }
        caller.now += self.costs.time.epoll.value.as_f64();
        self.use_object(caller, sock, SOCK, false);
        Ok(())
    }

    pub(super) fn recv(&mut self, caller: &mut Caller, number: u32) -> Result<(), CallError> {
        let socket = self.look_up_socket(number)?;
        let (context, sock, handle) = (socket.context, socket.sock, socket.handle);
        let queue = core::mem::take(&mut socket.queue);
        if queue.is_empty() {
            return Err(CallError::NothingArrived(number));
        }
        caller.now += self.costs.time.message.value.as_f64();
        self.use_object(caller, handle, Cache::File, false);
        self.use_object(caller, sock, SOCK, true);
        self.tell(caller, context, ContextChange::Accessed);
        for packet in queue {
            self.use_object(caller, packet.skbuff, SKBUFF, true);
            let mut left = packet.bytes;
            for &(page, _) in &packet.buffers {
                let lines = left.min(self.costs.objects.segment.value).div_ceil(64);
                left = left.saturating_sub(self.costs.objects.segment.value);
                self.touch(caller, page, Lines::run(0, lines, false));
            }
            self.copy_buffer(caller, packet.bytes, true)?;
            self.free_packet(caller, context, packet);
        }
        Ok(())
    }

    pub(super) fn send(
        &mut self,
        caller: &mut Caller,
        number: u32,
        bytes: u32,
    ) -> Result<(), CallError> {
        let socket = self.look_up_socket(number)?;
        let (context, sock, handle) = (socket.context, socket.sock, socket.handle);
        caller.now += self.costs.time.message.value.as_f64();
        self.use_object(caller, handle, Cache::File, false);
        self.use_object(caller, sock, SOCK, true);
        self.tell(caller, context, ContextChange::Accessed);
        self.copy_buffer(caller, bytes, false)?;
        let skbuff = self.allocate(caller, context, SKBUFF)?;
        // The data is copied into buffers of the slab.
        let room = ObjectKind::SkbuffData.size().get() as u32;
        let mut data = Vec::new();
        for _ in 0..bytes.div_ceil(room).max(1) {
            let object = self.allocate(caller, context, DATA)?;
            let (page, first) = self.slabs.place(object.slab, object.slot);
            self.touch(caller, page, Lines::run(first, room / 64, true));
            data.push(object);
        }
        let packet = Packet { skbuff, data, buffers: Vec::new(), bytes };
        self.look_up_socket(number)?.sent.push_back(packet);
        let at = caller.now + self.costs.device.round_trip.value.as_f64();
        // Clocks of threads differ; acknowledgements come in order.
        let at = self.acks.back().map_or(at, |last| at.max(last.at));
        self.acks.push_back(Ack { at, socket: number, context });
        Ok(())
    }

    /// What was acknowledged until now is freed.
    pub(super) fn acknowledge(&mut self, now: f64) {
        while let Some(ack) = self.acks.front().copied().filter(|ack| ack.at <= now) {
            self.acks.pop_front();
            let socket = self.sockets.get_mut(ack.socket as usize).and_then(Option::as_mut);
            // A socket that was closed has freed its packets.
            let Some(socket) = socket.filter(|socket| socket.context == ack.context) else {
                continue;
            };
            if let Some(packet) = socket.sent.pop_front() {
                let caller = Caller { thread: 0, now: ack.at };
                self.free_packet(&caller, ack.context, packet);
            }
        }
    }

    pub(super) fn close_socket(
        &mut self,
        caller: &mut Caller,
        number: u32,
    ) -> Result<(), CallError> {
        self.look_up_socket(number)?;
        caller.now += self.costs.time.connection.value.as_f64() / 3.0;
        let Some(socket) = self.sockets[number as usize].take() else { return Ok(()) };
        let context = socket.context;
        self.tell(caller, context, ContextChange::Closed);
        for packet in socket.queue.into_iter().chain(socket.sent) {
            self.free_packet(caller, context, packet);
        }
        self.deallocate(caller, context, Cache::File, socket.handle);
        self.deallocate(caller, context, SOCK, socket.sock);
        self.deallocate(caller, context, DENTRY, socket.dentry);
        self.deallocate(caller, context, INODE, socket.inode);
        self.tell(caller, context, ContextChange::Deleted);
        Ok(())
    }

    /// The program's side of a copy.
    fn copy_buffer(
        &mut self,
        caller: &mut Caller,
        bytes: u32,
        store: bool,
    ) -> Result<(), CallError> {
        let mut lines = bytes.div_ceil(64);
        let mut page = 0;
        let most = (PAGE / 64) as u32;
        while lines > 0 {
            self.touch_buffer(caller, page, Lines::run(0, lines.min(most), store))?;
            lines -= lines.min(most);
            page += 1;
        }
        Ok(())
    }

    fn free_packet(&mut self, caller: &Caller, context: ContextId, packet: Packet) {
        self.deallocate(caller, context, SKBUFF, packet.skbuff);
        for data in packet.data {
            self.deallocate(caller, context, DATA, data);
        }
        for (page, object) in packet.buffers {
            self.removed(caller, context, object, ObjectKind::ReceiveBuffer);
            self.memory.release(page, caller.now);
        }
    }
}
