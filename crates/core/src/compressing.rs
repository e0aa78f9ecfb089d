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
//!
//! Instead of `dram` there may be several memories in which pages stay mapped, `numa:0` and
//! `numa:1`: what is resident lies in one of them, and moves between them in place.

use std::path::PathBuf;

use serde::Serialize;

use crate::ladder::{Invalid, Ladder, Memory, Named, WrittenLadder};
use crate::telemetry::MAX_TIERS;
use crate::units::Bytes;

/// DRAM, compressed RAM, and what lies below.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compressing {
    /// Managed memory that may be resident at once, in all processes together.
    pub resident: Bytes,
    /// The memories that it may lie in, if there is more than DRAM. Each has a capacity;
    /// together they have what may be resident.
    pub nodes: Option<Ladder>,
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
    pub fn names(&self) -> Vec<String> {
        let mut names = match &self.nodes {
            Some(nodes) => nodes.tiers.iter().map(|tier| tier.memory.to_string()).collect(),
            None => vec!["dram".to_owned()],
        };
        names.push("compressed".to_owned());
        let below = self.spill.as_ref().map(|spill| if spill.mapped { "dax" } else { "file" });
        names.extend(below.map(str::to_owned));
        names
    }

    /// The tier of compressed pages.
    pub(crate) fn compressed(&self) -> usize {
        self.nodes.as_ref().map_or(1, |nodes| nodes.tiers.len())
    }

    /// What a file says that names one of these memories.
    pub(crate) fn of(written: &WrittenLadder) -> Result<Self, Invalid> {
        let tiers = &written.tiers;
        let nodes = tiers.iter().take_while(|tier| tier.memory.0.is_node()).count();
        // The tier of compressed pages.
        let c = nodes.max(1);
        for (i, tier) in tiers.iter().enumerate() {
            let same = |other: &Named| *other == tier.memory.0;
            if tiers[..i].iter().any(|other| same(&other.memory.0)) {
                return bad(i, "memory", "another tier is this memory");
            }
            let what = match &tier.memory.0 {
                Named::InPlace(_) if i < nodes => None,
                Named::Dram if i == 0 => None,
                Named::Compressed if i == c => None,
                Named::File | Named::Dax if i == c + 1 => None,
                Named::InPlace(Memory::Swap) => {
                    Some("is the kernel's; what does not fit is `compressed` here")
                }
                Named::InPlace(_) if i == 1 => {
                    Some("`dram` is all of it; name each node instead, `numa:0` first")
                }
                Named::InPlace(_) => Some("memories whose pages stay mapped come first"),
                _ if i == 0 => Some("`dram`, or nodes such as `numa:0`, are above it"),
                _ if i <= c => Some("`compressed` is below memory whose pages stay mapped"),
                _ => Some("below `compressed` is one file"),
            };
            if let Some(what) = what {
                return bad(i, "memory", what);
            }
            if i < nodes {
                continue;
            }
            for (given, name) in [
                (tier.read_latency.0.is_some(), "read-latency"),
                (tier.write_latency.0.is_some(), "write-latency"),
            ] {
                if given {
                    return bad(i, name, "is measured while the program runs");
                }
            }
            if tier.path.is_some() && i <= c {
                return bad(i, "path", "only a `file` or `dax` has one");
            }
            if tier.capacity.0.is_some_and(Bytes::is_zero) {
                return bad(i, "capacity", "must be above zero");
            }
        }
        let Some(compressed) = tiers.get(c) else {
            return bad(0, "memory", "a tier `compressed` must be below it");
        };
        if tiers.len() > MAX_TIERS {
            return Err(("tier".to_owned(), "a ladder has two to eight tiers".to_owned()));
        }
        let (resident, nodes) = resident(written, nodes)?;
        let below = tiers.get(c + 1);
        if below.is_none() && compressed.capacity.0.is_some() {
            return bad(c, "capacity", "what does not fit needs a `file` or `dax` below");
        }
        let spill = match below {
            None => None,
            Some(tier) => match tier.path.as_deref() {
                None | Some("") => return bad(c + 1, "memory", "needs a `path`"),
                Some(path) => Some(SpillTier {
                    path: path.into(),
                    mapped: matches!(tier.memory.0, Named::Dax),
                    size: tier.capacity.0,
                }),
            },
        };
        Ok(Self { resident, nodes, store: compressed.capacity.0, spill })
    }
}

/// What may be resident, and in which memories, if there are several.
fn resident(written: &WrittenLadder, nodes: usize) -> Result<(Bytes, Option<Ladder>), Invalid> {
    let first = &written.tiers[..nodes.max(1)];
    let mut sum = Bytes::ZERO;
    for (i, tier) in first.iter().enumerate() {
        let Some(capacity) = tier.capacity.0 else {
            return bad(i, "memory", "needs a capacity: what may be resident in it");
        };
        sum = match sum.get().checked_add(capacity.get()) {
            Some(sum) => Bytes(sum),
            None => return bad(i, "capacity", "is more than there can be"),
        };
    }
    if nodes == 1 {
        return bad(0, "memory", "where pages stay mapped in one memory only, that is `dram`");
    }
    if nodes > 1 {
        return Ok((sum, Some(written.in_place(nodes)?)));
    }
    written.refuse_migration()?;
    Ok((sum, None))
}

