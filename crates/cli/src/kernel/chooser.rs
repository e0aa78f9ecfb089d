//! Which policy chooses what leaves.

use terrace_economics::{Economist, Mode};
use terrace_kernel::observe::choose_for_swap;
use terrace_kernel::support::may_advise;
use terrace_live::activate;
use terrace_policy::{Brain, PolicyName};
use terrace_sampler::{Capabilities, Choice, Kind, Sampler, Stores};

use crate::attach::Moving;
use crate::failure::Failure;

/// The policy that was asked for; `None` for the kernel's own lists.
pub(crate) fn policy(name: Option<PolicyName>, mode: Mode) -> Result<Option<Brain>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let brain = Brain::new(name.build(), Economist::new(mode, activate::calibrate()));
    if !may_advise() {
        return Err(Failure::unsupported(format!(
            "--policy {name}: with --engine kernel a policy puts pages out by process_madvise, \
             which needs CAP_SYS_NICE"
        )));
    }
    if brain.needs().scans {
        return Err(Failure::bad_input(format!(
            "--policy {name}: not with --engine kernel: it learns by accessed bits, which the kernel \
             shows to nobody"
        )));
    }
    Ok(Some(brain))
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
    pub(crate) fn of(brain: Option<&Brain>, moving: &Moving) -> Result<Self, Failure> {
        let Some(brain) = brain else {
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
    chosen: Option<Brain>,
    mode: Mode,
    lack: &str,
) -> Result<Option<Brain>, Failure> {
    if !may_advise() {
        return Err(Failure::unsupported(format!(
            "--engine kernel: {lack}, pages are put out by process_madvise, which needs \
             CAP_SYS_NICE"
        )));
    }
    match chosen {
        Some(brain) => Ok(Some(brain)),
        None => policy(Some(PolicyName::Refault), mode),
    }
}
