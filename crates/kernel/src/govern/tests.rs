use super::control::Control;
use super::look::Look;
use super::slowdown::{FAULT, Slowdown, Source};
use super::working_set::{Curve, Point, forecast};
use super::*;

const SECOND: Nanos = Nanos::seconds(1);

/// A program that touches its memory at several rates: of each part (pages, how often a second) a
/// page is touched again after that time, evenly.
struct Program {
    parts: Vec<(u64, f64)>,
    now: Nanos,
    /// Of each part, the pages that are out.
    out: Vec<u64>,
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
        let out = vec![0; parts.len()];
        // It does not get free again here.
        let swap = Bytes::gib(64 << 10);
        let parts = parts.to_vec();
        Self {
            parts,
            now: Nanos::ZERO,
            out,
            refaults: 0,
            swap,
            asked: Bytes::ZERO,
            most: swap,
            gone: false,
            stopped: 0,
        }
    }

    fn resident(&self) -> u64 {
        self.parts.iter().map(|part| part.0).sum::<u64>() - self.out.iter().sum::<u64>()
    }

    /// A second goes by: what is out and is touched comes back.
    fn run(&mut self) {
        self.now += SECOND;
        for (part, out) in self.parts.iter().zip(&mut self.out) {
            let back = (*out as f64 * part.1.min(1.0)).round() as u64;
            *out -= back;
            self.refaults += back;
        }
    }
}

impl Governed for Program {
    fn look(&mut self) -> Option<Look> {
        let pages = |pages: u64| Bytes(pages * 4096);
        (!self.gone).then(|| Look {
            at: self.now,
            resident: pages(self.resident()),
            swapped: pages(self.out.iter().sum()),
            refaults: self.refaults,
            stalled: None,
            cpu: self.now,
            swap_free: Some(self.swap),
        })
    }

    /// The kernel's lists are perfect here: what is touched least leaves first.
    fn reclaim(&mut self, bytes: Bytes) -> io::Result<bool> {
        let bytes = bytes.min(self.most);
        let mut pages = bytes.get() / 4096;
        self.asked += bytes;
        self.swap -= bytes;
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
        let next = control.next(&second(share), Bytes::ZERO, &look);
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
        (0..times).for_each(|_| _ = control.next(&second(share), Bytes::ZERO, &look));
    };
    pass(&mut control, 0.0, 100);
    pass(&mut control, 0.05, 30);
    let rest = |control: &mut Control| {
        (0..1000).take_while(|_| control.next(&second(0.0), Bytes::ZERO, &look).is_zero()).count()
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
        .map(|share| Control::new(0.02).next(&second(share), Bytes::ZERO, &look));
    assert!(asked.windows(2).all(|pair| pair[0] > pair[1]), "{asked:?}");
    assert_eq!(asked[3], Bytes::ZERO);

    let back = Control::new(0.02).next(&second(0.01), Bytes::mib(4), &look);
    assert_eq!(back, asked[1] + Bytes::mib(4));
    let full = Look { swap_free: Some(Bytes::mib(2)), ..look };
    assert_eq!(Control::new(0.02).next(&second(0.01), Bytes::mib(4), &full), Bytes::mib(2));
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

#[test]
fn a_forecast_puts_out_what_comes_back_slowly_enough() {
    let pages = 8 << 10;
    let curve = even(8, pages);
    // After T = 2^i seconds the parts above i are touched at pages / 2^k a second each; those that
    // would be out are all that have not been touched yet.
    for slowdown in [0.001, 0.01, 0.02, 0.05] {
        let saving = curve.saving(slowdown).unwrap();
        let idle = saving.idle.as_secs();
        let (mut out, mut rate) = (0.0, 0.0);
        for i in 0..8 {
            let period = f64::from(1 << i);
            if period > idle {
                out += pages as f64 * (1.0 - idle / period);
                rate += pages as f64 / period;
            }
        }
        assert!((saving.out.as_f64() / 4096.0 - out).abs() < 2.0, "{slowdown}: {saving:?} {out}");
        assert!(rate * FAULT.get() as f64 / 1e9 <= slowdown * 1.0001, "{slowdown}: {rate}");
    }
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

#[test]
fn a_forecast_says_how_far_curves_are_apart() {
    let curves = [even(4, 1024), even(6, 1024), even(8, 1024), Curve::default()];
    let of = forecast(&curves, 0.02).unwrap();
    assert!(of.least <= of.middle && of.middle <= of.most && of.least < of.most, "{of:?}");
    assert_eq!(forecast(&[Curve::default()], 0.02), None);
}
