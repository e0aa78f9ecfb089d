//! Which policy chooses what leaves, and by which prices.

use terrace_economics::{Economist, Mode};
use terrace_kernel::observe::choose_for_swap;
use terrace_kernel::support::may_advise;
use terrace_live::activate;
use terrace_policy::{Brain, PolicyName};
use terrace_sampler::{Capabilities, Choice, Kind, Sampler, Stores};

use crate::attach::Moving;
use crate::calibrate::{self, Source};
use crate::failure::Failure;

/// A policy that chooses.
pub(crate) struct Chooser {
    /// The policy, with an economist.
    pub(crate) brain: Brain,
    /// Where the economist's prices come from.
    pub(crate) costs: Source,
}

/// The policy that was asked for; `None` for the kernel's own lists, which need no prices. With
/// `quiet` nobody is told that prices are stale.
pub(crate) fn policy(
    name: Option<PolicyName>,
    mode: Mode,
    quiet: bool,
) -> Result<Option<Chooser>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let policy = name.build();
    if !may_advise() {
        return Err(Failure::unsupported(format!(
            "--policy {name}: with --engine kernel a policy puts pages out by process_madvise, \
             which needs CAP_SYS_NICE"
        )));
    }
    if policy.needs().scans {
        return Err(Failure::bad_input(format!(
            "--policy {name}: not with --engine kernel: it learns by accessed bits, which the kernel \
             shows to nobody"
        )));
    }
    let prices = calibrate::for_run(quiet)?;
    // Nothing moves up here but by faults: there is nothing whose benefit could not be seen.
    let calibration = activate::calibration_in_place(prices.measured.as_ref(), true);
    let mut brain = Brain::new(policy, Economist::new(mode, calibration));
    brain.set_process(std::process::id());
    Ok(Some(Chooser { brain, costs: prices.source }))
}

/// What observes accesses for a policy, beside the pages that come back.
pub(crate) struct Seeing {
    /// Which, and why.
    pub(crate) choice: Choice,
    /// The same, opened.
    pub(crate) samplers: Vec<Box<dyn Sampler>>,
}

impl Seeing {
    /// Nothing, for a reason.
    pub(crate) fn nothing(reason: impl Into<String>) -> Self {
        Self { choice: Choice { kinds: Vec::new(), reason: reason.into() }, samplers: Vec::new() }
    }

    /// As asked for, else the best that there is. A policy that learns by what comes back alone can
    /// do without.
    pub(crate) fn of(chooser: Option<&Chooser>, moving: &Moving) -> Result<Self, Failure> {
        let Some(Chooser { brain, .. }) = chooser else {
            if moving.names_sampler() {
                let what = "--sampler: has no effect with --engine kernel and no --policy";
                return Err(Failure::bad_input(what));
            }
            return Ok(Self::nothing("the kernel's lists know what is accessed"));
        };
        let capabilities = Capabilities::probe();
        let choice = match moving.asked_from_outside(&capabilities)? {
            Some(choice) => choice,
            None => match choose_for_swap(&capabilities) {
                // Each look makes every first store to a page fault, and loads are not seen.
                Ok(choice) if choice.kinds == [Kind::SoftDirty] && !brain.needs().samples => {
                    return Ok(Self::nothing(
                        "what comes back is all that is looked at: soft-dirty bits alone show no \
                         loads",
                    ));
                }
                Ok(choice) => choice,
                Err(lacks) if brain.needs().samples => {
                    return Err(Failure::unsupported(format!(
                        "--policy {}: it learns by samples of accesses, and with --engine kernel \
                         none can be had here ({lacks}); `refault` needs none",
                        brain.name()
                    )));
                }
                Err(lacks) => {
                    let what = format!("what comes back is all that there is: {lacks}");
                    return Ok(Self::nothing(what));
                }
            },
        };
        let stores = Stores::default();
        let open = |kind: &Kind| kind.open(&stores).map_err(Failure::unsupported);
        let samplers = choice.kinds.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { choice, samplers })
    }
}

/// The policy where the kernel cannot be asked to put memory out, for what `lack` says: the one
/// that was asked for, or `refault`.
pub(crate) fn needed(
    chosen: Option<Chooser>,
    mode: Mode,
    quiet: bool,
    lack: &str,
) -> Result<Option<Chooser>, Failure> {
    if !may_advise() {
        return Err(Failure::unsupported(format!(
            "--engine kernel: {lack}, pages are put out by process_madvise, which needs \
             CAP_SYS_NICE"
        )));
    }
    match chosen {
        Some(chooser) => Ok(Some(chooser)),
        None => policy(Some(PolicyName::Refault), mode, quiet),
    }
}
