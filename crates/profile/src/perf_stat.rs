//! What `perf stat -x,` has counted of page walks, on whatever machine it ran.
//!
//! ```text
//! 4012345678,ns,duration_time,4012345678,100.00,,
//! 3998.12,msec,task-clock,3998120000,100.00,0.996,CPUs utilized
//! 8800123456,,cycles:u,3998120000,100.00,2.201,GHz
//! 712345678,,dtlb_load_misses.walk_active:u,3998120000,100.00,,
//! 31234567,,dtlb_store_misses.walk_active:u,3998120000,100.00,,
//! ```

use terrace_core::{Cycles, Frequency, Nanos};

use crate::profile::WalkTime;
use crate::refine::Counted;
use crate::text::{ProfileError, is_clock};

/// Events that count cycles in which a walk for data is under way, of Intel's processors.
const WALKING: [&str; 4] = [
    "dtlb_load_misses.walk_active",
    "dtlb_store_misses.walk_active",
    "dtlb_load_misses.walk_duration",
    "dtlb_store_misses.walk_duration",
];

/// Reads what was counted. `file` is only used in errors, `processor` is of the result.
///
/// # Errors
///
/// With file and line, where an event is missing or was not counted, or where more cycles went by
/// in walks than in the run.
pub fn parse(file: &str, text: &str, processor: &str) -> Result<Counted, ProfileError> {
    let bad = |line: usize, field: &str, message: String| ProfileError {
        file: file.to_owned(),
        line,
        field: Some(field.to_owned()),
        message,
    };
    let (mut elapsed, mut running, mut cycles) = (None, None, None);
    let mut walking: Vec<(&str, f64, usize)> = Vec::new();
    let lines = text.lines().count().max(1);
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [value, unit, event, ..] = fields[..] else {
            return Err(bad(number + 1, "value", "a line is value,unit,event,…".to_owned()));
        };
        // `cycles:u`, and `cpu_core/cycles/u` of processors with two kinds of cores.
        let name = event.split(':').next().unwrap_or(event);
        let name = name.split('/').nth(1).unwrap_or(name);
        let name: String = name.chars().take(60).flat_map(char::escape_debug).collect();
        let known = WALKING.iter().find(|known| **known == name);
        if known.is_none() && !matches!(&*name, "duration_time" | "task-clock" | "cycles") {
            continue;
        }
        let amount =
            value.parse::<f64>().ok().filter(|amount| amount.is_finite() && *amount >= 0.0);
        let Some(amount) = amount else {
            let value: String = value.chars().take(40).flat_map(char::escape_debug).collect();
            return Err(bad(number + 1, &name, format!("`{value}`: it was not counted")));
        };
        let nanos = |amount: f64| match unit {
            "msec" => Some(amount * 1e6),
            "ns" => Some(amount),
            _ => None,
        };
        match (&*name, known) {
            (_, Some(known)) => {
                if walking.iter().any(|(other, _, _)| other == known) {
                    return Err(bad(number + 1, &name, "is given twice".to_owned()));
                }
                walking.push((*known, amount, number + 1));
            }
            // Two kinds of processors, or two runs: the last one is not all of it.
            ("cycles", _) if cycles.is_some() => {
                return Err(bad(number + 1, &name, "is given twice".to_owned()));
            }
            ("cycles", _) => cycles = Some(amount),
            (_, _) => {
                let unit: String = unit.chars().take(20).flat_map(char::escape_debug).collect();
                let time = nanos(amount).ok_or_else(|| {
                    bad(number + 1, &name, format!("`{unit}` is no unit of time"))
                })?;
                let to = if name == "task-clock" { &mut running } else { &mut elapsed };
                if to.replace(time).is_some() {
                    return Err(bad(number + 1, &name, "is given twice".to_owned()));
                }
            }
        }
    }
    let need = |value: Option<f64>, event: &str| {
        value
            .filter(|value| *value > 0.0)
            .ok_or_else(|| bad(lines, event, "is missing, or nothing was counted".to_owned()))
    };
    let (elapsed, running) = (need(elapsed, "duration_time")?, need(running, "task-clock")?);
    let cycles = need(cycles, "cycles")?;
    // Loads and stores, both of one kind of event.
    let pair = WALKING
        .as_chunks::<2>()
        .0
        .iter()
        .find(|pair| walking.iter().any(|(event, ..)| pair.contains(event)));
    let pair = pair.unwrap_or(&[WALKING[0], WALKING[1]]);
    for event in pair {
        if !walking.iter().any(|(other, ..)| other == event) {
            return Err(bad(lines, event, "is missing".to_owned()));
        }
    }
    for (event, amount, line) in &walking {
        if !pair.contains(event) {
            let message = format!("is counted beside {}: they count the same walks", pair[0]);
            return Err(bad(*line, event, message));
        }
        if *amount > cycles {
            let message = format!("`{amount}` are more than all `cycles` of the run, `{cycles}`");
            return Err(bad(*line, event, message));
        }
    }
    let clock = Frequency(cycles / (running / 1e9));
    if !is_clock(clock) {
        return Err(bad(lines, "cycles", "give no clock with task-clock".to_owned()));
    }
    Ok(Counted {
        walking: Cycles::from_f64(walking.iter().map(|(_, cycles, _)| cycles).sum()),
        walk_time: WalkTime::Elapsed,
        clock,
        elapsed: Nanos::from_f64(elapsed.max(1.0)),
        processor: processor.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = include_str!("../tests/golden/perf-stat.csv");

    #[test]
    fn what_perf_counted_is_read() {
        let counted = parse("p", GOOD, "A Processor").expect("good");
        assert_eq!(counted.walking, Cycles(712_345_678 + 31_234_567));
        assert_eq!(counted.walk_time, WalkTime::Elapsed, "cycles in which any walk was active");
        assert!((counted.clock.get() / 2.2e9 - 1.0).abs() < 0.01, "{}", counted.clock);
        assert_eq!(counted.elapsed, Nanos(4_012_345_678));
    }

    #[test]
    fn what_was_not_counted_is_refused_with_its_line() {
        for (from, to, names) in [
            ("712345678,", "<not supported>,", "p:6: field `dtlb_load_misses.walk_active`"),
            ("31234567,,dtlb_store", "31234567,,dtlb_load", "is given twice"),
            ("3998.12,msec", "3998.12,CPUs", "is no unit of time"),
            ("duration_time", "duration_times", "field `duration_time`: is missing"),
            (",,cycles:u", ",,cycle:u", "field `cycles`: is missing"),
            (
                "31234567,,dtlb_store",
                "31234567,,itlb",
                "field `dtlb_store_misses.walk_active`: is m",
            ),
            (
                "712345678,",
                "8800123457,",
                "p:6: field `dtlb_load_misses.walk_active`: `8800123457`",
            ),
            ("31234567,", "99999999999999999999999,", "p:7: field `dtlb_store_misses.walk_active`"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = parse("p", &GOOD.replacen(from, to, 1), "").expect_err(to).to_string();
            assert!(error.contains(names), "{error}");
        }
        for (event, line) in [
            ("cycles", "1,,cpu_atom/cycles/u,1,100.00,,"),
            ("task-clock", "1.5,msec,task-clock,1,100.00,,"),
            ("duration_time", "5,ns,duration_time,5,100.00,,"),
        ] {
            let twice = format!("{GOOD}{line}\n");
            let error = parse("p", &twice, "").expect_err(event).to_string();
            assert!(error.contains(&format!("field `{event}`: is given twice")), "{error}");
        }
        // 8.8 Gcycles in 4 ns.
        let fast = GOOD.replace("3998.12,msec", "4,ns");
        let error = parse("p", &fast, "").expect_err("no processor's").to_string();
        assert!(error.contains("field `cycles`: give no clock"), "{error}");
        assert!(parse("p", "1,2", "").is_err() && parse("p", "", "").is_err());
        let none = GOOD.replace("walk_active", "miss_causes_a_walk");
        assert!(parse("p", &none, "").expect_err("no walks").to_string().contains("walk_active"));
    }
}
