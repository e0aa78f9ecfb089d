//! What the daemon is told by its operator, as a TOML file.
//!
//! Everything has a default: an empty file but for its first line is valid.
//!
//! ```toml
//! provision = 1               # the version of this format
//! policy = "resolved"
//!
//! [pools]
//! nodes = [2]                 # slow memory of these nodes only
//!
//! [offline]
//! headroom = "256MiB"
//! deadline = "5s"
//! ```

use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;
use std::collections::BTreeMap;

use serde::de::{self, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use terrace_core::machine::parse_document;
use terrace_core::{Bytes, BytesPerSecond, MachineError, Nanos};

use crate::action::Use;
use crate::policy::{self, PolicyKind, Provisioner, Resolved};
use crate::view::NodeId;

/// The only version of the format.
const VERSION: u32 = 1;

/// A value that is written as text: a size, a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Text<T>(pub T);

impl<'de, T> Deserialize<'de> for Text<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reads<T>(PhantomData<T>);
        impl<T> Visitor<'_> for Reads<T>
        where
            T: FromStr,
            T::Err: fmt::Display,
        {
            type Value = Text<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity with its unit, such as \"64MiB\" or \"5s\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<T>, E> {
                text.parse().map(Text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Reads(PhantomData))
    }
}

/// What keeps the kernel from running out of DRAM for its own objects while slow memory is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Floor {
    /// `vm.watermark_scale_factor` of at least 500: each zone keeps a twentieth free.
    #[default]
    Watermarks,
    /// Cold pages are moved to slow memory. Only where the kernel takes the slow node for slower
    /// than DRAM, which it does of DAX devices.
    Demotion,
    /// One block is brought in for the kernel, too. It never leaves again.
    KernelBlock,
    /// Nothing: somebody else sees to it.
    None,
}

/// What the economist's prices do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pricing {
    /// They are written to the journal.
    #[default]
    Shadow,
    /// What does not pay is not done.
    Enforce,
}

/// `[resolved]`: the default policy's rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ResolvedConfig {
    /// Shares of the DRAM, falling: at most so much free.
    pub thresholds: Option<Vec<f64>>,
    /// Multiples of the DRAM, rising: so much online. The last may be left out for all.
    pub online: Option<Vec<f64>>,
    /// For so long after a change nothing is given back.
    pub hold: Option<Text<Nanos>>,
    /// Free memory that stays when some is given back, in multiples of the first threshold.
    pub margin: Option<f64>,
    /// The least that is given back at a time, as a share of the DRAM.
    pub least: Option<f64>,
}

/// `[pools]`: which slow memory is the daemon's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pools {
    /// Nodes whose slow memory it may bring in and take away; without, all.
    pub nodes: Option<Vec<u32>>,
    /// Whether DAX devices are made memory.
    pub devices: bool,
}

impl Default for Pools {
    fn default() -> Self {
        Self { nodes: None, devices: true }
    }
}

/// `[sampling]`: when it looks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sampling {
    /// How often where nothing is the matter, at least. More often where memory could be used up
    /// sooner.
    pub idle: Text<Nanos>,
    /// How fast one processor can use memory up.
    pub fill: Text<BytesPerSecond>,
    /// How often while memory is short, falls fast, or changes.
    pub armed: Text<Nanos>,
    /// For how long after the last sign of that.
    pub armed_for: Text<Nanos>,
    /// Programs that wait for memory for so long …
    pub stall: Text<Nanos>,
    /// … within so long a time are such a sign.
    pub window: Text<Nanos>,
}

impl Default for Sampling {
    /// A look takes 23 µs; a thread that fills memory consumes 1.4 GB/s, so that 100 ms are
    /// 140 MB. Pressure: 20 ms within half a second, the shortest window that the kernel takes.
    fn default() -> Self {
        Self {
            idle: Text(Nanos::seconds(1)),
            fill: Text(BytesPerSecond(1.4e9)),
            armed: Text(Nanos::millis(100)),
            armed_for: Text(Nanos::seconds(10)),
            stall: Text(Nanos::millis(20)),
            window: Text(Nanos::millis(500)),
        }
    }
}

