use super::control::{self, Control};
use super::curves::Curves;
use super::look::Look;
use super::slowdown::{FAULT, Slowdown, Source};
use super::working_set::{Curve, Point, forecast};
use super::*;
use crate::files::Root;

const SECOND: Nanos = Nanos::seconds(1);

/// A program that touches its memory at several rates: of each part (pages, how often a second) a
/// page is touched again after that time, evenly.
struct Program {
    parts: Vec<(u64, f64)>,
    now: Nanos,
    /// Of each part, the pages that are out.
    out: Vec<u64>,
    /// Of each part, those that are not and were not touched since that was asked for.
    idle: Vec<u64>,
    /// Whether the kernel can be told to forget what was touched, and how often it was.
    knows_ages: bool,
    forgot: u64,
    /// Whether what was asked for still leaves.
    taking: bool,
    /// How often what is asked for is answered by how the time before ended.
    fails: u64,
    refaults: u64,
    swap: Bytes,
    asked: Bytes,
    /// How much of what is wanted the kernel is asked for before the rest is given up.
    most: Bytes,
    gone: bool,
    /// How often what leaves was to stop.
    stopped: u64,
}

impl Program {
    fn new(parts: &[(u64, f64)]) -> Self {
        let (out, idle) = (vec![0; parts.len()], vec![0; parts.len()]);
        // It does not get free again here.
        let swap = Bytes::gib(64 << 10);
        let parts = parts.to_vec();
        Self {
            parts,
            now: Nanos::ZERO,
            out,
            idle,
            knows_ages: false,
            forgot: 0,
            taking: false,
            fails: 0,
            refaults: 0,
            swap,
            asked: Bytes::ZERO,
            most: swap,
            gone: false,
            stopped: 0,
        }
    }

    /// One that the kernel can be told to forget the ages of.
    fn with_ages(parts: &[(u64, f64)]) -> Self {
        Self { knows_ages: true, ..Self::new(parts) }
    }

    fn resident(&self) -> u64 {
        self.parts.iter().map(|part| part.0).sum::<u64>() - self.out.iter().sum::<u64>()
    }

    /// A second goes by: what is out and is touched comes back.
    fn run(&mut self) {
        self.now += SECOND;
        for ((part, out), idle) in self.parts.iter().zip(&mut self.out).zip(&mut self.idle) {
            let touched = |pages: u64| (pages as f64 * part.1.min(1.0)).round() as u64;
            let back = touched(*out);
            *out -= back;
            self.refaults += back;
            *idle -= touched(*idle);
        }
    }

    /// What was not touched leaves, of all parts alike: nothing else is known. How much is missing.
    fn reclaim_idle(&mut self, pages: u64) -> u64 {
        let all = self.idle.iter().sum::<u64>();
        let wanted = pages.min(all);
        let (mut seen, mut taken) = (0, 0);
        for (out, idle) in self.out.iter_mut().zip(&mut self.idle).filter(|(_, idle)| **idle > 0) {
            seen += *idle;
            let take = seen * wanted / all - taken;
            taken += take;
            *out += take;
            *idle -= take;
        }
        pages - taken
    }
}

impl Governed for Program {
    fn look(&mut self) -> Option<Look> {
        let pages = |pages: u64| Bytes(pages * 4096);
        (!self.gone).then(|| Look {
            at: self.now,
            resident: pages(self.resident()),
            swapped: pages(self.out.iter().sum()),
            beside: Beside::default(),
            refaults: self.refaults,
            stalled: None,
            cpu: self.now,
            swap_free: Some(self.swap),
        })
    }

    /// The kernel's lists are perfect here: what is touched least leaves first. Where it was told to forget
    /// that, what was not touched since.
    fn reclaim(&mut self, bytes: Bytes) -> io::Result<bool> {
        if let Some(fails) = self.fails.checked_sub(1) {
            self.fails = fails;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bytes = bytes.min(self.most);
        let mut pages = bytes.get() / 4096;
        self.asked += bytes;
        self.swap -= bytes;
        if self.knows_ages {
            pages = self.reclaim_idle(pages);
        }
        let mut order: Vec<usize> = (0..self.parts.len()).collect();
        order.sort_by(|a, b| self.parts[*a].1.total_cmp(&self.parts[*b].1));
        for part in order {
            let take = pages.min(self.parts[part].0 - self.out[part]);
            self.out[part] += take;
            pages -= take;
        }
        if pages > 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(true) }
    }

