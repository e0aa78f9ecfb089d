//! What `terrace run` tells the preloaded library, through one environment
//! variable: `TERRACE=fast=268435456;policy=hemem;…`.
//!
//! The library never reads a file for this: it may wake up in a process that
//! has changed its root, dropped its rights or closed its descriptors. A value
//! that it cannot read disables it with a message, and never harms the program.

use core::fmt;
use std::path::PathBuf;

use terrace_core::Bytes;
use terrace_economics::Mode;
use terrace_policy::PolicyName;
use terrace_sampler::Governor;

use crate::costs::Measured;
use crate::interface::FINGERPRINT;

/// The variable's name.
pub const VARIABLE: &str = "TERRACE";

/// What counts against a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Pages that are in DRAM as the program left them.
    Resident,
    /// These, and those that are compressed.
    Total,
}

/// When memory is backed by huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// When it pays: ahead of walks through fresh memory, and where base pages cost page
    /// walks.
    Auto,
    /// The same, and wherever all base pages of one are resident.
    Always,
    /// Not at all.
    Never,
}

impl HugePages {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Never];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// What samples accesses, beside faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observer {
    /// Hardware if there is some and the policy needs samples; else read-write protection if the
    /// kernel has it; else pages made to fault.
    Auto,
    /// Hardware (Intel PEBS, AMD IBS).
    Hardware,
    /// Read-write protection through the userfaultfd.
    Rwp,
    /// The event of all page faults, whose addresses come the same way as those of hardware
    /// samples: to try that way where there is no such hardware.
    PageFaults,
}

impl Observer {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Hardware, Self::Rwp, Self::PageFaults];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Hardware => "pmu",
            Self::Rwp => "rwp",
            Self::PageFaults => "page-faults",
        }
    }
}

/// From when on a profile is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileFrom {
    /// The first large mapping, whether memory fits or not.
    FirstMapping,
    /// When memory no longer fits: managing it for the profile's sake does not pay.
    Shortage,
}

/// The configuration of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunConfig {
    /// DRAM that managed memory may use, in all processes that share it.
    pub fast: Bytes,
    /// What that is for.
    pub counted: Counted,
    /// Which policy decides.
    pub policy: PolicyName,
    /// What the economist does with its opinion.
    pub economist: Mode,
    /// Directory for the statistics pages; it is the run's own.
    pub dir: PathBuf,
    /// Anonymous mappings of at least this size are managed.
    pub min_region: Bytes,
    /// Compressed pages beyond this amount go to the spill file, if there is one.
    pub store_limit: Option<Bytes>,
    /// File (created, unlinked at once) that takes what the store cannot.
    pub spill: Option<PathBuf>,
    /// Whether it is mapped, and used as memory (DAX).
    pub spill_mapped: bool,
    /// The most the spill file may hold.
    pub spill_size: Bytes,
    /// Page of the broker that the budget is shared by, if it is.
    pub broker: Option<PathBuf>,
    /// The PID namespace of whoever began the run; 0 if that is not known.
    pub pid_namespace: u64,
    /// When memory is backed by huge pages.
    pub huge_pages: HugePages,
    /// A profile that says where huge pages pay.
    pub profile: Option<PathBuf>,
    /// From when on it is used.
    pub profile_from: ProfileFrom,
    /// What samples accesses.
    pub observer: Observer,
    /// The share of one processor that sampling may use, above 0 and at most 1.
    pub sampling_cap: f64,
    /// Whether decisions are written to the ring for a recorder to drain.
    pub record: bool,
    /// What the mechanisms cost here, if that was measured.
    pub measured: Option<Measured>,
    /// Whether nothing is said of a program that is not managed.
    pub quiet: bool,
}

impl RunConfig {
    /// The smallest budget that the pager works with: below it, the pages that
    /// one instruction and one system call touch at once may not fit.
    pub const MIN_FAST: Bytes = Bytes::mib(1);
    /// Default of [`RunConfig::min_region`].
    pub const DEFAULT_MIN_REGION: Bytes = Bytes::kib(64);
    /// Allocator requests of at least this size are taken over.
    pub const LARGE_REQUEST: Bytes = Bytes::mib(1);

