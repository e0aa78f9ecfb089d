//! Ladders whose faults the kernel serves: DRAM, and swap on compressed memory. `terrace run
//! --tiers` and `terrace attach --tiers` keep programs within them by the kernel engine.
//!
//! ```toml
//! ladder = 1
//! engine = "kernel"
//!
//! [[tier]]
//! memory = "dram"
//! capacity = "4GiB"
//!
//! [[tier]]
//! memory = "swap"           # zram, which is made if there is none
//! ```

use serde::Serialize;

use crate::ladder::{Invalid, Memory, Named, WrittenLadder};
use crate::machine::Scalar;
use crate::units::Bytes;

/// Who serves the page faults of what is not resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LadderEngine {
    /// A library of Terrace's in the program.
    Pager,
    /// The kernel.
    Kernel,
}

impl Scalar for LadderEngine {
    const EXPECTED: &'static str = "an engine, \"pager\" or \"kernel\"";
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "pager" => Ok(Self::Pager),
            "kernel" => Ok(Self::Kernel),
            _ => Err(format!("`{text}` is no engine (there are `pager` and `kernel`)")),
        }
    }
}

/// DRAM, and swap below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ByKernel {
    /// What may be in DRAM at once of what can be swapped, in all processes together.
    pub resident: Bytes,
}

impl ByKernel {
    /// What a file says that names the kernel engine.
    pub(crate) fn of(written: &WrittenLadder) -> Result<Self, Invalid> {
        let [first, second] = written.tiers.as_slice() else {
            let what = "with the kernel engine a ladder has two tiers, `dram` and `swap`";
            return Err(("tier".to_owned(), what.to_owned()));
        };
        let bad = |tier: usize, name: &str, what: &str| {
            Err((format!("tier[{tier}].{name}"), what.to_owned()))
        };
        if first.memory.0 != Named::Dram {
            return bad(0, "memory", "with the kernel engine the first tier is `dram`");
        }
        if second.memory.0 != Named::InPlace(Memory::Swap) {
            return bad(1, "memory", "with the kernel engine the second tier is `swap`");
        }
        for (i, tier) in [first, second].into_iter().enumerate() {
            if tier.read_latency.0.is_some() || tier.write_latency.0.is_some() {
                let name =
                    if tier.read_latency.0.is_some() { "read-latency" } else { "write-latency" };
                return bad(i, name, "has no effect with the kernel engine");
            }
            if tier.path.is_some() {
                return bad(i, "path", "only a `file` or `dax` has one");
            }
        }
        if second.capacity.0.is_some() {
            return bad(1, "capacity", "the swap that is there, or memory, says how much it holds");
        }
        written.refuse_migration()?;
        match first.capacity.0 {
            None => bad(0, "memory", "needs a capacity: what may be resident in it"),
            Some(Bytes::ZERO) => bad(0, "capacity", "must be above zero"),
            Some(resident) => Ok(Self { resident }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::{Ladder, LadderFile};

    const GOOD: &str = "ladder = 1\nengine = \"kernel\"\n\n[[tier]]\nmemory = \"dram\"\n\
                        capacity = \"64MiB\"\n\n[[tier]]\nmemory = \"swap\"\n";

    fn parse(text: &str) -> Result<LadderFile, crate::machine::MachineError> {
        LadderFile::parse("tiers.toml", text)
    }

    #[test]
    fn a_file_may_name_the_engine() {
        let ladder = parse(GOOD).expect("a good file");
        assert_eq!(ladder, LadderFile::ByKernel(ByKernel { resident: Bytes::mib(64) }));
        assert_eq!(ladder.names(), ["dram", "swap"]);
        // Pages do not stay mapped there.
        let error = Ladder::parse("tiers.toml", GOOD).expect_err("no such ladder");
        assert_eq!((error.line, error.field.as_deref()), (2, Some("engine")));
        let pager = GOOD.replace("kernel", "pager").replace("swap", "compressed");
        assert!(matches!(parse(&pager), Ok(LadderFile::Compressing(_))), "named, and as before");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_field() {
        for (from, to, line, field) in [
            ("\"kernel\"", "\"colonel\"", 2, "engine"),
            ("\"kernel\"", "\"pager\"", 9, "tier[1].memory"),
            ("\"kernel\"", "7", 2, "engine"),
            ("\"dram\"", "\"numa:0\"", 5, "tier[0].memory"),
            ("\"swap\"", "\"compressed\"", 9, "tier[1].memory"),
            ("\"swap\"", "\"swap\"\ncapacity = \"1GiB\"", 10, "tier[1].capacity"),
            ("\"swap\"", "\"swap\"\npath = \"f\"", 10, "tier[1].path"),
            ("\"swap\"", "\"swap\"\nread-latency = \"8us\"", 10, "tier[1].read-latency"),
            ("capacity = \"64MiB\"\n", "", 5, "tier[0].memory"),
            ("\"64MiB\"", "\"0\"", 6, "tier[0].capacity"),
            ("\n[[tier]]\nmemory = \"swap\"\n", "", 4, "tier"),
            (
                "\n\n[[tier]]\nmemory = \"dram",
                "\n[migration]\nbatch = 3\n\n[[tier]]\nmemory = \"dram",
                4,
                "migration.batch",
            ),
        ] {
            let error = parse(&GOOD.replacen(from, to, 1))
                .expect_err(&format!("{from} -> {to} was accepted"));
            assert_eq!((error.line, error.field.as_deref()), (line, Some(field)), "{error}");
        }
        // Where pages stay mapped nobody serves faults.
        let mapped = "ladder = 1\nengine = \"pager\"\n\n[[tier]]\nmemory = \"numa:0\"\n\n\
                      [[tier]]\nmemory = \"numa:1\"\n";
        let error = parse(mapped).expect_err("no engine");
        assert_eq!((error.line, error.field.as_deref()), (2, Some("engine")));
    }
}
