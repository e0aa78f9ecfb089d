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

    /// Says something while the bar is away.
    pub(crate) fn above(&self, say: impl FnOnce()) {
        self.0.suspend(say);
    }

    /// The work is done; its bar goes away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A time that is an estimate: with as many digits as it deserves.
pub(crate) fn about(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..1.0 => "less than 1 s".to_owned(),
        1.0..90.0 => format!("about {seconds:.0} s"),
        90.0..5400.0 => format!("about {:.0} min", seconds / 60.0),
        _ => format!("about {:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_has_the_unit_that_people_would_use() {
        let said = |seconds: f64| about(Duration::from_secs_f64(seconds));
        assert_eq!(said(0.2), "less than 1 s");
        assert_eq!(said(12.4), "about 12 s");
        assert_eq!(said(150.0), "about 2 min");
        assert_eq!(said(9000.0), "about 2.5 h");
    }
}
