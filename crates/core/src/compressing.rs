//! Ladders whose slower tiers cannot be reached in place: compressed RAM, and a file
//! below it. `terrace run --tiers` makes them.
//!
//! ```toml
//! ladder = 1
//!
//! [[tier]]
//! memory = "dram"
//! capacity = "4GiB"
//!
//! [[tier]]
//! memory = "compressed"
//! capacity = "2GiB"         # the oldest go below when there is more
//!
//! [[tier]]
//! memory = "file"           # or "dax": used as memory
//! path = "/var/tmp/cold"
//! capacity = "64GiB"
//! ```

use std::path::PathBuf;

use serde::Serialize;

use crate::ladder::{Invalid, Named, WrittenLadder};
use crate::units::Bytes;

/// DRAM, compressed RAM, and what lies below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compressing {
    /// Managed memory that may be resident at once, in all processes together.
    pub dram: Bytes,
    /// RAM that compressed pages may use in a process before they go to the file; `None`
    /// for as much as it has of DRAM.
    pub store: Option<Bytes>,
    /// The file, if there is one.
    pub spill: Option<SpillTier>,
}

/// The lowest tier: a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpillTier {
    /// Where; each process makes its own beside it.
    pub path: PathBuf,
    /// Whether it is mapped and used as memory (`dax`).
    pub mapped: bool,
    /// How large it may be; `None` for the default.
    pub size: Option<Bytes>,
}