    fn asked(&self) -> Bytes {
        self.asked
    }

    fn stop(&mut self) {
        self.stopped += 1;
    }

    fn is_taking(&mut self) -> bool {
        self.taking
    }

    fn forget(&mut self) -> Option<Nanos> {
        self.forgot += 1;
        let resident = self.parts.iter().zip(&self.out).map(|(part, out)| part.0 - out);
        self.idle = resident.collect();
        self.knows_ages.then_some(Nanos::ZERO)
    }

    fn idle(&mut self) -> Bytes {
        Bytes(self.idle.iter().sum::<u64>() * 4096)
    }
}

fn govern(program: Program, target: f64, seconds: usize) -> GroupGovernor<Program> {
    let mut governor = GroupGovernor::new(program, target);
    for _ in 0..seconds {
        assert!(governor.step().unwrap());
        governor.world().run();
    }
    governor
}

#[test]
fn what_sleeps_leaves_and_what_is_used_stays() {
    // 64 MiB that are always in use, and 192 MiB that are not.
    let governor = govern(Program::new(&[(16 << 10, 1.0), (48 << 10, 0.0)]), 0.02, 2000);
    let done = governor.done();
    assert!(done.swapped >= Bytes::mib(180), "{done:?}");
    assert!(done.resident >= Bytes::mib(62), "{done:?}");
    assert!(done.slowdown.unwrap() < 0.02, "{done:?}");
}

#[test]
fn the_slowdown_stays_near_its_target_where_all_is_used_now_and_then() {
    for target in [0.01, 0.02, 0.05] {
        // Each tenth more rarely used than the one before.
        let parts: Vec<_> = (0..10).map(|i| (8 << 10, 0.5 / f64::from(1 << i))).collect();
        let governor = govern(Program::new(&parts), target, 4000);
        let done = governor.done();
        assert!(done.swapped > Bytes::mib(32), "{target}: {done:?}");
        assert!(done.slowdown.unwrap() <= target, "{target}: {done:?}");
    }
}

#[test]
fn more_may_leave_at_a_higher_target() {
    let parts: Vec<_> = (0..10).map(|i| (8 << 10, 0.5 / f64::from(1 << i))).collect();
    let mean = |target| {
        let mut governor = GroupGovernor::new(Program::new(&parts), target);
        let mut sum = 0.0;
        for _ in 0..4000 {
            governor.step().unwrap();
            governor.world().run();
            sum += governor.done().swapped.as_f64();
        }
        sum / 4000.0
    };
    let means = [0.005, 0.02, 0.08].map(mean);
    assert!(means.windows(2).all(|pair| pair[0] < pair[1]), "{means:?}");
}

#[test]
fn nothing_is_asked_for_without_swap() {
    let mut program = Program::new(&[(16 << 10, 0.0)]);
    program.swap = Bytes::ZERO;
    let governor = govern(program, 0.02, 100);
    assert_eq!(governor.done().asked, Bytes::ZERO);
}

/// A group that grows all the time has most of what is wanted given up.
#[test]
fn what_was_given_up_was_not_asked_for() {
    let mut program = Program::new(&[(48 << 10, 0.0)]);
    program.most = Bytes::kib(64);
    // The first look says nothing of what may go.
    let governor = govern(program, 0.02, 11);
    assert_eq!(governor.done().asked, Bytes::kib(640));
}

/// What was asked for in a second that was well may still be under way in one that is not.
#[test]
fn above_the_target_what_is_being_put_out_stops() {
    // All of it is in use: the hundredth that leaves comes back at once, 163 pages at 8 µs each.
    let mut governor = govern(Program::new(&[(16 << 10, 1.0)]), 0.001, 100);
    let above = governor.done().above;
    assert!(above > 0 && above < governor.done().intervals, "{:?}", governor.done());
    assert_eq!(governor.world().stopped, above);
}

