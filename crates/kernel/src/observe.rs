//! What observes accesses for a policy of the kernel engine, beside the pages that come back.

use terrace_sampler::Capabilities;
pub use terrace_sampler::Choice;
use terrace_sampler::choose::choose;

/// The best samplers for memory whose rest lies in swap; an error says what each lacks.
///
/// As for any program that is watched from outside ([`choose`]), but for the hints of the kernel's NUMA
/// balancing: it makes pages fault to move them between nodes, of which there is only one here.
///
/// # Errors
/// What each kind lacks.
pub fn choose_for_swap(capabilities: &Capabilities) -> Result<Choice, String> {
    let without = "it moves pages between nodes".to_owned();
    choose(&Capabilities { kernel_hints: Some(without), ..capabilities.clone() })
}

#[cfg(test)]
mod tests {
    use terrace_sampler::Kind;

    use super::*;

    fn lacking(hardware: bool, damon: bool, soft_dirty: bool) -> Capabilities {
        let lack = |lacks: bool| lacks.then(|| "not here".to_owned());
        Capabilities {
            hardware: lack(hardware),
            damon: lack(damon),
            damon_pictures: None,
            soft_dirty: lack(soft_dirty),
            kernel_hints: None,
        }
    }

    #[test]
    fn the_best_that_there_is_and_never_the_hints_of_the_kernel() {
        let kinds = |c: &Capabilities| choose_for_swap(c).map(|choice| choice.kinds);
        assert_eq!(kinds(&lacking(false, false, false)), Ok(vec![Kind::Hardware]));
        assert_eq!(kinds(&lacking(true, false, false)), Ok(vec![Kind::Damon, Kind::SoftDirty]));
        assert_eq!(kinds(&lacking(true, true, false)), Ok(vec![Kind::SoftDirty]));
        let lacks = kinds(&lacking(true, true, true)).unwrap_err();
        assert!(lacks.contains("kernel-hints: it moves pages between nodes"), "{lacks}");
    }
}