impl Compressing {
    /// The tiers' names, fastest first.
    pub fn names(&self) -> Vec<&'static str> {
        let below = self.spill.as_ref().map(|spill| if spill.mapped { "dax" } else { "file" });
        ["dram", "compressed"].into_iter().chain(below).collect()
    }

    /// What a file says that names one of these memories.
    pub(crate) fn of(written: &WrittenLadder) -> Result<Self, Invalid> {
        let bad = |tier: usize, name: &str, message: &str| {
            Err((format!("tier[{tier}].{name}"), message.to_owned()))
        };
        let tiers = &written.tiers;
        let expected = ["`dram` is the first tier", "`compressed` is below `dram`"];
        for (i, tier) in tiers.iter().enumerate() {
            match (i, &tier.memory.0) {
                (0, Named::Dram) | (1, Named::Compressed) | (2, Named::File | Named::Dax) => {}
                (_, Named::InPlace(memory)) => {
                    let what = format!(
                        "`{memory}` holds pages that stay mapped; it makes no ladder with `dram` \
                         and `compressed`"
                    );
                    return bad(i, "memory", &what);
                }
                _ => {
                    let what = expected.get(i).unwrap_or(&"below `compressed` is one file");
                    return bad(i, "memory", what);
                }
            }
            for (given, name) in [
                (tier.read_latency.0.is_some(), "read-latency"),
                (tier.write_latency.0.is_some(), "write-latency"),
            ] {
                if given {
                    return bad(i, name, "is measured while the program runs");
                }
            }
            if tier.path.is_some() && i < 2 {
                return bad(i, "path", "only a `file` or `dax` has one");
            }
            if tier.capacity.0.is_some_and(Bytes::is_zero) {
                return bad(i, "capacity", "must be above zero");
            }
        }
        for (given, name) in [
            (written.migration.limit.0.is_some(), "migration.limit"),
            (written.migration.batch.0.is_some(), "migration.batch"),
        ] {
            if given {
                let what = "pages come back when they are touched, which cannot be limited";
                return Err((name.to_owned(), what.to_owned()));
            }
        }
        let Some(dram) = tiers[0].capacity.0 else {
            return bad(0, "memory", "`dram` needs a capacity: what may be resident");
        };
        let [_, compressed, below @ ..] = tiers.as_slice() else {
            return bad(0, "memory", "a tier `compressed` must be below it");
        };
        if below.is_empty() && compressed.capacity.0.is_some() {
            return bad(1, "capacity", "what does not fit needs a `file` or `dax` below");
        }
        let spill = match below.first() {
            None => None,
            Some(tier) => match tier.path.as_deref() {
                None | Some("") => return bad(2, "memory", "needs a `path`"),
                Some(path) => Some(SpillTier {
                    path: path.into(),
                    mapped: matches!(tier.memory.0, Named::Dax),
                    size: tier.capacity.0,
                }),
            },
        };
        Ok(Self { dram, store: compressed.capacity.0, spill })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::{Ladder, LadderFile};

    const GOOD: &str = "ladder = 1\n\n[[tier]]\nmemory = \"dram\"\ncapacity = \"64MiB\"\n\n\
                        [[tier]]\nmemory = \"compressed\"\ncapacity = \"32MiB\"\n\n[[tier]]\n\
                        memory = \"file\"\npath = \"cold\"\ncapacity = \"1GiB\"\n";

    fn parse(text: &str) -> Result<LadderFile, crate::machine::MachineError> {
        LadderFile::parse("tiers.toml", text)
    }

    #[test]
    fn a_file_may_name_compressed_memory_and_what_is_below() {
        let spill = |mapped| SpillTier { path: "cold".into(), mapped, size: Some(Bytes::gib(1)) };
        let whole = |mapped| Compressing {
            dram: Bytes::mib(64),
            store: Some(Bytes::mib(32)),
            spill: Some(spill(mapped)),
        };

        assert_eq!(parse(GOOD), Ok(LadderFile::Compressing(whole(false))));
        let dax = GOOD.replace("\"file\"", "\"dax\"");
        assert_eq!(parse(&dax), Ok(LadderFile::Compressing(whole(true))));
        let two = &GOOD[..GOOD.find("capacity = \"32MiB\"").unwrap_or(0)];
        let least = Compressing { dram: Bytes::mib(64), store: None, spill: None };
        assert_eq!(parse(two), Ok(LadderFile::Compressing(least)));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_field() {
        for (from, to, line, field) in [
            ("\"dram\"", "\"numa:0\"", 4, "tier[0].memory"),
            ("\"compressed\"", "\"swap\"", 8, "tier[1].memory"),
            ("\"compressed\"", "\"dram\"", 8, "tier[1].memory"),
            ("\"file\"", "\"compressed\"", 12, "tier[2].memory"),
            ("\"file\"", "\"disk\"", 12, "tier[2].memory"),
            ("path = \"cold\"", "path = \"\"", 12, "tier[2].memory"),
            ("path = \"cold\"\n", "", 12, "tier[2].memory"),
            ("capacity = \"64MiB\"\n", "", 4, "tier[0].memory"),
            ("\"64MiB\"", "\"0\"", 5, "tier[0].capacity"),
            ("\"64MiB\"", "\"64\"", 5, "tier[0].capacity"),
            ("capacity = \"32MiB\"", "read-latency = \"1us\"", 9, "tier[1].read-latency"),
            ("capacity = \"32MiB\"", "path = \"x\"", 9, "tier[1].path"),
            ("ladder = 1\n", "ladder = 1\n[migration]\nbatch = 1\n", 3, "migration.batch"),
        ] {
            let error = parse(&GOOD.replace(from, to)).expect_err(&format!("{from} -> {to}"));
            assert_eq!((error.line, error.field.as_deref()), (line, Some(field)), "{error}");
        }
        let error = parse(&GOOD[..GOOD.rfind("\n[[tier]]").unwrap_or(0)]).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("tier[1].capacity"), "{error}");
    }

    /// Who moves pages between memories cannot compress them.
    #[test]
    fn such_a_file_is_no_ladder_of_mapped_memories() {
        let error = Ladder::parse("tiers.toml", GOOD).unwrap_err();
        assert_eq!((error.line, error.field.as_deref()), (4, Some("tier[0].memory")), "{error}");
        assert!(error.message.contains("terrace run"), "{error}");
    }
}
