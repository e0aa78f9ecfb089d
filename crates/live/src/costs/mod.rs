//! What the mechanisms cost on this machine: measured once, kept in a file.
//!
//! `terrace calibrate` measures ([`measure`]) and writes a [`CostsFile`] with a
//! [`Fingerprint`] of the machine; a run takes the prices from there while the
//! fingerprint is that of the machine it runs on. Without the file, prices are constants
//! of [`crate::activate::calibrate`] and what that times in some 300 µs.
//!
//! | file | concept |
//! |---|---|
//! | [`file`](mod@file) | the file: format, place, whether it is of this machine |
//! | [`measure`](mod@measure) | the measurements |
//! | [`kernel_memory`] | what the kernel's memory management costs, for the simulated kernel |

pub mod file;
pub mod kernel_memory;
pub mod measure;

use terrace_core::{BytesPerSecond, Nanos};
use terrace_economics::{Calibration, Interval};

pub use file::{CostsFile, Fingerprint, Known};

/// Measured prices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// A fault that another thread resolves through userfaultfd, without content.
    pub user_fault: Nanos,
    /// Bringing a page in: `UFFDIO_COPY` without the copy of its content.
    pub bring_in: Nanos,
    /// Taking a page out: `UFFDIO_MOVE` of one page.
    pub take_out: Nanos,
    /// Compressing a page.
    pub compress: Nanos,
    /// Decompressing a page.
    pub decompress: Nanos,
    /// Copying memory of which caches hold a small part.
    pub copy_bandwidth: BytesPerSecond,
    /// Loads that one processor has in flight at most, by what that gains.
    pub parallelism: f64,
    /// What a thread that loads loses while a manager's thread works beside it, as a share
    /// of the manager's time.
    pub interference: f64,
}

impl Measured {
    /// Prices with what was measured in the place of constants. What a manager's thread
    /// does costs its own time, and what the program's threads lose meanwhile.
    pub fn apply(&self, to: Calibration) -> Calibration {
        let beside = |time: Nanos| Nanos::from_f64(time.as_f64() * (1.0 + self.interference));
        let most = self.parallelism.max(1.0);
        Calibration {
            mlp: Interval::new(1.0, 2.0 * most / (1.0 + most), most),
            copy_bandwidth: self.copy_bandwidth,
            promote_fixed: beside(self.bring_in),
            demote_fixed: beside(self.take_out),
            exchange_fixed: beside(self.bring_in + self.take_out),
            user_fault: self.user_fault,
            compress: beside(self.compress),
            // A thread of the program waits for it: nothing is beside.
            decompress: self.decompress,
            ..to
        }
    }

    /// Prices where the kernel moves pages (`terrace attach`): of what was measured, that
    /// which is the machine's own. What faults, moves and codec of the pager cost says
    /// nothing of the kernel's; those prices stay, and outcomes correct them.
    pub fn apply_in_place(&self, to: Calibration) -> Calibration {
        let all = self.apply(to);
        let beside = |time: Nanos| Nanos::from_f64(time.as_f64() * (1.0 + self.interference));
        Calibration {
            mlp: all.mlp,
            copy_bandwidth: all.copy_bandwidth,
            promote_fixed: beside(to.promote_fixed),
            demote_fixed: beside(to.demote_fixed),
            exchange_fixed: beside(to.exchange_fixed),
            ..to
        }
    }

    /// As one word, for the variable that the preloaded library reads.
    pub fn encode(&self) -> String {
        format!(
            "{},{},{},{},{},{},{},{}",
            self.user_fault.get(),
            self.bring_in.get(),
            self.take_out.get(),
            self.compress.get(),
            self.decompress.get(),
            self.copy_bandwidth.get(),
            self.parallelism,
            self.interference
        )
    }

    /// Reads that word.
    pub fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(',');
        let mut next = || words.next()?.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        let measured = Self {
            user_fault: Nanos::from_f64(next()?),
            bring_in: Nanos::from_f64(next()?),
            take_out: Nanos::from_f64(next()?),
            compress: Nanos::from_f64(next()?),
            decompress: Nanos::from_f64(next()?),
            copy_bandwidth: BytesPerSecond(next()?),
            parallelism: next()?,
            interference: next()?,
        };
        words.next().is_none().then_some(measured)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Measured {
        Measured {
            user_fault: Nanos(7000),
            bring_in: Nanos(900),
            take_out: Nanos(1100),
            compress: Nanos(3000),
            decompress: Nanos(1200),
            copy_bandwidth: BytesPerSecond(8e9),
            parallelism: 7.0,
            interference: 0.25,
        }
    }

    #[test]
    fn what_was_measured_takes_the_place_of_constants() {
        let constants = crate::activate::calibrate();
        let prices = example().apply(constants);
        prices.check().expect("prices that can be");
        assert_eq!(prices.user_fault, Nanos(7000));
        assert_eq!(prices.promote_fixed, Nanos(1125), "the program loses a quarter beside it");
        assert_eq!(prices.demote_fixed, Nanos(1375));
        assert_eq!(prices.exchange_fixed, Nanos(2500));
        assert_eq!(prices.decompress, Nanos(1200));
        assert_eq!((prices.mlp.low, prices.mlp.expected, prices.mlp.high), (1.0, 1.75, 7.0));
        assert_eq!(prices.clock, constants.clock, "what is not measured stays");
    }

    /// A price of `UFFDIO_COPY` is none of `move_pages`.
    #[test]
    fn where_the_kernel_moves_pages_only_the_machine_s_own_prices_are_taken() {
        let constants = crate::activate::calibrate();
        let prices = example().apply_in_place(constants);
        prices.check().expect("prices that can be");
        assert_eq!(prices.copy_bandwidth, BytesPerSecond(8e9));
        assert!((prices.mlp.high - 7.0).abs() < 1e-9);
        let quarter_more = Nanos(constants.promote_fixed.get() * 5 / 4);
        assert_eq!(prices.promote_fixed, quarter_more);
        assert_eq!(prices.user_fault, constants.user_fault);
        assert_eq!(
            (prices.compress, prices.decompress),
            (constants.compress, constants.decompress)
        );
    }

    #[test]
    fn the_library_reads_what_the_command_writes() {
        let measured = example();
        assert_eq!(Measured::decode(&measured.encode()), Some(measured));
        for bad in ["", "1,2,3", "1,2,3,4,5,6,7,x", "1,2,3,4,5,6,7,8,9", "1,2,3,4,5,6,7,-1"] {
            assert_eq!(Measured::decode(bad), None, "{bad}");
        }
    }
}
