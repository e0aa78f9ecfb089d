//! Which engine serves a run's page faults.

use terrace_core::Bytes;
use terrace_kernel::files::Root;
use terrace_kernel::setup::directory_of_records;
use terrace_kernel::support::Support;

/// An engine, as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// The kernel where that changes nothing for others, and for programs that the pager cannot serve;
    /// else the pager (`docs/decisions/0022-auto-by-the-machine.md`).
    Auto,
    /// Terrace's library, loaded into the program.
    Pager,
    /// The kernel, with swap on compressed memory.
    Kernel,
}

impl Engine {
    /// Every one.
    pub(crate) const ALL: [Self; 3] = [Self::Auto, Self::Pager, Self::Kernel];

    /// What people call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Pager => "pager",
            Self::Kernel => "kernel",
        }
    }
}

/// The parts of a program and of a command line that `auto` depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked<'a> {
    /// Why the pager cannot serve the program; `None` if it can.
    pub(crate) obstacle: Option<&'a str>,
    /// An option that only the pager has, if one was given.
    pub(crate) pagers_own: Option<&'a str>,
    /// One that the kernel's engine has as well and does less with, if one was given.
    pub(crate) pagers_better: Option<&'a str>,
}

/// The engine that `auto` is for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The engine; `None` if there is none.
    pub(crate) engine: Option<Engine>,
    /// Why, in words.
    pub(crate) why: String,
    /// Whether a run says so: not where it is the pager for want of anything else.
    pub(crate) is_told: bool,
    /// Whether the pager serves the program if what the engine needs cannot be made after all.
    pub(crate) or_pager: bool,
}

/// Chooses the engine of a run that names none.
///
/// `without_change` says whether the kernel's engine can be had without a change to the machine that
/// others would notice ([`Support::without_change`]). `with_change` says whether it can be had at all
/// with fast swap. Each is called only if the choice depends on it.
pub(crate) fn choose(
    asked: Asked<'_>,
    without_change: impl FnOnce() -> Result<String, String>,
    with_change: impl FnOnce() -> bool,
) -> Choice {
    if let Some(obstacle) = asked.obstacle {
        let lack = if let Some(option) = asked.pagers_own {
            Some(format!("{option} is the pager's"))
        } else if with_change() {
            None
        } else {
            Some("the kernel's engine lacks fast swap or rights".to_owned())
        };
        let why = format!("the pager cannot serve it ({obstacle})");
        let (engine, why) = match lack {
            None => (Some(Engine::Kernel), why),
            Some(lack) => (None, format!("{why}, and {lack}")),
        };
        return Choice { engine, why, is_told: engine.is_some(), or_pager: false };
    }
    let pager = |why: String, is_told: bool| Choice {
        engine: Some(Engine::Pager),
        why,
        is_told,
        or_pager: false,
    };
    match (without_change(), asked.pagers_own, asked.pagers_better) {
        (Err(lack), ..) => pager(lack, false),
        (Ok(swap), Some(option), _) => pager(format!("{swap}, but {option} is the pager's"), true),
        (Ok(swap), None, Some(option)) => {
            pager(format!("{swap}, but the pager does more with {option}"), true)
        }
        (Ok(swap), None, None) => {
            let engine = Some(Engine::Kernel);
            Choice { engine, why: swap, is_told: true, or_pager: true }
        }
    }
}

/// Whether a run with such a budget can have the kernel's engine on this machine without a change that
/// others would notice: the swap in words, or what is missing.
pub(crate) fn without_change(budget: Bytes) -> Result<String, String> {
    // Root's runs alone make devices.
    Support::without_change(&Root::machine(), &directory_of_records(0, None), budget)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWAP: &str = "zram0 is on, 8.00 GiB free";
    const LACK: &str = "no swap on compressed memory is on";

    /// The choice where there is such an obstacle, options of the pager's were given, compressed swap is
    /// on, and compressed swap can be had.
    fn of(
        obstacle: Option<&str>,
        options: (Option<&str>, Option<&str>),
        is_on: bool,
        can_be_had: bool,
    ) -> Choice {
        let (pagers_own, pagers_better) = options;
        let on = || if is_on { Ok(SWAP.to_owned()) } else { Err(LACK.to_owned()) };
        choose(Asked { obstacle, pagers_own, pagers_better }, on, || can_be_had)
    }

    #[test]
    fn each_case_has_its_engine_and_says_why() {
        let (kernel, pager) = (Some(Engine::Kernel), Some(Engine::Pager));
        let (own, better) = (Some("--huge-pages"), Some("--record"));
        for (obstacle, options, is_on, can_be_had, engine, why, is_told) in [
            // Swap that is on is used as it is.
            (None, (None, None), true, true, kernel, SWAP, true),
            // Nothing is made for a program that the pager can serve.
            (None, (None, None), false, true, pager, LACK, false),
            (None, (None, None), false, false, pager, LACK, false),
            (None, (own, None), true, true, pager, "--huge-pages is the pager's", true),
            (None, (own, better), true, true, pager, "--huge-pages is the pager's", true),
            (None, (None, better), true, true, pager, "does more with --record", true),
            (None, (own, better), false, true, pager, LACK, false),
            // What the pager cannot serve.
            (Some("static"), (None, None), true, true, kernel, "cannot serve it (static)", true),
            (Some("static"), (None, None), false, true, kernel, "cannot serve it (static)", true),
            (Some("static"), (None, better), false, true, kernel, "cannot serve it (static)", true),
            (Some("static"), (None, None), false, false, None, "lacks fast swap or rights", false),
            (Some("static"), (own, None), true, true, None, "--huge-pages is the pager's", false),
        ] {
            let choice = of(obstacle, options, is_on, can_be_had);
            let case = (obstacle, options, is_on, can_be_had);
            assert_eq!((choice.engine, choice.is_told), (engine, is_told), "{case:?}: {choice:?}");
            assert!(choice.why.contains(why), "{case:?}: {choice:?}");
            // Where the kernel's engine cannot be set up, the other one does if it can.
            assert_eq!(choice.or_pager, engine == kernel && obstacle.is_none(), "{case:?}");
        }
    }

    /// Each look opens files of the kernel's, which every run would pay for.
    #[test]
    fn only_what_matters_is_looked_at() {
        let none = || -> bool { panic!("it does not matter what can be made") };
        choose(Asked::default(), || Err(LACK.to_owned()), none);
        let none = || -> Result<String, String> { panic!("it does not matter what is on") };
        choose(Asked { obstacle: Some("static"), ..Asked::default() }, none, || true);
    }
}
