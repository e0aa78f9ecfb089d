//! The page of a plan: slowdown by fast memory.

use terrace_core::Bytes;
use terrace_sim::plan::{Choice, How, PlanReport};

use super::chart::{self, Axis, Curve, Mark, escape};
use super::shell::{count, percent, table, tiles, wrap};

/// The whole page.
pub fn plan_page(report: &PlanReport) -> String {
    let title = "How much fast memory is enough";
    let mut body = format!(
        "<h1>{title}</h1>\n<p class=\"sub\"><code>{}</code><br>on {}: {} as fast memory, {} as \
         slow memory; {} accesses in {}, {} in fast memory alone</p>\n",
        escape(&report.workload),
        escape(&report.machine),
        escape(&report.fast_tier),
        escape(&report.slow_tier),
        count(report.accesses),
        report.footprint,
        report.fast_time,
    );
    body += &answers(report);
    body += &picture(report);
    body += &choices(report);
    wrap("plan", &format!("{title} – Terrace"), &body)
}

fn name(how: How) -> &'static str {
    match how {
        How::BestPlacement => "best placement that never moves a page",
        How::Lru => "LRU",
        How::Simulated(policy) => policy.name(),
    }
}

fn answers(report: &PlanReport) -> String {
    let mut values = Vec::new();
    for part in &report.parts {
        if let Some(choice) = part.answers.smallest {
            let share = choice.fast.as_f64() / report.footprint.as_f64().max(1.0);
            let what = format!(
                "{}, {} of the footprint: {} slower",
                name(part.curve.how),
                percent(share),
                percent(choice.slowdown)
            );
            values.push((choice.fast.to_string(), what));
        } else {
            let what =
                format!("{}: never within {}", name(part.curve.how), percent(report.slowdown));
            values.push(("–".to_owned(), what));
        }
    }
    if let Some(slowdown) = report.all_slow {
        values.push((percent(slowdown), "slower in slow memory alone".to_owned()));
    }
    if let Some(fault) = report.fault {
        let what = format!("a fault: {}, and the content {}", fault.fault, fault.content);
        values.push(((fault.fault + fault.content).to_string(), what));
    }
    format!(
        "<h2>The least {} that is at most {} slower</h2>\n{}",
        escape(&report.fast_tier),
        percent(report.slowdown),
        tiles(&values)
    )
}

fn picture(report: &PlanReport) -> String {
    let classes = ["a", "b", "c", "d", "e"];
    let widest = report.parts.iter().filter_map(|part| part.curve.points.last());
    let widest = widest.map(|point| point.fast.as_f64()).fold(1.0, f64::max);
    // LRU's cliff with a paged memory would flatten everything of interest.
    let highest = report.parts.iter().flat_map(|part| &part.curve.points);
    let highest = highest.map(|point| point.slowdown).fold(0.0, f64::max);
    let shown = if report.fault.is_some() { highest.min(report.slowdown * 20.0) } else { highest };
    let top = chart::above(shown.max(report.slowdown * 1.5));
    let curves: Vec<Curve<'_>> = report
        .parts
        .iter()
        .zip(classes.iter().cycle())
        .map(|(part, class)| Curve {
            name: name(part.curve.how),
            class,
            dots: matches!(part.curve.how, How::Simulated(_)),
            points: part
                .curve
                .points
                .iter()
                .map(|point| (point.fast.as_f64(), point.slowdown))
                .collect(),
        })
        .collect();
    let mut marks = Vec::new();
    for part in &report.parts {
        if let Some(choice) = part.answers.smallest {
            let text = format!("{}: {}", choice.fast, name(part.curve.how));
            marks.push(Mark { x: choice.fast.as_f64(), y: choice.slowdown, text });
        }
    }
    if let Some(knee) = report.parts[0].answers.knee {
        let text = format!("knee: {}", knee.fast);
        marks.push(Mark { x: knee.fast.as_f64(), y: knee.slowdown, text });
    }
    let x = Axis { binary: true, most: widest, words: &|bytes| Bytes(bytes as u64).to_string() };
    let y = Axis { binary: false, most: top, words: &percent };
    let bound = (report.slowdown, format!("accepted: {}", percent(report.slowdown)));
    let more = if shown < highest {
        format!(" Up to {} where little fast memory is left (not drawn).", percent(highest))
    } else {
        String::new()
    };
    format!(
        "<h2>Slowdown by fast memory</h2>\n<p class=\"sub\">{}{more}</p>\n{}",
        explain(report),
        chart::curves("Slowdown by fast memory", 340.0, &x, &y, &curves, &bound, &marks)
    )
}

fn explain(report: &PlanReport) -> &'static str {
    if report.fault.is_some() {
        "Faults under LRU are exact for every size, from one pass; their number times the price \
         of one, over the run time, is the slowdown. Pages are written out in the background."
    } else {
        "The best placement's misses are exact for every size, from one run; its time is \
         simulated at some sizes and around the answer, and taken to fall with the misses in \
         between. Each dot is a simulation."
    }
}

fn choices(report: &PlanReport) -> String {
    let mut text = String::from("<h2>Choices</h2>\n");
    let cells = |choice: Choice| {
        let price = choice.price.map_or("–".to_owned(), |price| format!("{price:.2}"));
        vec![choice.fast.to_string(), choice.slow.to_string(), percent(choice.slowdown), price]
    };
    let mut rows = Vec::new();
    for part in &report.parts {
        let answers = &part.answers;
        let all = [
            ("least fast memory within the slowdown", answers.smallest),
            ("knee", answers.knee),
            ("least slowdown within the budget", answers.within_budget),
            ("least price times run time", answers.cheapest_work),
        ];
        for (what, choice) in all {
            let Some(choice) = choice else { continue };
            let mut row = vec![format!("{}: {what}", name(part.curve.how))];
            row.extend(cells(choice));
            rows.push(row);
        }
    }
    text += &table(&["", &report.fast_tier, &report.slow_tier, "slower", "price"], rows);
    if let Some([fast, slow]) = report.prices {
        text += &format!(
            "<p class=\"sub\">Prices are those of all memory, {} of it fast or slow, in the \
             currency of --price: {} {fast} a GiB, {} {slow} a GiB.</p>\n",
            report.footprint,
            escape(&report.fast_tier),
            escape(&report.slow_tier)
        );
    }
    if let Some(error) = report.error {
        text += &format!(
            "<p class=\"sub\">How far off such plans are: {} of {} predictions for {} other \
             programs, each measured with another input, were within 10 % of the run time; {} at \
             most.</p>\n",
            error.within_tenth,
            error.predictions,
            error.programs,
            percent(error.worst)
        );
    }
    text
}