    /// A run with defaults.
    pub fn new(fast: Bytes, dir: PathBuf) -> Self {
        Self {
            fast,
            counted: Counted::Resident,
            policy: PolicyName::Refault,
            economist: Mode::Enforce,
            dir,
            min_region: Self::DEFAULT_MIN_REGION,
            store_limit: None,
            spill: None,
            spill_mapped: false,
            spill_size: Bytes::gib(64),
            broker: None,
            pid_namespace: 0,
            huge_pages: HugePages::Auto,
            profile: None,
            profile_from: ProfileFrom::FirstMapping,
            observer: Observer::Auto,
            sampling_cap: Governor::DEFAULT_CAP,
            record: false,
            measured: None,
            quiet: false,
        }
    }

    /// The variable's value.
    pub fn encode(&self) -> String {
        let mut text = format!(
            "fast={};policy={};economist={};dir={};min-region={};spill-size={};huge-pages={};\
             observer={};sampling-cap={};record={}",
            self.fast.get(),
            self.policy,
            self.economist.name(),
            escape(&self.dir.to_string_lossy()),
            self.min_region.get(),
            self.spill_size.get(),
            self.huge_pages.name(),
            self.observer.name(),
            self.sampling_cap,
            u8::from(self.record),
        );
        if let Some(limit) = self.store_limit {
            text.push_str(&format!(";store-limit={}", limit.get()));
        }
        if let Some(spill) = &self.spill {
            text.push_str(&format!(";spill={}", escape(&spill.to_string_lossy())));
        }
        if self.counted == Counted::Total {
            text.push_str(";total=1");
        }
        if let Some(measured) = &self.measured {
            text.push_str(&format!(";measured={}", measured.encode()));
        }
        if self.quiet {
            text.push_str(";quiet=1");
        }
        if let Some(profile) = &self.profile {
            text.push_str(&format!(";profile={}", escape(&profile.to_string_lossy())));
        }
        if self.profile_from == ProfileFrom::Shortage {
            text.push_str(";profile-from=shortage");
        }
        if self.spill_mapped {
            text.push_str(";spill-mapped=1");
        }
        if self.pid_namespace != 0 {
            text.push_str(&format!(";pid-namespace={}", self.pid_namespace));
        }
        if let Some(broker) = &self.broker {
            text.push_str(&format!(";broker={}", escape(&broker.to_string_lossy())));
        }
        text.push_str(&format!(";interface={FINGERPRINT:016x}"));
        text
    }

    /// Whether a value asks for silence. Also one that cannot be read.
    pub fn is_quiet(text: &str) -> bool {
        text.split(';').any(|item| item == "quiet=1")
    }

    /// Reads the variable's value.
    pub fn decode(text: &str) -> Result<Self, BadConfig> {
        let mut config = Self::new(Bytes::ZERO, PathBuf::new());
        let mut is_ours = false;
        for item in text.split(';') {
            let (key, value) =
                item.split_once('=').ok_or_else(|| BadConfig(format!("`{item}` has no value")))?;
            let number = || {
                value.parse().map(Bytes).map_err(|_| {
                    BadConfig(format!("`{value}` of `{key}` is not a number of bytes"))
                })
            };
            match key {
                "fast" => config.fast = number()?,
                "min-region" => config.min_region = number()?,
                "spill-size" => config.spill_size = number()?,
                "store-limit" => config.store_limit = Some(number()?),
                "policy" => config.policy = value.parse().map_err(|e| BadConfig(format!("{e}")))?,
                "economist" => {
                    config.economist = Mode::of_name(value)
                        .ok_or_else(|| BadConfig(format!("`{value}` is not a mode")))?;
                }
                "total" if value == "1" => config.counted = Counted::Total,
                "total" => config.counted = Counted::Resident,
                "dir" => config.dir = PathBuf::from(unescape(value)),
                "spill-mapped" => config.spill_mapped = value == "1",
                "spill" => config.spill = Some(PathBuf::from(unescape(value))),
                "profile" => config.profile = Some(PathBuf::from(unescape(value))),
                "profile-from" if value == "shortage" => {
                    config.profile_from = ProfileFrom::Shortage;
                }
                "broker" => config.broker = Some(PathBuf::from(unescape(value))),
                "pid-namespace" => {
                    config.pid_namespace = value
                        .parse()
                        .map_err(|_| BadConfig(format!("`{value}` is no namespace's number")))?;
                }
                "huge-pages" => {
                    config.huge_pages = HugePages::ALL
                        .into_iter()
                        .find(|when| when.name() == value)
                        .ok_or_else(|| BadConfig(format!("`{value}` is no time for huge pages")))?;
                }
                "observer" => {
                    config.observer = Observer::ALL
                        .into_iter()
                        .find(|observer| observer.name() == value)
                        .ok_or_else(|| BadConfig(format!("`{value}` is no observer")))?;
                }
                "sampling-cap" => {
                    config.sampling_cap = value
                        .parse()
                        .ok()
                        .filter(|share| *share > 0.0 && *share <= 1.0)
                        .ok_or_else(|| BadConfig(format!("`{value}` is not a share")))?;
                }
                "measured" => {
                    let measured = Measured::decode(value);
                    config.measured = Some(measured.ok_or_else(|| {
                        BadConfig(format!("`{value}` is no list of measured costs"))
                    })?);
                }
                "record" => config.record = value == "1",
                "quiet" => config.quiet = value == "1",
                "interface" => is_ours = u64::from_str_radix(value, 16) == Ok(FINGERPRINT),
                _ => return Err(BadConfig(format!("`{key}` is not known"))),
            }
        }
        if config.fast < Self::MIN_FAST {
            return Err(BadConfig(format!("a budget of {} is too small", config.fast)));
        }
        if !is_ours {
            // What it would write there nobody could read.
            let what = "written by another version of `terrace` than this library is of";
            return Err(BadConfig(what.to_owned()));
        }
        Ok(config)
    }
}

