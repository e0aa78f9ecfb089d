//! Who is told of a simulation: what its policy was told, and what the economist decided.

use terrace_economics::Decision;
use terrace_policy::Recorder;

/// Is told the economist's decisions about a tick's proposals.
pub type OnDecisions = Box<dyn FnMut(&[Decision]) + Send>;

/// Listeners to a simulation.
#[derive(Default)]
pub struct Listeners {
    /// Everything that the policy is told, in order and from the first region on, so that
    /// [`terrace_policy::Brain::replay`] can repeat the run without the simulator.
    pub events: Option<Recorder>,
    /// Every decision, so that it can be explained.
    pub decisions: Option<OnDecisions>,
}