#[test]
fn a_group_that_is_gone_is_not_governed() {
    let mut governor = govern(Program::new(&[(1024, 0.0)]), 0.02, 3);
    governor.world().gone = true;
    assert!(!governor.step().unwrap());
}

/// What is to leave after an interval where nobody knows how old memory is.
fn next(control: &mut Control, slowdown: &Slowdown, back: Bytes, look: &Look) -> Bytes {
    if control.note(slowdown, back) {
        control::asked(control.rate(look), look)
    } else {
        Bytes::ZERO
    }
}

/// An interval of a second with such a slowdown.
fn second(share: f64) -> Slowdown {
    let ran = SECOND.as_f64() / (1.0 + share);
    let stalled = Nanos::from_f64(SECOND.as_f64() - ran);
    Slowdown { stalled, ran: Nanos::from_f64(ran), source: Source::Refaults }
}

/// A walk once a minute takes a second's half, and 0.9 % of all time.
#[test]
fn the_target_is_a_mean_and_nothing_leaves_in_a_bad_second() {
    let look = Look { resident: Bytes::gib(1), ..Look::default() };
    let mut control = Control::new(0.02);
    let mut asked = Bytes::ZERO;
    for at in 0..600 {
        let share = if at % 60 == 30 { 0.5 } else { 0.0 };
        let next = next(&mut control, &second(share), Bytes::ZERO, &look);
        assert!(share == 0.0 || next.is_zero(), "{at}");
        asked += next;
    }
    assert!(asked > Bytes::gib(5), "{asked}");
}

#[test]
fn above_the_target_of_late_nothing_leaves_until_it_was_well_for_long_enough() {
    let look = Look { resident: Bytes::gib(1), ..Look::default() };
    let mut control = Control::new(0.02);
    let pass = |control: &mut Control, share, times| {
        (0..times).for_each(|_| _ = next(control, &second(share), Bytes::ZERO, &look));
    };
    pass(&mut control, 0.0, 100);
    pass(&mut control, 0.05, 30);
    let rest = |control: &mut Control| {
        (0..1000).take_while(|_| next(control, &second(0.0), Bytes::ZERO, &look).is_zero()).count()
    };
    let first = rest(&mut control);
    assert!((5..60).contains(&first), "{first}");
    // On the whole it must be well, too: so often the mean of the last half minute alone does not tell.
    pass(&mut control, 0.05, 300);
    let longer = rest(&mut control);
    assert!(longer > first, "{longer} {first}");
}

#[test]
fn the_nearer_the_target_the_less_leaves_and_as_much_as_came_back() {
    let look = Look { resident: Bytes::gib(1), ..Look::default() };
    let asked = [0.0, 0.01, 0.019, 0.02]
        .map(|share| next(&mut Control::new(0.02), &second(share), Bytes::ZERO, &look));
    assert!(asked.windows(2).all(|pair| pair[0] > pair[1]), "{asked:?}");
    assert_eq!(asked[3], Bytes::ZERO);

    let back = next(&mut Control::new(0.02), &second(0.01), Bytes::mib(4), &look);
    assert_eq!(back, asked[1] + Bytes::mib(4));
    let full = Look { swap_free: Some(Bytes::mib(2)), ..look };
    let room = next(&mut Control::new(0.02), &second(0.01), Bytes::mib(4), &full);
    assert_eq!(room, Bytes::mib(2));
}

/// Were no more put out than a part of what is resident, as much would come back long before the target.
#[test]
fn what_a_slowdown_allows_is_made_use_of() {
    let parts: Vec<_> = (0..10).map(|i| (8 << 10, 0.5 / f64::from(1 << i))).collect();
    for target in [0.01, 0.02] {
        let slowdown = govern(Program::new(&parts), target, 4000).done().slowdown.unwrap();
        assert!(slowdown > 0.8 * target, "{target}: {slowdown}");
    }
}

#[test]
fn what_is_out_of_late_is_a_mean() {
    let governor = govern(Program::new(&[(16 << 10, 1.0), (48 << 10, 0.0)]), 0.02, 2000);
    let done = governor.done();
    let near = done.swapped_lately.as_f64() / done.swapped.as_f64();
    assert!((0.9..1.1).contains(&near), "{done:?}");
}

