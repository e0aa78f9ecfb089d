//! How pages are moved where they stay mapped: options that `terrace attach` and
//! `terrace run` have in common, and what observes accesses.

use terrace_core::{BytesPerSecond, Ladder, Memory};
use terrace_live::config::Observer;
use terrace_live::doctor::probe::UffdProbe;
use terrace_live::observe::protection::Tracks;
use terrace_policy::Policy;
use terrace_sampler::{Capabilities, Choice, Governor, Kind, choose};

use crate::args::one_of;
use crate::failure::Failure;

// Not a doc comment: it would become the help of the command.
// What is observed and moved.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Moving {
    /// Bound on the traffic between tiers; 1GiB/s unless a file says otherwise.
    #[arg(long, value_name = "RATE")]
    limit: Option<BytesPerSecond>,

    /// How accesses are observed; the best that there is unless told otherwise. Where memory
    /// is compressed that is `pmu`, `rwp` or faults.
    #[arg(long, value_name = "KIND", value_parser = one_of(&Asked::ALL, Asked::name))]
    sampler: Vec<Asked>,

    /// The most of one processor that observing may use; 3% unless told otherwise.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    sampling_cap: Option<f64>,
}

/// A sampler by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// One that watches from outside; hardware also does from inside.
    Outside(Kind),
    /// Read-write protection, from inside where memory is compressed.
    Rwp,
}

impl Asked {
    const ALL: [Self; 5] = [
        Self::Outside(Kind::Hardware),
        Self::Rwp,
        Self::Outside(Kind::Damon),
        Self::Outside(Kind::SoftDirty),
        Self::Outside(Kind::KernelHints),
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Outside(kind) => kind.name(),
            Self::Rwp => Observer::Rwp.name(),
        }
    }
}

/// A share: `3%`.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    text.strip_suffix('%')
        .and_then(|number| number.trim().parse::<f64>().ok())
        .filter(|share| *share > 0.0 && *share <= 100.0)
        .map(|share| share / 100.0)
        .ok_or_else(|| format!("`{text}` is not a share between 0% and 100%, such as `3%`"))
}

impl Moving {
    /// Refuses two samplers of which one would do nothing.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let inside = [Asked::Outside(Kind::Hardware), Asked::Rwp];
        if inside.iter().all(|asked| self.sampler.contains(asked)) {
            return Err(Failure::bad_input("--sampler: pmu and rwp exclude each other"));
        }
        Ok(())
    }

    /// What of these options means something only where pages stay mapped.
    pub(crate) fn in_place_only(&self) -> Option<String> {
        let inside = [Asked::Outside(Kind::Hardware), Asked::Rwp];
        let outside = self.sampler.iter().find(|asked| !inside.contains(asked));
        let limit = self.limit.map(|_| "--limit".to_owned());
        limit.or_else(|| outside.map(|asked| format!("--sampler {}", asked.name())))
    }

    /// The same for what watches a program from outside while the pager is inside of it.
    pub(crate) fn outside(&self) -> Self {
        let sampler = self.sampler.iter().copied().filter(|asked| *asked != Asked::Rwp).collect();
        Self { sampler, ..self.clone() }
    }

    /// What samples accesses inside of a program: what was asked for must be there.
    pub(crate) fn observer(&self) -> Result<Observer, Failure> {
        let root = std::path::Path::new("/");
        let (observer, lack) = if self.sampler.contains(&Asked::Outside(Kind::Hardware)) {
            (Observer::Hardware, choose::hardware_lacks(root))
        } else if self.sampler.contains(&Asked::Rwp) {
            let lack = Tracks::Accesses.lack(UffdProbe::run().features);
            (Observer::Rwp, lack.map(|lack| format!("{lack} (UFFD_FEATURE_RWP_ASYNC)")))
        } else {
            return Ok(Observer::Auto);
        };
        match lack {
            None => Ok(observer),
            Some(lack) => {
                Err(Failure::unsupported(format!("--sampler {}: {lack}", observer.name())))
            }
        }
    }

    /// The share of one processor that observing may use.
    pub(crate) fn cap(&self) -> f64 {
        self.sampling_cap.unwrap_or(Governor::DEFAULT_CAP)
    }

    /// Enters the limit into what a file or the defaults say.
    pub(crate) fn limit(&self, ladder: &mut Ladder) -> Result<(), Failure> {
        let Some(limit) = self.limit else { return Ok(()) };
        if limit.get() <= 0.0 {
            return Err(Failure::bad_input("--limit: must be above zero"));
        }
        ladder.migration.limit = limit;
        Ok(())
    }

    /// Whether it was said how much of a processor observing may use.
    pub(crate) fn names_cap(&self) -> bool {
        self.sampling_cap.is_some()
    }

    /// Whether a sampler was asked for.
    pub(crate) fn names_sampler(&self) -> bool {
        !self.sampler.is_empty()
    }

    /// What was asked for to watch a program from outside; `None` if nothing was.
    pub(crate) fn asked_from_outside(
        &self,
        capabilities: &Capabilities,
    ) -> Result<Option<Choice>, Failure> {
        let kinds = self.sampler.iter().map(|asked| match asked {
            Asked::Outside(kind) => Ok(*kind),
            Asked::Rwp => Err(Failure::bad_input(
                "--sampler rwp: only from inside of a program, where memory is compressed",
            )),
        });
        let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
        if !kinds.is_empty() {
            for kind in &kinds {
                if let Some(lack) = capabilities.lack(*kind) {
                    let what = format!("--sampler {}: {lack}", kind.name());
                    return Err(Failure::unsupported(what));
                }
            }
            let reason = "as asked for".to_owned();
            return Ok(Some(Choice { kinds, reason }));
        }
        Ok(None)
    }

    /// What observes: as asked for, else the best that there is.
    pub(super) fn choose(&self, policy: &dyn Policy, ladder: &Ladder) -> Result<Choice, Failure> {
        let capabilities = Capabilities::probe();
        if let Some(choice) = self.asked_from_outside(&capabilities)? {
            return Ok(choice);
        }
        if !policy.needs().samples && !policy.needs().scans {
            let reason = format!("the policy {} needs none", policy.name());
            if self.sampling_cap.is_some() {
                let what = format!("--sampling-cap: has no effect: {reason}");
                return Err(Failure::bad_input(what));
            }
            return Ok(Choice { kinds: Vec::new(), reason });
        }
        match choose::choose(&capabilities) {
            Ok(choice) => Ok(choice),
            // Into swap, what comes back is itself an observation. That this machine has nothing
            // else is no fault of a command that limits what observing costs.
            Err(lacks) if reclaims_only(ladder) => {
                let reason = format!("pages that come back from swap are all there is: {lacks}");
                Ok(Choice { kinds: Vec::new(), reason })
            }
            Err(lacks) => Err(Failure::unsupported(format!(
                "accesses cannot be observed here ({lacks}); \
                 `--policy first-touch` needs no samples"
            ))),
        }
    }
}

/// Whether there is nothing below the first memory but swap.
fn reclaims_only(ladder: &Ladder) -> bool {
    ladder.tiers.get(1).is_some_and(|tier| tier.memory == Memory::Swap)
}
