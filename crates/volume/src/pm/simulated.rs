//! A memory that loses power: which of the stores in flight become durable is for a test to say.
//!
//! The model is that of `terrace-persist` (stores to one cache line become durable in program
//! order, lines in any order), with what a volume needs besides: non-temporal stores, which become
//! durable in any order, each word by itself; fences that wait for the stores of one processor
//! only; and several threads. Atomic instructions order nothing here, though they do on `x86_64`:
//! what survives this model survives weaker processors, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Cpu, Fault, Pm};
use crate::error::Result;

const WORDS_OF_A_LINE: u64 = 8;

/// What is about to happen to a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes are read, or an entry.
    Read,
    /// Bytes are written.
    Write,
    /// An entry is exchanged.
    Exchange,
    /// Lines are written back.
    WriteBack,
    /// A processor fences, or all do.
    Fence,
}

/// What is called in front of each event, by the thread that causes it. An error ends the
/// operation, as a power failure does.
pub type Hook = Arc<dyn Fn(&Simulated, Cpu, Event) -> Result + Send + Sync>;

/// Stores whose order is kept: to the words of a line through the cache, or to one word past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ordered {
    Line(u64),
    Word(u64),
}

#[derive(Clone, Debug, Default)]
struct InFlight {
    /// Stores in order: word, value, and who stored.
    stores: Vec<(u64, u64, Cpu)>,
    /// Up to where a processor has written back what no fence of it has followed.
    written_back: Vec<(Cpu, usize)>,
}

#[derive(Clone, Debug)]
struct State {
    durable: Vec<u64>,
    visible: Vec<u64>,
    flight: BTreeMap<Ordered, InFlight>,
    fences: u64,
}

/// The memory.
#[derive(Clone)]
pub struct Simulated {
    state: Arc<Mutex<State>>,
    hook: Option<Hook>,
    faults: Vec<Fault>,
    grouped: bool,
}

impl core::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let state = self.state();
        f.debug_struct("Simulated")
            .field("bytes", &(state.durable.len() * 8))
            .field("flight", &state.flight)
            .finish_non_exhaustive()
    }
}

impl Simulated {
    /// A memory of so many bytes, which hold remains of earlier use.
    pub fn new(bytes: u64) -> Self {
        // They look like entries in use, as on a medium that held a volume before.
        let remains = |i: u64| (1 << 63) | (i.wrapping_mul(0x9e37_79b9) % 7);
        Self::of((0..bytes / 8).map(remains).collect())
    }

    fn of(words: Vec<u64>) -> Self {
        let state =
            State { visible: words.clone(), durable: words, flight: BTreeMap::new(), fences: 0 };
        Self { state: Arc::new(Mutex::new(state)), hook: None, faults: Vec::new(), grouped: false }
    }

    /// A file under group commit instead of a memory: a fence makes all durable, whoever wrote.
    #[must_use]
    pub fn grouped(mut self) -> Self {
        self.grouped = true;
        self
    }

    /// With mistakes in the volume's order of writing.
    #[must_use]
    pub fn with_faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.faults = faults.into_iter().collect();
        self
    }

    /// With something that is called in front of each event.
    #[must_use]
    pub fn with_hook(mut self, hook: Hook) -> Self {
        self.hook = Some(hook);
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn before(&self, cpu: Cpu, event: Event) -> Result {
        self.hook.as_ref().map_or(Ok(()), |hook| hook(self, cpu, event))
    }

    /// Fences so far.
    pub fn fences(&self) -> u64 {
        self.state().fences
    }

    /// For each group of stores whose order is kept, in how many states a failure can leave it.
    pub fn choices(&self) -> Vec<usize> {
        self.state().flight.values().map(|flight| flight.stores.len() + 1).collect()
    }

    /// The memory after a power failure: of each group, so many stores have become durable.
    #[must_use]
    pub fn after_failure(&self, durable: &[usize]) -> Self {
        let state = self.state();
        let mut words = state.durable.clone();
        for (flight, &count) in state.flight.values().zip(durable) {
            for (word, value, _) in &flight.stores[..count] {
                words[*word as usize] = *value;
            }
        }
        Self { faults: self.faults.clone(), grouped: self.grouped, ..Self::of(words) }
    }

    fn words(at: u64, length: usize) -> std::ops::Range<usize> {
        assert!(at.is_multiple_of(8) && length.is_multiple_of(8), "words are accessed whole");
        (at / 8) as usize..(at as usize + length) / 8
    }
}

