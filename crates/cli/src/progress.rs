//! What long work shows on a terminal; silent where stderr is none.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps of a bar: a tenth of a percent each.
const STEPS: u64 = 1000;

/// Bars of several works that go on side by side.
pub(crate) struct Progress {
    bars: MultiProgress,
}

/// One work's bar.
#[derive(Clone)]
pub(crate) struct Bar(ProgressBar);

impl Progress {
    /// Nothing is shown yet.
    pub(crate) fn new() -> Self {
        // `stderr` draws only where stderr is a terminal.
        Self { bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()) }
    }

    /// Adds a work.
    pub(crate) fn bar(&self, name: impl Into<String>) -> Bar {
        let bar = self.bars.add(ProgressBar::new(STEPS)).with_prefix(name.into());
        if let Ok(style) =
            ProgressStyle::with_template("{prefix:24!} {bar:30} {percent:>3} % {eta:>4} {msg}")
        {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Bar(bar)
    }
}

impl Bar {
    /// How far the work is, 0 to 1, and what it says.
    pub(crate) fn set(&self, share: f64, message: impl Into<String>) {
        self.0.set_position((share * STEPS as f64) as u64);
        self.0.set_message(message.into());
    }

    /// The work is done; its bar goes away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
