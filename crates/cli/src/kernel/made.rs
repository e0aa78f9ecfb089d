//! What was made for programs, and is undone whatever happens.

use std::fs::File;
use std::process::Command;

use terrace_kernel::setup::group::Group;
use terrace_kernel::setup::watchdog::Watchdog;
use terrace_kernel::setup::{SetUp, SetUpError, Site, SwapUse, Wish, WishedGroup, planned_group};

use crate::clean;
use crate::failure::Failure;
use crate::output;

/// Swap, and a control group. Undone when this is dropped.
pub(crate) struct Made {
    set_up: Option<SetUp>,
    site: Site,
    quiet: bool,
    /// Tells others that somebody keeps the group within its budget. Let go after what was made is
    /// undone.
    keeps: Option<File>,
    /// Undoes it if this process is killed, or as soon as processes have ended that need it longer;
    /// ends after everything else. `None` where it could not be started, which was said.
    watchdog: Option<Watchdog>,
}

/// Has somebody undo what is going to be made, if this process is killed.
fn watch(group: Option<&Group>, quiet: bool) -> Option<Watchdog> {
    // This very file, even if another one has its name by then.
    let clean = (c"/proc/self/exe", &[c"terrace", c"clean"][..]);
    Watchdog::start(group, clean)
        .inspect_err(|error| {
            if !quiet {
                output::warn(format_args!(
                    "nobody would take limits off the program if Terrace were killed ({error}); \
                     `terrace clean` would"
                ));
            }
        })
        .ok()
}

impl Made {
    /// Makes what is wished for; `whom` is the command and its option, for errors.
    pub(crate) fn new(whom: &str, wish: &Wish, quiet: bool) -> Result<Self, Failure> {
        Self::on(Site::machine(clean::records()), whom, wish, quiet)
    }

    /// The same on a machine.
    pub(crate) fn on(site: Site, whom: &str, wish: &Wish, quiet: bool) -> Result<Self, Failure> {
        let group = match wish.group {
            WishedGroup::Own => planned_group(&site.root, std::process::id()).ok(),
            WishedGroup::None => None,
        };
        let watchdog = watch(group.as_ref(), quiet);
        let set_up = SetUp::new(&site, wish).map_err(|error| match error {
            SetUpError::Missing(what) => Failure::unsupported(format!("{whom}: {what}")),
            SetUpError::Failed(error) => Failure::failed(error),
        })?;
        // Without a group the run is whatever this process has started, which it would be part of.
        let is_told_apart = wish.group == WishedGroup::None || set_up.group().is_some();
        let watchdog = watchdog.filter(|_| is_told_apart);
        let mut made = Self { set_up: Some(set_up), site, quiet, keeps: None, watchdog };
        made.keep()?;
        Ok(made)
    }

    /// A share in what was made for another run.
    pub(crate) fn share(
        program: &str,
        group: &Group,
        swap: &SwapUse,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let site = Site::machine(clean::records());
        let watchdog = watch(Some(group), quiet);
        let set_up = SetUp::share(&site, program, group, swap).map_err(Failure::failed)?;
        Ok(Self { set_up: Some(set_up), site, quiet, keeps: None, watchdog })
    }

    fn set_up(&self) -> &SetUp {
        self.set_up.as_ref().expect("it is taken when this is dropped")
    }

    /// The control group, if there is one.
    pub(crate) fn group(&self) -> Option<&Group> {
        self.set_up().group()
    }

    /// Why there is none where there should be.
    pub(crate) fn no_group(&self) -> Option<String> {
        self.set_up().no_group.clone()
    }

    /// What pages are swapped to.
    pub(crate) fn swap(&self) -> &SwapUse {
        &self.set_up().swap
    }

    /// Becomes the one who keeps the group within its budget; false while another is.
    pub(crate) fn keep(&mut self) -> Result<bool, Failure> {
        let Some(group) = self.group() else { return Ok(true) };
        self.keeps = group.keep().map_err(Failure::failed)?;
        Ok(self.keeps.is_some())
    }

    /// Has a command's program begin in the group.
    pub(crate) fn place(&self, command: &mut Command) -> Result<(), Failure> {
        self.set_up().place(command).map_err(Failure::failed)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let Some(set_up) = self.set_up.take() else { return };
        match set_up.finish(&self.site) {
            Ok(cleaned) => {
                for group in cleaned.emptied.iter().filter(|_| !self.quiet) {
                    output::say(format_args!(
                        "control group {}, which the program had made, was empty and is removed",
                        group.display()
                    ));
                }
                // Others' have watchdogs of their own, and `terrace clean` tells of them.
                let ours: Vec<_> = cleaned.kept.iter().filter(|kept| kept.ours).collect();
                let watchdog = self.watchdog.take().filter(|_| !ours.is_empty());
                let who =
                    if watchdog.is_some() { "it is removed" } else { "`terrace clean` removes it" };
                for kept in ours.into_iter().filter(|_| !self.quiet) {
                    let (what, why) = (&kept.what, &kept.why);
                    output::warn(format_args!("{what} stays: {why} ({who} when that is over)"));
                }
                if let Some(watchdog) = watchdog {
                    watchdog.take_over();
                }
            }
            Err(error) => {
                // Whatever is left has to go some time.
                let who = match self.watchdog.take() {
                    Some(watchdog) => {
                        watchdog.take_over();
                        "it is tried again when this process has ended"
                    }
                    None => "`terrace clean` tries again",
                };
                Failure::failed(format!("{error} ({who})")).report();
            }
        }
    }
}
