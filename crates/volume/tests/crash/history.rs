//! What each sector may hold after a power failure, from what was asked for and acknowledged.

/// A write to one sector: the value 0 stands for zeros.
#[derive(Clone, Copy, Debug)]
struct Written {
    value: u64,
    began: u64,
    ended: Option<u64>,
    durable: bool,
    /// Whether it may never have happened, so that no later flush makes it durable.
    uncertain: bool,
}

/// All writes so far.
#[derive(Clone, Debug)]
pub(crate) struct History {
    clock: u64,
    sectors: Vec<Vec<Written>>,
}

/// A write of sectors that is under way: for each sector, which one it is.
#[derive(Debug)]
pub(crate) struct Ticket(Vec<(usize, usize)>);

impl History {
    pub(crate) fn new(sectors: u64) -> Self {
        let zeros = Written { value: 0, began: 0, ended: Some(0), durable: true, uncertain: false };
        Self { clock: 0, sectors: vec![vec![zeros]; sectors as usize] }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn begin(&mut self, lba: u64, values: &[u64]) -> Ticket {
        let began = self.tick();
        let places = values.iter().enumerate().map(|(i, &value)| {
            let sector = lba as usize + i;
            self.sectors[sector].push(Written {
                value,
                began,
                ended: None,
                durable: false,
                uncertain: false,
            });
            (sector, self.sectors[sector].len() - 1)
        });
        Ticket(places.collect())
    }

    pub(crate) fn end(&mut self, ticket: &Ticket, durable: bool) {
        let now = self.tick();
        for &(sector, place) in &ticket.0 {
            let written = &mut self.sectors[sector][place];
            (written.ended, written.durable) = (Some(now), durable);
        }
    }

    pub(crate) fn flush_begins(&mut self) -> u64 {
        self.tick()
    }

    /// A flush is complete that began at a time.
    pub(crate) fn flush_ends(&mut self, began: u64) {
        for written in self.sectors.iter_mut().flatten() {
            written.durable |=
                !written.uncertain && written.ended.is_some_and(|ended| ended < began);
        }
    }

    /// The process ended: what was under way has happened or never will. Under group commit that
    /// is so of all that was not flushed, because the map is in the process's memory.
    pub(crate) fn killed(&mut self, grouped: bool) {
        let now = self.tick();
        for written in self.sectors.iter_mut().flatten() {
            written.uncertain |= written.ended.is_none() || grouped && !written.durable;
            written.ended.get_or_insert(now);
        }
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// What a sector may hold: whatever was not replaced, for certain and for good, by a later
    /// write. Of writes that overlapped in time, either may be the later one.
    pub(crate) fn may_hold(&self, lba: u64) -> Vec<u64> {
        let all = &self.sectors[lba as usize];
        let is_gone = |old: &Written| {
            all.iter().any(|new| new.durable && old.ended.is_some_and(|ended| ended < new.began))
        };
        all.iter().filter(|written| !is_gone(written)).map(|written| written.value).collect()
    }
}