fn bad<T>(tier: usize, name: &str, message: &str) -> Result<T, Invalid> {
    Err((format!("tier[{tier}].{name}"), message.to_owned()))
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
            resident: Bytes::mib(64),
            nodes: None,
            store: Some(Bytes::mib(32)),
            spill: Some(spill(mapped)),
        };

        assert_eq!(parse(GOOD), Ok(LadderFile::Compressing(whole(false))));
        let dax = GOOD.replace("\"file\"", "\"dax\"");
        assert_eq!(parse(&dax), Ok(LadderFile::Compressing(whole(true))));
        let two = &GOOD[..GOOD.find("capacity = \"32MiB\"").unwrap_or(0)];
        let least = Compressing { resident: Bytes::mib(64), nodes: None, store: None, spill: None };
        assert_eq!(parse(two), Ok(LadderFile::Compressing(least)));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_field() {
        for (from, to, line, field) in [
            ("\"dram\"", "\"numa:0\"", 4, "tier[0].memory"),
            ("\"dram\"", "\"file\"", 4, "tier[0].memory"),
            ("\"compressed\"", "\"numa:1\"", 8, "tier[1].memory"),
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

    const NODES: &str = "ladder = 1\n[migration]\nlimit = \"1GB/s\"\n\n[[tier]]\nmemory = \
                         \"numa:0\"\ncapacity = \"8MiB\"\n\n[[tier]]\nmemory = \"numa:1\"\n\
                         capacity = \"24MiB\"\nread-latency = \"250ns\"\n\n[[tier]]\n\
                         memory = \"compressed\"\n";

    #[test]
    fn above_compressed_memory_pages_may_lie_in_several_memories() {
        let Ok(LadderFile::Compressing(ladder)) = parse(NODES) else { panic!("a good file") };

        let nodes = ladder.nodes.clone().expect("two nodes");
        assert_eq!(ladder.names(), ["numa:0", "numa:1", "compressed"]);
        assert_eq!(ladder.resident, Bytes::mib(32));
        assert_eq!(nodes.tiers[1].read_latency, Some(crate::units::Nanos(250)));
        assert_eq!(nodes.migration.limit, crate::units::BytesPerSecond(1e9));
        assert_eq!((ladder.store, ladder.spill), (None, None));
        let below = "[[tier]]\nmemory = \"dax\"\npath = \"x\"\n";
        let Ok(LadderFile::Compressing(four)) = parse(&format!("{NODES}\n{below}")) else {
            panic!("a good file")
        };
        assert_eq!(four.names(), ["numa:0", "numa:1", "compressed", "dax"]);
    }

    #[test]
    fn one_of_them_may_be_a_dax_device() {
        let device = NODES.replace("numa:1", "dax:dax0.0");
        let Ok(LadderFile::Compressing(ladder)) = parse(&device) else { panic!("a good file") };
        assert_eq!(ladder.names(), ["numa:0", "dax:dax0.0", "compressed"]);
    }

    #[test]
    fn what_is_wrong_with_several_memories_is_named_with_its_line_and_field() {
        for (from, to, line, field) in [
            ("numa:1", "numa:0", 10, "tier[1].memory"),
            ("numa:1", "swap", 10, "tier[1].memory"),
            ("numa:1", "dram", 10, "tier[1].memory"),
            ("capacity = \"8MiB\"\n", "", 6, "tier[0].memory"),
            ("capacity = \"24MiB\"\n", "", 10, "tier[1].memory"),
            ("\"24MiB\"", "\"16777216TiB\"", 11, "tier[1].capacity"),
            ("\"24MiB\"", "\"0\"", 11, "tier[1].capacity"),
            ("\"250ns\"", "\"0ns\"", 12, "tier[1].read-latency"),
            ("read-latency = \"250ns\"", "path = \"x\"", 12, "tier[1].path"),
            ("\"compressed\"", "\"file\"", 15, "tier[2].memory"),
            ("1GB/s", "0B/s", 3, "migration.limit"),
        ] {
            let error = parse(&NODES.replace(from, to)).expect_err(&format!("{from} -> {to}"));
            assert_eq!((error.line, error.field.as_deref()), (line, Some(field)), "{error}");
        }
        let error = Ladder::parse("tiers.toml", NODES).unwrap_err();
        assert_eq!((error.line, error.field.as_deref()), (15, Some("tier[2].memory")), "{error}");
    }

    /// Who moves pages between memories cannot compress them.
    #[test]
    fn such_a_file_is_no_ladder_of_mapped_memories() {
        let error = Ladder::parse("tiers.toml", GOOD).unwrap_err();
        assert_eq!((error.line, error.field.as_deref()), (8, Some("tier[1].memory")), "{error}");
        assert!(error.message.contains("terrace run"), "{error}");
    }
}