impl State {
    fn store(&mut self, cpu: Cpu, word: usize, value: u64, through_cache: bool) {
        self.visible[word] = value;
        let word = word as u64;
        let line = Ordered::Line(word / WORDS_OF_A_LINE);
        let (key, other) =
            if through_cache { (line, Ordered::Word(word)) } else { (Ordered::Word(word), line) };
        let mixed = self.flight.get(&other);
        assert!(
            mixed.is_none_or(|flight| flight.stores.iter().all(|store| store.0 != word)),
            "a word that was stored past the cache and through it has no order here"
        );
        // What stores the word that is durable already leaves nothing to choose.
        if self.durable[word as usize] == value && !self.flight.contains_key(&key) {
            return;
        }
        self.flight.entry(key).or_default().stores.push((word, value, cpu));
    }

    fn retire(&mut self, key: Ordered, count: usize) {
        let Some(flight) = self.flight.get_mut(&key) else { return };
        for (word, value, _) in flight.stores.drain(..count) {
            self.durable[word as usize] = value;
        }
        for (_, up_to) in &mut flight.written_back {
            *up_to = up_to.saturating_sub(count);
        }
        if flight.stores.is_empty() {
            self.flight.remove(&key);
        }
    }

    fn fence(&mut self, who: impl Fn(Cpu) -> bool) {
        self.fences += 1;
        let keys: Vec<Ordered> = self.flight.keys().copied().collect();
        for key in keys {
            let Some(flight) = self.flight.get_mut(&key) else { continue };
            let count = match key {
                Ordered::Line(_) => {
                    let done = flight.written_back.iter().filter(|(cpu, _)| who(*cpu));
                    let count = done.map(|(_, up_to)| *up_to).max().unwrap_or(0);
                    flight.written_back.retain(|(cpu, _)| !who(*cpu));
                    count
                }
                // A later store of the word that is durable takes earlier ones with it.
                Ordered::Word(_) => {
                    flight.stores.iter().rposition(|store| who(store.2)).map_or(0, |last| last + 1)
                }
            };
            self.retire(key, count);
        }
    }
}

impl Pm for Simulated {
    fn size(&self) -> u64 {
        self.state().durable.len() as u64 * 8
    }

    fn is_grouped(&self) -> bool {
        self.grouped
    }