/// Why the variable's value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadConfig(pub String);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VARIABLE}: {}", self.0)
    }
}

impl core::error::Error for BadConfig {}

/// Keeps the separators out of paths.
fn escape(text: &str) -> String {
    text.replace('%', "%25").replace(';', "%3B")
}

fn unescape(text: &str) -> String {
    text.replace("%3B", ";").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_run_writes_is_what_the_library_reads() {
        let mut config = RunConfig::new(Bytes::mib(256), PathBuf::from("/tmp/a;b%c"));
        config.spill = Some(PathBuf::from("/x=y"));
        config.spill_mapped = true;
        config.counted = Counted::Total;
        config.broker = Some(PathBuf::from("/run/budget"));
        config.pid_namespace = 4_026_531_836;
        config.store_limit = Some(Bytes::mib(5));
        config.record = true;
        config.quiet = true;
        config.measured = Some(crate::costs::tests::example());
        config.huge_pages = HugePages::Always;
        config.profile = Some(PathBuf::from("/run/a;b/profile"));
        config.profile_from = ProfileFrom::Shortage;
        config.observer = Observer::PageFaults;
        config.sampling_cap = 0.07;
        for mode in Mode::ALL {
            config.economist = mode;
            assert_eq!(RunConfig::decode(&config.encode()), Ok(config.clone()));
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        assert!(RunConfig::decode("fast=1").unwrap_err().0.contains("too small"));
        assert!(RunConfig::decode("quick=1").unwrap_err().0.contains("quick"));
        assert!(RunConfig::decode("fast=9999999;huge-pages=1").unwrap_err().0.contains("`1`"));
        for cap in ["NaN", "0", "-1", "1.5", "3%"] {
            let text = format!("fast=9999999;sampling-cap={cap}");
            assert!(RunConfig::decode(&text).unwrap_err().0.contains(cap), "{cap}");
        }
        assert!(RunConfig::decode("").is_err());
    }

    /// The files that both use might have another layout.
    #[test]
    fn what_another_version_wrote_is_not_taken() {
        let mut config = RunConfig::new(Bytes::mib(256), PathBuf::from("/run/terrace-x"));
        config.quiet = true;
        let text = config.encode();
        let (before, _) = text.rsplit_once(";interface=").unwrap();
        let newer = format!("{before};interface={:016x}", !FINGERPRINT);
        let empty = format!("{before};interface=");
        for other in [before, newer.as_str(), empty.as_str()] {
            let error = RunConfig::decode(other).unwrap_err();
            assert!(error.0.contains("another version"), "{error}");
            assert!(RunConfig::is_quiet(other));
        }
        assert!(!RunConfig::is_quiet("fast=9999999;quiet=0"));
    }
}