/// `[online]`: how memory comes in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Online {
    /// What may lie in it.
    pub r#use: Use,
    /// Whether page descriptors of DAX devices are to lie in themselves instead of in DRAM.
    pub memmap_on_memory: bool,
}

impl Default for Online {
    fn default() -> Self {
        Self { r#use: Use::Movable, memmap_on_memory: false }
    }
}

/// `[offline]`: how it leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Offline {
    /// What stays free beside the block, and beside the kernel's watermarks.
    pub headroom: Text<Bytes>,
    /// How long one block may take.
    pub deadline: Text<Nanos>,
    /// How long a block or device that failed is left alone; twice as long each further time.
    pub pause: Text<Nanos>,
    /// How long all of a DAX device is offline before it is a device again.
    pub unbind_after: Text<Nanos>,
}

impl Default for Offline {
    /// A block left within 0.6 s, at worst 1.0 s, where it could leave at all; a block that has
    /// not left after 5 s will not.
    fn default() -> Self {
        Self {
            headroom: Text(Bytes::mib(64)),
            deadline: Text(Nanos::seconds(5)),
            pause: Text(Nanos::seconds(60)),
            unbind_after: Text(Nanos::seconds(600)),
        }
    }
}

/// `[kernel]`: settings of the kernel that the daemon makes, and takes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Kernel {
    /// What keeps DRAM for the kernel's own objects.
    pub floor: Floor,
    /// Whether the kernel is kept from bringing new blocks online by itself.
    pub own_blocks: bool,
    /// Whether programs may ask for more memory than is online (`vm.overcommit_memory` = 1).
    pub overcommit: bool,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { floor: Floor::default(), own_blocks: true, overcommit: false }
    }
}

/// `[economist]`: whether slow memory is worth what it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Economist {
    /// What its prices do.
    #[serde(default)]
    pub mode: Pricing,
    /// The machine file with latencies and power: a name or a path. It has `[numa]` and `[power]`.
    pub machine: String,
    /// How often a GiB of memory is accessed in a second, at least and at most, for those who
    /// know; a wide interval without.
    #[serde(default, deserialize_with = "two")]
    pub accesses: Option<[f64; 2]>,
}

/// `[vm]`: memory of a virtual machine instead of this machine's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Vm {
    /// QEMU's socket for its machine protocol (QMP).
    pub qmp: String,
    /// The virtio-mem device's name (`id=`).
    pub device: String,
    /// The balloon device's name, which tells how much the guest has free.
    pub balloon: String,
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// The version of the format.
    pub provision: u32,
    /// Who decides.
    #[serde(default)]
    pub policy: PolicyKind,
    /// The default policy's rows.
    #[serde(default)]
    pub resolved: ResolvedConfig,
    /// Which slow memory is the daemon's.
    #[serde(default)]
    pub pools: Pools,
    /// When it looks.
    #[serde(default)]
    pub sampling: Sampling,
    /// How memory comes in.
    #[serde(default)]
    pub online: Online,
    /// How it leaves.
    #[serde(default)]
    pub offline: Offline,
    /// Settings of the kernel.
    #[serde(default)]
    pub kernel: Kernel,
    /// Prices.
    #[serde(default)]
    pub economist: Option<Economist>,
    /// A virtual machine.
    #[serde(default)]
    pub vm: Option<Vm>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            provision: VERSION,
            policy: PolicyKind::default(),
            resolved: ResolvedConfig::default(),
            pools: Pools::default(),
            sampling: Sampling::default(),
            online: Online::default(),
            offline: Offline::default(),
            kernel: Kernel::default(),
            economist: None,
            vm: None,
        }
    }
}

/// Two numbers, and no third.
fn two<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<[f64; 2]>, D::Error> {
    let all = Vec::<f64>::deserialize(deserializer)?;
    let two = <[f64; 2]>::try_from(all);
    two.map(Some).map_err(|_| de::Error::custom("must be two numbers, the least first"))
}

/// What is written in the file, whatever its value: what has no effect is refused even where it says
/// what would be so without it.
#[derive(Deserialize)]
#[serde(transparent)]
struct Written {
    tables: BTreeMap<String, Keys>,
}

