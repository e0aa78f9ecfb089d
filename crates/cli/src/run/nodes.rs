//! Several memories above compressed memory: what the pager keeps resident lies in one of
//! them, and moves between them in place, as with `terrace attach`. The two know nothing of
//! each other: a page that leaves is gone for the one, and a page that moves is as resident
//! as before for the other (decision 0010).

use terrace_live::attach::targets::Targets;
use terrace_policy::PolicyName;

use super::Args;
use crate::attach::{How, Session};
use crate::calibrate::Prices;
use crate::failure::Failure;
use crate::observing::Observing;
use crate::output::Files;

/// What moves the pages, if the ladder names several memories.
pub(super) fn session(args: &Args, prices: &Prices) -> Result<Option<Session>, Failure> {
    let Some(nodes) = &args.nodes else { return Ok(None) };
    let mut ladder = nodes.clone();
    args.moving.limit(&mut ladder)?;
    // The pager's own may need faults, of which there are none here.
    let mapped = |policy: &PolicyName| {
        PolicyName::MAPPED.contains(policy) && !policy.build().needs().refaults
    };
    let name = args.shown().swap_remove(0);
    Session::new(How {
        verb: "run",
        // What other commands call it: the run itself has the program's name.
        program: vec![format!("{name} (nodes)")],
        ladder,
        // Our own descendants: the program, and what it starts.
        targets: Targets::Process { process: std::process::id(), tree: true },
        policy: args.policy.filter(mapped).unwrap_or(PolicyName::HeMem),
        economist: args.economist,
        prices: prices.clone(),
        moving: args.moving.outside(),
        min_region: args.min_region,
        dry_run: false,
        record: None,
        observing: Observing::default(),
        files: Files::default(),
        quiet: args.quiet,
    })
    .map(Some)
}