#[test]
fn the_greater_of_two_slowdowns_holds() {
    let before = Look { stalled: Some(Nanos::ZERO), ..Look::default() };
    let after = Look {
        at: SECOND,
        cpu: SECOND,
        refaults: 1000,
        stalled: Some(Nanos::millis(100)),
        ..Look::default()
    };
    let slowdown = Slowdown::between(&before, &after);
    assert_eq!(slowdown.source, Source::Pressure);
    assert!((slowdown.share() - 0.1 / 0.9).abs() < 1e-9);

    let unseen = Look { stalled: Some(Nanos::ZERO), ..after };
    let slowdown = Slowdown::between(&before, &unseen);
    let back = (FAULT.get() * 1000) as f64 / 1e9;
    assert_eq!(slowdown.source, Source::Refaults);
    assert!((slowdown.share() - back / (1.0 - back)).abs() < 1e-9);
}

/// A program whose part i is touched evenly once in `2^i` seconds: what is known of it in closed
/// form is what its curve has to say.
fn even(parts: u32, pages: u64) -> Curve {
    let at = |seconds: f64| {
        let touched: f64 =
            (0..parts).map(|i| (seconds / f64::from(1 << i)).min(1.0) * pages as f64).sum();
        Point {
            within: Nanos::from_f64(seconds * 1e9),
            touched: Bytes((touched * 4096.0) as u64),
            resident: Bytes(u64::from(parts) * pages * 4096),
            cpu: Nanos::from_f64(seconds * 1e9),
        }
    };
    Curve { points: (0..8).map(|i| at(f64::from(1 << i))).collect() }
}

/// After T = 2^i seconds the parts above i are idle but for T of each period, and as much of them comes
/// back until 2T.
#[test]
fn a_forecast_puts_out_what_comes_back_slowly_enough() {
    let pages = 8 << 10;
    let curve = even(8, pages);
    let at = |i: u32| {
        let (time, mut rate, mut begin, mut end) = (f64::from(1 << i), 0.0, 0.0, 0.0);
        for part in i + 1..8 {
            let period = f64::from(1 << part);
            rate += pages as f64 / period;
            begin += pages as f64 * (1.0 - time / period);
            end += pages as f64 * (1.0 - 2.0 * time / period);
        }
        (rate * FAULT.get() as f64 / 1e9, begin, end)
    };
    for i in 0..6 {
        let (slowdown, begin, end) = at(i);
        let saving = curve.saving(slowdown * 1.0001).unwrap();
        let out = saving.out.as_f64() / 4096.0;
        assert!((saving.idle.as_secs() / f64::from(1 << i) - 1.0).abs() < 0.01, "{i}: {saving:?}");
        assert!(
            out > end && out <= f64::midpoint(begin, end) + 2.0,
            "{i}: {saving:?} {begin} {end}"
        );
        let all = (saving.out + saving.left).as_f64() / 4096.0;
        assert!((all - 8.0 * pages as f64).abs() < 2.0, "{i}: {saving:?}");
    }
}

/// Between two times there are others.
#[test]
fn a_forecast_makes_use_of_all_the_slowdown() {
    let curve = even(8, 8 << 10);
    let slowdowns = (1..=60).map(|i| 0.0005 * f64::from(i));
    let savings: Vec<_> = slowdowns.map(|slowdown| curve.saving(slowdown).unwrap()).collect();
    for pair in savings.windows(2) {
        assert!(pair[0].out < pair[1].out && pair[0].idle > pair[1].idle, "{pair:?}");
        let step = (pair[1].out - pair[0].out).as_f64() / Bytes::mib(256).as_f64();
        assert!(step < 0.2, "{pair:?}");
    }
}