    fn write(&self, cpu: Cpu, at: u64, bytes: &[u8]) -> Result {
        self.before(cpu, Event::Write)?;
        let mut state = self.state();
        for (word, chunk) in Self::words(at, bytes.len()).zip(bytes.chunks_exact(8)) {
            let value = chunk.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            state.store(cpu, word, value, false);
        }
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result {
        // Half before the other threads run, and half after: what is read meanwhile may change.
        let words = Self::words(at, bytes.len());
        let half = bytes.len() / 16 * 8;
        let copy = |words: std::ops::Range<usize>, bytes: &mut [u8]| {
            let state = self.state();
            for (word, chunk) in state.visible[words].iter().zip(bytes.chunks_exact_mut(8)) {
                chunk.copy_from_slice(&word.to_le_bytes());
            }
        };
        let middle = words.start + half / 8;
        copy(words.start..middle, &mut bytes[..half]);
        // Who reads is no lane; a hook tells threads apart by themselves.
        self.before(Cpu(usize::MAX), Event::Read)?;
        copy(middle..words.end, &mut bytes[half..]);
        Ok(())
    }

    fn load(&self, at: u64) -> u64 {
        self.state().visible[at as usize / 8]
    }

    fn exchange(&self, cpu: Cpu, at: u64, current: u64, new: u64) -> std::result::Result<(), u64> {
        // A power failure here is found by the operation that follows.
        let _ = self.before(cpu, Event::Exchange);
        let word = at as usize / 8;
        let mut state = self.state();
        if state.visible[word] != current {
            return Err(state.visible[word]);
        }
        if self.has_fault(Fault::TwoStoreMap) {
            state.store(cpu, word, (current & !0xffff_ffff) | (new & 0xffff_ffff), true);
        }
        state.store(cpu, word, new, true);
        Ok(())
    }

    fn write_back(&self, cpu: Cpu, at: u64, length: u64) -> Result {
        self.before(cpu, Event::WriteBack)?;
        let lines = at / 64..(at + length).div_ceil(64);
        let mut state = self.state();
        for (_, flight) in
            state.flight.range_mut(Ordered::Line(lines.start)..Ordered::Line(lines.end))
        {
            flight.written_back.push((cpu, flight.stores.len()));
        }
        Ok(())
    }

    fn fence(&self, cpu: Cpu) -> Result {
        self.before(cpu, Event::Fence)?;
        let grouped = self.grouped;
        self.state().fence(|who| grouped || who == cpu);
        Ok(())
    }

    fn fence_all(&self, cpu: Cpu) -> Result {
        self.before(cpu, Event::Fence)?;
        self.state().fence(|_| true);
        Ok(())
    }

    fn has_fault(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::VolumeError;

    const A: Cpu = Cpu(0);
    const B: Cpu = Cpu(1);

    fn zeros() -> Simulated {
        Simulated::of(vec![0; 64])
    }

    fn durable(memory: &Simulated, at: u64) -> u64 {
        let nothing = vec![0; memory.choices().len()];
        memory.after_failure(&nothing).load(at)
    }

    /// If a fence waited for everybody, a flush on one lane could never be found wanting.
    #[test]
    fn a_fence_waits_for_its_own_processor_only() {
        let memory = zeros();
        memory.exchange(A, 0, 0, 1).unwrap();
        memory.write(B, 64, &2u64.to_le_bytes()).unwrap();
        memory.write_back(A, 0, 8).unwrap();
        memory.fence(B).unwrap();
        assert_eq!((durable(&memory, 0), durable(&memory, 64)), (0, 2));
        memory.fence(A).unwrap();
        assert_eq!(durable(&memory, 0), 1);
        assert_eq!(memory.choices(), []);
    }

    #[test]
    fn what_was_stored_after_the_write_back_is_not_covered_by_it() {
        let memory = zeros();
        memory.exchange(A, 0, 0, 1).unwrap();
        memory.write_back(A, 0, 8).unwrap();
        memory.exchange(A, 0, 1, 2).unwrap();
        memory.fence(A).unwrap();
        assert_eq!((memory.load(0), durable(&memory, 0)), (2, 1));
    }

    #[test]
    fn words_past_the_cache_become_durable_one_by_one_and_lines_in_order() {
        let memory = zeros();
        memory.write(A, 0, &[1; 24]).unwrap();
        memory.exchange(A, 64, 0, 1).unwrap();
        memory.exchange(A, 72, 0, 1).unwrap();
        assert_eq!(memory.choices(), [3, 2, 2, 2], "a line with two stores, and three words");
        let line_half = memory.after_failure(&[1, 0, 1, 0]);
        assert_eq!((line_half.load(64), line_half.load(72)), (1, 0));
        assert_eq!((line_half.load(0), line_half.load(8)), (0, 0x0101_0101_0101_0101));
    }

    #[test]
    fn a_power_failure_reaches_the_operation() {
        let fails: Hook = Arc::new(|_, _, event| match event {
            Event::Fence => Err(VolumeError::PowerFailure),
            _ => Ok(()),
        });
        let memory = zeros().with_hook(fails);
        memory.write(A, 0, &[1; 8]).unwrap();
        assert!(matches!(memory.fence(A), Err(VolumeError::PowerFailure)));
        assert_eq!(durable(&memory, 0), 0);
    }
}