/// The keys of a table; none of what is no table.
#[derive(Deserialize)]
#[serde(untagged)]
enum Keys {
    // What a key holds is of no interest, and a set is read from a list only.
    #[allow(clippy::zero_sized_map_values)]
    Table(BTreeMap<String, IgnoredAny>),
    Value(IgnoredAny),
}

impl Written {
    /// The first of these settings that is there. A table's name stands for all that is in it.
    fn first(&self, settings: &[&str]) -> Option<String> {
        settings.iter().find_map(|setting| {
            let (table, key) = setting.split_once('.').unwrap_or((setting, ""));
            match (self.tables.get(table)?, key) {
                (Keys::Table(keys), "") => Some(
                    keys.keys().next().map_or(table.to_owned(), |key| format!("{table}.{key}")),
                ),
                (Keys::Table(keys), key) => keys.contains_key(key).then(|| (*setting).to_owned()),
                (Keys::Value(_), _) => None,
            }
        })
    }

    /// Refuses what has no effect beside the rest.
    fn validate(&self, config: &Config) -> Result<(), Wrong> {
        const OF_A_HOST: [&str; 6] = [
            "pools",
            "online",
            "kernel",
            "offline.unbind-after",
            "sampling.stall",
            "sampling.window",
        ];
        if config.vm.is_some()
            && let Some(field) = self.first(&OF_A_HOST)
        {
            return wrong(&field, "has no effect on a virtual machine's memory");
        }
        if !config.pools.devices
            && let Some(field) = self.first(&["offline.unbind-after", "online.memmap-on-memory"])
        {
            return wrong(&field, "has no effect where `pools.devices` is false");
        }
        if config.policy != PolicyKind::Resolved && self.first(&["resolved"]).is_some() {
            return wrong("policy", "`[resolved]` has an effect with the policy `resolved` only");
        }
        Ok(())
    }
}

type Wrong = (String, String);

fn wrong<T>(field: &str, what: &str) -> Result<T, Wrong> {
    Err((field.to_owned(), what.to_owned()))
}