/// A part of it is out, and as much less comes back.
#[test]
fn where_too_much_comes_back_at_all_times_a_part_leaves() {
    let mut curve = even(8, 8 << 10);
    curve.points.truncate(4);
    let all = curve.saving(1.0).unwrap();
    let [short, long] = curve.points[2..] else { unreachable!() };
    let again = (long.touched - short.touched).get() / 4096;
    let slowdown = (FAULT * again) / (long.within - short.within);
    let whole = curve.saving(slowdown * 1.0001).unwrap();
    let half = curve.saving(slowdown / 2.0).unwrap();
    assert!((half.out.as_f64() / whole.out.as_f64() - 0.5).abs() < 0.001, "{half:?} {whole:?}");
    assert!((half.idle.as_secs() - 8.0).abs() < 0.01, "half of what is idle for 4 s: {half:?}");
    let sums = [whole, half].map(|saving| (saving.left + saving.out).as_f64());
    assert!((sums[0] - sums[1]).abs() < 4096.0, "{half:?} {whole:?}");
    assert!(all.out > whole.out && all.idle == SECOND, "{all:?}");
}

#[test]
fn more_can_be_saved_at_a_higher_slowdown() {
    let curve = even(8, 8 << 10);
    let savings = [0.001, 0.005, 0.02, 0.1].map(|s| curve.saving(s).map(|s| s.out));
    assert!(savings.windows(2).all(|pair| pair[0] <= pair[1]), "{savings:?}");
    assert!(savings[0] < savings[3]);
}

#[test]
fn new_memory_is_not_taken_for_what_comes_back() {
    let mut curve = even(1, 0);
    for (i, point) in curve.points.iter_mut().enumerate() {
        point.touched = Bytes::mib(i as u64 * 64);
        point.resident = Bytes::mib(64 + i as u64 * 64);
    }
    assert_eq!(curve.saving(1e-9).unwrap().out, Bytes::mib(64));
}

/// Whoever reads a report without a forecast wants to know what keeps it from being one.
#[test]
fn what_keeps_a_forecast_from_being_made_is_known() {
    let mut curves = Curves::new(Root::at("/nonexistent"), Nanos::seconds(4));
    let mut look = |second: u64, mib: u64| {
        curves.step(Nanos::seconds(second), &[], Nanos::ZERO, Bytes::mib(mib));
        curves.lack()
    };
    assert!(look(1, 10).is_some_and(|lack| lack.contains("ended before")));
    assert!(look(2, 20).is_some_and(|lack| lack.contains("grew all the time")));
    assert!(look(3, 40).is_some_and(|lack| lack.contains("grew all the time")));
    // It stands still, and two times are looked at.
    assert!(look(4, 40).is_some_and(|lack| lack.contains("ended before")));
    assert!(look(5, 40).is_some());
    assert_eq!(look(6, 40), None);
}

#[test]
fn of_a_group_that_has_nothing_is_not_said_that_it_grew() {
    let mut curves = Curves::new(Root::at("/nonexistent"), Nanos::seconds(4));
    assert!(curves.lack().is_some_and(|lack| lack.contains("ended before")), "nobody has looked");
    for second in 1..60 {
        curves.step(Nanos::seconds(second), &[], Nanos::ZERO, Bytes::ZERO);
        assert!(curves.lack().is_some_and(|lack| lack.contains("nothing in DRAM")));
    }
    // Something comes, and goes again.
    for (second, mib) in [(60, 10), (61, 0), (62, 0), (63, 0)] {
        curves.step(Nanos::seconds(second), &[], Nanos::ZERO, Bytes::mib(mib));
        assert!(curves.lack().is_some_and(|lack| lack.contains("ended before")));
    }
}

#[test]
fn a_forecast_says_how_far_curves_are_apart() {
    let curves = [even(4, 1024), even(6, 1024), even(8, 1024), Curve::default()];
    let of = forecast(&curves, 0.02).unwrap();
    assert!(of.least <= of.middle && of.middle <= of.most && of.least < of.most, "{of:?}");
    assert_eq!(forecast(&[Curve::default()], 0.02), None);
}

/// A program of so many pages that are accessed so often a second, by a power law.
fn by_power_law(pages: u64, accesses: f64) -> Vec<(u64, f64)> {
    const PARTS: u32 = 64;
    let pages = pages / u64::from(PARTS);
    let below = |part: u32| (f64::from(part) / f64::from(PARTS)).powf(1.0 / 6.0);
    let rate = |part: u32| (below(part + 1) - below(part)) * accesses / pages as f64;
    (0..PARTS).map(|part| (pages, 1.0 - (-rate(part)).exp())).collect()
}

