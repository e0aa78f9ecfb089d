//! The report of a group that was governed: memory taken from it as far as its slowdown allows.

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_kernel::govern::Governing;
use terrace_kernel::govern::working_set::Forecast;
use terrace_kernel::setup::zram::Held;

use crate::run::End;

/// What was asked for, seen, done and is recommended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GovernReport {
    /// The control group, or the program with its arguments.
    pub group: String,
    /// How the program ended; `None` while it runs, or for a group.
    pub end: Option<End>,
    /// Whether memory was put out, or only looked at.
    pub enforced: bool,
    /// The slowdown that is allowed, a share.
    pub target: f64,
    /// What was done.
    #[serde(flatten)]
    pub done: Governing,
    /// What could be saved at several slowdowns, the target among them.
    pub forecasts: Vec<Forecast>,
    /// How much DRAM the group should have, as [`GovernReport::recommended`] has it.
    pub recommended: Option<Bytes>,
    /// How far the forecast was off, as [`GovernReport::error`] has it.
    pub forecast_error: Option<f64>,
    /// How many times working sets were measured from the beginning to the longest time.
    pub curves: usize,
    /// What was not touched for at least a time.
    pub idle: Vec<Idle>,
    /// What zram devices hold, all of them, also for other groups.
    pub store: Option<Held>,
    /// Processor time of Terrace's own.
    pub own_cpu: Nanos,
    /// What could not be done on this machine, or for this user.
    pub lacks: Vec<String>,
}

/// Memory that was not touched.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Idle {
    /// For at least so long.
    pub time: Nanos,
    /// So much.
    pub memory: Bytes,
}

impl GovernReport {
    /// With the figures that follow from the others.
    #[must_use]
    pub fn complete(self) -> Self {
        let (recommended, forecast_error) = (self.recommended(), self.error());
        Self { recommended, forecast_error, ..self }
    }

    /// What is forecast at the target.
    pub fn at_target(&self) -> Option<&Forecast> {
        let is_it = |forecast: &&Forecast| (forecast.slowdown - self.target).abs() < 1e-9;
        self.forecasts.iter().find(is_it)
    }

    /// How much DRAM the group should have, without files' pages: what is left of it where it is
    /// governed, and what the forecast says at the target where it is only looked at.
    pub fn recommended(&self) -> Option<Bytes> {
        if self.enforced { Some(self.done.resident) } else { self.at_target().map(|f| f.left) }
    }

    /// By how much more or less is out of late than was forecast at the target, as a part of what was
    /// forecast; `None` where nothing was put out or forecast.
    pub fn error(&self) -> Option<f64> {
        let forecast = self.at_target().filter(|f| self.enforced && !f.middle.is_zero())?;
        Some(self.done.swapped_lately.as_f64() / forecast.middle.as_f64() - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(enforced: bool) -> GovernReport {
        let (least, middle, most) = (Bytes::mib(80), Bytes::mib(100), Bytes::mib(110));
        let left = Bytes::mib(60);
        GovernReport {
            group: "g".into(),
            end: None,
            enforced,
            target: 0.02,
            done: Governing {
                resident: Bytes::mib(64),
                swapped: Bytes::mib(80),
                swapped_lately: Bytes::mib(96),
                ..Default::default()
            },
            forecasts: vec![
                Forecast { slowdown: 0.01, least, middle: least, most, left },
                Forecast { slowdown: 0.02, least, middle, most, left },
            ],
            recommended: None,
            forecast_error: None,
            curves: 1,
            idle: Vec::new(),
            store: None,
            own_cpu: Nanos::ZERO,
            lacks: Vec::new(),
        }
    }

    #[test]
    fn what_left_is_held_against_the_forecast_at_the_target() {
        assert!((report(true).error().unwrap() + 0.04).abs() < 1e-9);
        assert_eq!(report(false).error(), None, "nothing was put out");
    }

    #[test]
    fn what_is_recommended_is_forecast_until_it_is_known() {
        assert_eq!(report(false).recommended(), Some(Bytes::mib(60)));
        assert_eq!(report(true).recommended(), Some(Bytes::mib(64)));
    }

    #[test]
    fn the_document_has_what_the_text_says() {
        let document = serde_json::to_value(report(true).complete()).unwrap();
        assert_eq!(document["recommended"], 64 << 20);
        assert!((document["forecast_error"].as_f64().unwrap() + 0.04).abs() < 1e-9);
        let looked = serde_json::to_value(report(false).complete()).unwrap();
        assert_eq!(looked["recommended"], 60 << 20);
        assert!(looked["forecast_error"].is_null());
    }
}
