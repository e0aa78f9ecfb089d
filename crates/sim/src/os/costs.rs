//! Page descriptors and watts: arithmetic.

use serde::Serialize;
use terrace_core::{Bytes, Power};

use super::system::PAGE;

/// What the descriptors of so much memory take.
pub fn descriptors(memory: Bytes, each: Bytes) -> Bytes {
    Bytes(memory.get().div_ceil(PAGE.get()) * each.get())
}

/// What a machine draws, in watts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Draw {
    /// Its memory modules.
    pub memory: f64,
    /// Its processors.
    pub processors: f64,
    /// Everything else.
    pub rest: f64,
}

impl Draw {
    /// A machine with so many sockets and so much memory that is powered. `load` is the share of
    /// the time that both are busy, 0 to 1: between idle and busy a straight line.
    pub fn of(power: &Power, sockets: u32, memory: Bytes, load: f64) -> Self {
        let between = |idle: f64, busy: f64| idle + (busy - idle) * load;
        let modules = memory.as_f64() / power.module.value.as_f64();
        let module = between(power.module_idle.value, power.module_busy.value);
        let socket = between(power.socket_idle.value, power.socket_busy.value);
        Self {
            memory: modules * module,
            processors: f64::from(sockets) * socket,
            rest: power.rest.value,
        }
    }

    /// All of it.
    pub fn total(self) -> f64 {
        self.memory + self.processors + self.rest
    }

    /// The memory's share, 0 to 1.
    pub fn memory_share(self) -> f64 {
        self.memory / self.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines;

    /// Dapper, section 2.4: a terabyte takes 14 or 16 GB.
    #[test]
    fn a_terabyte_takes_what_the_paper_says() {
        assert_eq!(descriptors(Bytes::gib(1024), Bytes(56)), Bytes::gib(14));
        assert_eq!(descriptors(Bytes::gib(1024), Bytes(64)), Bytes::gib(16));
    }

    #[test]
    fn memory_draws_by_its_modules_and_nothing_else_does() {
        let machine = machines::builtin("four-node").expect("built in");
        let power = machine.power.expect("the file has it");
        let [none, half, all] = [0, 256, 512].map(|gib| Draw::of(&power, 4, Bytes::gib(gib), 1.0));
        assert!(none.memory.abs() < 1e-9);
        assert!((all.memory - 2.0 * half.memory).abs() < 1e-9);
        assert!((all.memory - 32.0 * power.module_busy.value).abs() < 1e-9);
        assert_eq!((all.processors, all.rest), (none.processors, none.rest));
        let middle = Draw::of(&power, 4, Bytes::gib(512), 0.5).total();
        let idle = Draw::of(&power, 4, Bytes::gib(512), 0.0).total();
        assert!((middle - f64::midpoint(idle, all.total())).abs() < 1e-9);
    }
}
