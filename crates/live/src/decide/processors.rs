//! How busy the machine's processors are: what a cycle of Terrace's own time costs the program.
//!
//! Read from the first line of `/proc/stat`, by whoever is about to propose something
//! that takes processor time, and not more often than the figures are good for. What is not known (yet) is
//! not taken for free: the processors count as busy until two readings say otherwise.

use crate::sys;

/// Readings are so far apart (ns) at least: the kernel counts in steps of 10 ms.
const APART: u64 = 100_000_000;
/// A share of a longer time (ns) than this says nothing of now.
const STALE: u64 = 2_000_000_000;

/// The load of all processors together.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessorLoad {
    last: Option<Reading>,
    /// 0 (idle) to 1, and when it was found (ns).
    share: Option<(f64, u64)>,
}

/// Ticks of all processors since the machine began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    at: u64,
    idle: u64,
    all: u64,
}

impl ProcessorLoad {
    /// Reads for the first time.
    pub fn begin() -> Self {
        let mut load = Self::default();
        load.now();
        load
    }

    /// The load of a moment ago, 0 to 1; 1 where it is not known.
    pub fn now(&mut self) -> f64 {
        let now = sys::now();
        if self.is_due(now) {
            let mut buffer = [0u8; 512];
            let read = sys::read_file(c"/proc/stat", &mut buffer).map(|read| &buffer[..read]);
            self.take(read.and_then(|stat| reading(stat, now)));
        }
        self.at(now)
    }

    fn is_due(&self, now: u64) -> bool {
        self.last.is_none_or(|last| now.saturating_sub(last.at) >= APART)
    }

    fn take(&mut self, reading: Option<Reading>) {
        self.share = self.last.zip(reading).and_then(|(last, reading)| {
            let all = reading.all.checked_sub(last.all).filter(|&all| all > 0)?;
            // The kernel's figures of idle time may step back.
            let idle = reading.idle.saturating_sub(last.idle).min(all);
            let is_recent = reading.at.saturating_sub(last.at) <= STALE;
            is_recent.then_some((1.0 - idle as f64 / all as f64, reading.at))
        });
        self.last = reading;
    }

    fn at(&self, now: u64) -> f64 {
        let recent = self.share.filter(|(_, at)| now.saturating_sub(*at) <= STALE);
        recent.map_or(1.0, |(share, _)| share)
    }
}

/// `cpu  user nice system idle iowait irq softirq steal guest guest_nice`. Who waits for a disk
/// leaves the processor idle; guests are counted in user and nice; what a hypervisor took is not
/// there for us.
fn reading(stat: &[u8], at: u64) -> Option<Reading> {
    let line = stat.split(|&b| b == b'\n').next()?;
    let mut fields = line.split(|&b| b == b' ').filter(|field| !field.is_empty());
    if fields.next()? != b"cpu" {
        return None;
    }
    let (mut idle, mut all, mut count) = (0u64, 0u64, 0);
    for (number, field) in fields.take(8).enumerate() {
        let ticks: u64 = core::str::from_utf8(field).ok()?.parse().ok()?;
        all = all.saturating_add(ticks);
        if matches!(number, 3 | 4) {
            idle = idle.saturating_add(ticks);
        }
        count += 1;
    }
    (count >= 4).then_some(Reading { at, idle, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(share: f64) -> u32 {
        (share * 100.0).round() as u32
    }

    #[test]
    fn ticks_are_read_as_the_kernel_writes_them() {
        let text = b"cpu  10 20 30 400 50 6 7 8 900 1000\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(reading(text, 5), Some(Reading { at: 5, idle: 450, all: 531 }));
        assert_eq!(reading(b"cpu  1 2 3 4", 5).map(|r| r.idle), Some(4), "an old kernel's");
        for nonsense in [&b""[..], b"cpu  1 2 3", b"cpu0 1 2 3 4 5", b"cpu a b c d"] {
            assert_eq!(reading(nonsense, 5), None, "{nonsense:?}");
        }
    }

    /// A price of 0 would let anything pass that has any benefit.
    #[test]
    fn processors_are_busy_until_two_readings_say_otherwise() {
        let mut load = ProcessorLoad::default();
        let at = |at, idle, all| Some(Reading { at, idle, all });
        assert_eq!(percent(load.at(0)), 100, "nobody looked");
        load.take(at(0, 1000, 1000));
        assert_eq!(percent(load.at(1)), 100, "one reading is of the time since the machine began");
        load.take(at(APART, 1015, 1020));
        assert_eq!(percent(load.at(APART)), 25);
        assert!(!load.is_due(2 * APART - 1) && load.is_due(2 * APART));
        assert_eq!(percent(load.at(APART + STALE + 1)), 100, "that was long ago");
        load.take(at(2 * APART, 1010, 1040));
        assert_eq!(percent(load.at(2 * APART)), 100, "idle time has stepped back");
        load.take(at(2 * APART + STALE + 1, 2010, 2040));
        assert_eq!(percent(load.at(2 * APART + STALE + 1)), 100, "a mean of too long a time");
        load.take(None);
        assert_eq!(percent(load.at(2 * APART + STALE + 2)), 100, "the kernel does not say");
    }

    #[test]
    fn the_machine_says_how_busy_it_is() {
        let mut load = ProcessorLoad::default();
        assert_eq!(percent(load.now()), 100);
        let last = load.last.expect("Linux tells");
        assert!(last.all >= last.idle && last.all > 0);
    }
}