impl Config {
    /// Reads a file's text. `file` is only used in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, MachineError> {
        let config: Self = parse_document(file, text, Self::validate)?;
        parse_document(file, text, |written: &Written| written.validate(&config))?;
        Ok(config)
    }

    /// Whether a text is meant as such a file, valid or not.
    pub fn is_meant(text: &str) -> bool {
        text.lines().any(|line| {
            line.trim().strip_prefix("provision").is_some_and(|r| r.trim_start().starts_with('='))
        })
    }

    fn validate(&self) -> Result<(), Wrong> {
        if self.provision != VERSION {
            return wrong("provision", "this version of Terrace reads provision 1 only");
        }
        self.settings()?;
        if self.pools.nodes.as_ref().is_some_and(Vec::is_empty) {
            return wrong("pools.nodes", "names no node, so that there is nothing to do");
        }
        let nodes = self.pools.nodes.as_deref().unwrap_or_default();
        if let Some(twice) = (1..nodes.len()).find(|&at| nodes[..at].contains(&nodes[at])) {
            return wrong("pools.nodes", &format!("names {} twice", NodeId(nodes[twice])));
        }
        let Sampling { idle, fill, armed, armed_for, stall, window } = &self.sampling;
        if !(fill.0.get() > 0.0 && fill.0.get().is_finite()) {
            return wrong("sampling.fill", "must be above zero");
        }
        if armed.0 < Nanos::millis(10) {
            return wrong("sampling.armed", "the least is 10 ms");
        }
        if idle.0 < armed.0 {
            return wrong("sampling.idle", "is shorter than `armed`");
        }
        if armed_for.0 < armed.0 {
            return wrong("sampling.armed-for", "is shorter than `armed`");
        }
        // The kernel's bounds (kernel/sched/psi.c, WINDOW_MIN_US and WINDOW_MAX_US).
        if window.0 < Nanos::millis(500) || window.0 > Nanos::seconds(10) {
            return wrong("sampling.window", "the kernel takes 500 ms to 10 s");
        }
        if stall.0.is_zero() || stall.0 > window.0 {
            return wrong("sampling.stall", "must be above zero and at most `window`");
        }
        if self.offline.deadline.0 < Nanos::millis(100) {
            return wrong("offline.deadline", "the least is 100 ms");
        }
        if self.offline.pause.0.is_zero() {
            return wrong("offline.pause", "must be above zero");
        }
        if let Some(Vm { qmp, device, balloon }) = &self.vm {
            for (field, name) in [("vm.qmp", qmp), ("vm.device", device), ("vm.balloon", balloon)] {
                if name.is_empty() {
                    return wrong(field, "names nothing");
                }
            }
        }
        if let Some([least, most]) = self.economist.as_ref().and_then(|e| e.accesses)
            && !(least >= 0.0 && least <= most && most.is_finite())
        {
            return wrong("economist.accesses", "must be two numbers, the least first");
        }
        Ok(())
    }

    /// The default policy's settings.
    fn settings(&self) -> Result<policy::Settings, Wrong> {
        let default = policy::Settings::default();
        let ResolvedConfig { thresholds, online, hold, margin, least } = &self.resolved;
        let thresholds = thresholds
            .clone()
            .unwrap_or_else(|| default.rows.iter().map(|row| row.threshold).collect());
        let mut factors =
            online.clone().unwrap_or_else(|| default.rows.iter().map(|row| row.factor).collect());
        if factors.len() + 1 == thresholds.len() {
            factors.push(f64::INFINITY);
        }
        if factors.len() != thresholds.len() || thresholds.is_empty() {
            return wrong(
                "resolved.thresholds",
                "there must be one threshold for each value of `online`, and one more for all",
            );
        }
        let is_share = |value: &f64| *value > 0.0 && *value <= 1.0;
        if !thresholds.iter().all(is_share) || !thresholds.is_sorted_by(|a, b| a > b) {
            return wrong("resolved.thresholds", "must fall, between 1 and 0");
        }
        if factors.iter().any(|f| f.is_nan() || *f <= 0.0) || !factors.is_sorted_by(|a, b| a < b) {
            return wrong("resolved.online", "must be above zero and rise");
        }
        let margin = margin.unwrap_or(default.margin);
        if !(margin > 1.0 && margin.is_finite()) {
            return wrong(
                "resolved.margin",
                "must be above 1: what is given back would be brought in again at once",
            );
        }
        if margin * thresholds[0] >= 1.0 {
            return wrong(
                "resolved.margin",
                "times the first threshold must be below 1: else some would stay online for ever",
            );
        }
        let least = least.unwrap_or(default.least);
        if !(0.0..=1.0).contains(&least) {
            return wrong("resolved.least", "must be between 0 and 1");
        }
        let rows = thresholds.into_iter().zip(factors);
        let rows = rows.map(|(threshold, factor)| policy::Row { threshold, factor }).collect();
        let hold = hold.map_or(default.hold, |hold| hold.0);
        Ok(policy::Settings { rows, hold, margin, least })
    }

    /// The policy, which has seen nothing yet.
    pub fn build(&self) -> Box<dyn Provisioner + Send> {
        match (self.policy, self.settings()) {
            (PolicyKind::Resolved, Ok(settings)) => Box::new(Resolved::new(settings)),
            (kind, _) => kind.build(),
        }
    }

    /// Free local memory, as a share of the DRAM, at or below which memory is short.
    pub fn first_threshold(&self) -> f64 {
        let settings = self.settings().unwrap_or_default();
        settings.rows.first().map_or(0.5, |row| row.threshold)
    }

    /// The nodes whose slow memory is the daemon's; `None` for all.
    pub fn nodes(&self) -> Option<Vec<NodeId>> {
        self.pools.nodes.as_ref().map(|nodes| nodes.iter().map(|&node| NodeId(node)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse("p.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn one_line_is_enough_and_everything_can_be_told() {
        let least = Config::parse("p.toml", "provision = 1\n").unwrap();
        assert_eq!(least, Config::default());
        let all = Config::parse("p.toml", include_str!("../tests/whole.toml")).unwrap();
        assert_eq!(all.nodes(), Some(vec![NodeId(2), NodeId(3)]));
        assert_eq!(all.offline.headroom.0, Bytes::mib(256));
        assert!((all.first_threshold() - 0.4).abs() < 1e-9);
        assert!(Config::is_meant("# x\nprovision = 2\n") && !Config::is_meant("schema = 1"));
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_field() {
        for (text, message) in [
            ("provision = 2\n", "p.toml:1: field `provision`: this version"),
            ("provision = 1\n[offline]\ndeadline = 5\n", "p.toml:3: field `offline.deadline`:"),
            (
                "provision = 1\n[offline]\ndeadline = \"5x\"\n",
                "p.toml:3: field `offline.deadline`:",
            ),
            (
                "provision = 1\n[offline]\nheadrom = \"1MiB\"\n",
                "p.toml:3: field `offline.headrom`:",
            ),
            ("provision = 1\n[sampling]\nwindow = \"1ms\"\n", "the kernel takes 500 ms to 10 s"),
            ("provision = 1\n[resolved]\nmargin = 1.0\n", "p.toml:3: field `resolved.margin`:"),
            ("provision = 1\n[resolved]\nthresholds = [0.1, 0.5]\n", "`resolved.thresholds`:"),
            (
                "provision = 1\n[pools]\nnodes = []\n",
                "p.toml:3: field `pools.nodes`: names no node",
            ),
            (
                "provision = 1\npolicy = \"paper-literal-installed\"\n[resolved]\nleast = 0.5\n",
                "p.toml:2: field `policy`: `[resolved]` has an effect",
            ),
            ("policy = \"resolved\"\n", "missing field `provision`"),
            ("provision = 1\npolicy = 1\n", "invalid type: integer `1`, expected a string"),
            ("provision = 1\npolicy = \"best\"\n", "no policy is named `best` (resolved, "),
            (
                "provision = 1\n[pools]\nnodes = [2, 3, 2]\n",
                "p.toml:3: field `pools.nodes`: names node 2 twice",
            ),
            (
                "provision = 1\n[pools]\ndevices = false\n[offline]\nunbind-after = \"10min\"\n",
                "p.toml:5: field `offline.unbind-after`: has no effect where `pools.devices`",
            ),
            (
                "provision = 1\n[pools]\ndevices = false\n[online]\nmemmap-on-memory = false\n",
                "p.toml:5: field `online.memmap-on-memory`: has no effect",
            ),
        ] {
            assert!(error(text).contains(message), "{}", error(text));
        }
        for accesses in ["[1, 2, 3]", "[1]", "[]", "[2, 1]"] {
            let text =
                format!("provision = 1\n[economist]\nmachine = \"x\"\naccesses = {accesses}\n");
            let error = error(&text);
            let message = "p.toml:4: field `economist.accesses`: must be two numbers";
            assert!(error.starts_with(message), "{error}");
        }
    }

    /// Also where it says what would be so without it.
    #[test]
    fn what_has_no_effect_on_a_virtual_machine_is_refused_by_its_line() {
        let vm = "[vm]\nqmp = \"q\"\ndevice = \"d\"\nballoon = \"b\"\n";
        let with = |more: &str| Config::parse("p.toml", &format!("provision = 1\n{vm}{more}"));
        assert!(with("[offline]\npause = \"9s\"\n[resolved]\nhold = \"9s\"\n").is_ok());
        for (more, field) in [
            ("[pools]\ndevices = true\n", "pools.devices"),
            ("[online]\nuse = \"movable\"\n", "online.use"),
            ("[kernel]\nfloor = \"watermarks\"\n", "kernel.floor"),
            ("[offline]\nunbind-after = \"10min\"\n", "offline.unbind-after"),
            ("[sampling]\nstall = \"20ms\"\n", "sampling.stall"),
        ] {
            let error = with(more).unwrap_err().to_string();
            let message = format!("p.toml:7: field `{field}`: has no effect on a virtual");
            assert!(error.starts_with(&message), "{error}");
        }
        let nameless = "provision = 1\n[vm]\nqmp = \"\"\ndevice = \"d\"\nballoon = \"b\"\n";
        assert_eq!(error(nameless), "p.toml:3: field `vm.qmp`: names nothing");
    }
}