/// What is touched of it, within times up to half a minute.
fn curve_of(parts: &[(u64, f64)]) -> Curve {
    let at = |seconds: u32| {
        let is = |part: &(u64, f64)| part.0 as f64 * (1.0 - (1.0 - part.1).powf(seconds.into()));
        let within = SECOND * u64::from(seconds);
        Point {
            within,
            touched: Bytes::from_f64(parts.iter().map(is).sum::<f64>() * 4096.0),
            resident: Bytes(parts.iter().map(|part| part.0 * 4096).sum()),
            cpu: within,
        }
    };
    Curve { points: (0..6).map(|i| at(1 << i)).collect() }
}

/// What is out follows the pages that the forecast counted, at the slowdown that it was made for.
#[test]
fn as_much_is_saved_as_was_forecast() {
    let evenly: Vec<_> = (0..10).map(|i| (8 << 10, 0.5 / f64::from(1 << i))).collect();
    let often = by_power_law(32 << 10, 30e3);
    let seldom = by_power_law(32 << 10, 15e3);
    for (name, parts) in [("evenly", &evenly), ("often", &often), ("seldom", &seldom)] {
        for target in [0.01, 0.02, 0.05] {
            let saving = curve_of(parts).saving(target).unwrap();
            let mut governor = GroupGovernor::new(Program::with_ages(parts), target);
            governor.start_at(saving.idle);
            let mut out = 0.0;
            for second in 0..300 {
                assert!(governor.step().unwrap());
                governor.world().run();
                if second >= 100 {
                    out += governor.done().swapped_lately.as_f64() / 200.0;
                }
            }
            let done = governor.done();
            let error = out / saving.out.as_f64() - 1.0;
            assert!(error.abs() < 0.1, "{name}, {target}: {error}, {saving:?}, {done:?}");
            assert!(done.slowdown.unwrap() <= target, "{name}, {target}: {done:?}");
        }
    }
}

/// Asked for a part of all each second, the kernel would come to what is in use in the end.
#[test]
fn what_was_touched_stays_however_little_else_there_is() {
    let program = Program::with_ages(&[(16 << 10, 1.0), (48 << 10, 0.0)]);
    let governor = govern(program, 0.02, 300);
    let done = governor.done();
    assert!(done.swapped > Bytes::mib(190) && done.resident >= Bytes::mib(64), "{done:?}");
    assert_eq!((done.refaults, done.above), (0, 0), "{done:?}");
    assert_eq!(done.age, Some(SECOND));
}

/// Marks that were taken off while memory leaves would have what is in use leave.
#[test]
fn a_turn_begins_when_what_was_to_leave_has_left() {
    let mut governor = govern(Program::with_ages(&[(16 << 10, 0.0)]), 0.02, 2);
    assert_eq!(governor.world().forgot, 1, "the first look says nothing");
    governor.world().taking = true;
    for _ in 0..40 {
        governor.step().unwrap();
        governor.world().run();
    }
    assert_eq!(governor.world().forgot, 1);
    let asked = governor.done().asked;
    assert!(!asked.is_zero(), "this turn came to its end");
    governor.world().taking = false;
    let now = governor.last().unwrap().at;
    governor.begin_turn(now);
    governor.begin_turn(now);
    assert_eq!(governor.world().forgot, 2, "and the next one begins between two looks");
}

/// With marks that are gone of some processes only, the kernel would choose worse than by itself.
#[test]
fn where_ages_cannot_be_known_the_kernel_chooses() {
    let mut governor = govern(Program::new(&[(16 << 10, 0.0)]), 0.02, 10);
    assert_eq!(governor.world().forgot, 1, "and is not told again to forget them");
    let done = governor.done();
    assert!(done.age.is_none() && !done.asked.is_zero(), "{done:?}");
}

/// The error is that of what was asked for a turn ago. In it as much has grown old again.
#[test]
fn what_was_given_up_does_not_cost_another_turn() {
    let mut program = Program::with_ages(&[(16 << 10, 0.0)]);
    program.fails = 1;
    let governor = govern(program, 0.02, 15);
    let done = governor.done();
    assert_eq!(done.found_less, 1, "{done:?}");
    assert!(!done.asked.is_zero(), "{done:?}");
}
