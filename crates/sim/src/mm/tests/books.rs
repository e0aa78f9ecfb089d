//! What was predicted is compared with what the simulated kernel sees of it.

use terrace_core::ActionClass;
use terrace_economics::Account;

use super::*;
use crate::mm::space::Watched;

/// Ten seconds, as long as ranges are looked at.
const LONG: Cycles = Cycles(22_000_000_000);
const AVERTED: u64 = 10_000_000;
const SLOTS: u64 = 128;

/// Ours, which holds out one in eight, has 128 ranges of which all is touched, and base pages cost so
/// much of what the profile says.
fn held_out(cost: f64) -> Mm {
    let rule = Rule {
        policy: Policy::Huge,
        section: Section::Mmap,
        averted: Some(Cycles(AVERTED)),
        conditions: Vec::new(),
    };
    let mut profile = Profile { duration: Some(LONG), ..Profile::of_rules([rule]) };
    profile.rules[0].touched = Share::known(1.0);
    let config = MmConfig { hold_out: 8, ..MmConfig::new(Bytes::gib(1), MmPolicyName::Economist) };
    let mut mm = Mm::new(&config, Some(&profile)).expect("good parameters");
    mm.map(0, START, Bytes::mib(2 * SLOTS), Section::Mmap);
    for page in 0..SLOTS * u64::from(PAGES) {
        let address = START + page * 4096;
        if mm.lookup(0, address, true).is_none() {
            mm.fault(0, address, true).expect("mapped");
        }
    }
    for number in 0..mm.spaces.len() {
        if matches!(mm.spaces.slot(number).backing(), Backing::Base(_)) {
            mm.walked(number, AVERTED as f64 * cost, 1.0);
        }
    }
    mm.advance(LONG);
    mm
}

fn account(mm: &Mm, class: ActionClass) -> Account {
    let books = mm.books().expect("ours keeps books");
    let book = books.classes.iter().find(|book| book.class == class);
    book.expect("it was proposed").account
}

/// What base pages cost where a huge page was held out is what the others have averted.
#[test]
fn huge_pages_have_brought_what_is_seen_where_one_was_held_out() {
    let as_said = account(&held_out(1.0), ActionClass::FirstTouch);
    assert!(as_said.held_out > 0 && as_said.held_out + as_said.completed == SLOTS, "{as_said:?}");
    let ratio = as_said.realised_benefit / as_said.predicted_benefit;
    assert!((ratio - 1.0).abs() < 0.02, "{ratio}: {as_said:?}");
    // Faults are spared, too: 512 of 3 300 cycles beside 10 million of walks.
    let half = account(&held_out(0.5), ActionClass::FirstTouch);
    let ratio = half.realised_benefit / half.predicted_benefit;
    assert!((ratio - (5.0 + 1.69) / (10.0 + 1.69)).abs() < 0.02, "{ratio}");
}

#[test]
fn deciding_is_in_the_books_as_programs_and_threads_have_paid_for_it() {
    let mm = held_out(1.0);
    let books = mm.books().expect("ours keeps books");
    assert_eq!(books.deciding, mm.counts.deciding);
    let proposed: u64 = books.classes.iter().map(|book| book.account.proposed).sum();
    assert_eq!(books.deciding, mm.costs.quote * proposed);
    assert!(self::mm(MmPolicyName::Cbmm, Fragmentation::None).books().is_none());
}

/// Each decision is vetoed, held out, completed or aborted; what waits is the price of a range whose turn
/// to be collapsed has not come.
#[test]
fn every_decision_ends_somewhere() {
    for (fragmentation, hold_out) in Fragmentation::ALL.into_iter().zip([0, 8, 8]) {
        let config = MmConfig {
            fragmentation,
            hold_out,
            ..MmConfig::new(Bytes::gib(1), MmPolicyName::Economist)
        };
        let mut mm = Mm::new(&config, Some(&profile())).expect("good parameters");
        mm.map(0, START, Bytes::mib(600), Section::Mmap);
        for page in 0..600 * 256 {
            let address = START + page * 4096;
            if mm.lookup(0, address, true).is_none() {
                mm.fault(0, address, true).expect("mapped");
            }
            mm.advance(Cycles(page * 20_000));
        }
        mm.finish();
        let books = mm.books().expect("ours keeps books");
        assert!(!books.classes.is_empty());
        for book in books.classes {
            let Account { proposed, vetoed, held_out, completed, aborted, .. } = book.account;
            let ended = vetoed + held_out + completed + aborted;
            assert_eq!(ended + book.unfinished, proposed, "{fragmentation:?} {book:?}");
            let waiting = u64::from(book.class == ActionClass::Collapse);
            assert!(book.unfinished <= waiting, "{fragmentation:?} {book:?}");
        }
    }
}

/// A range that is unmapped is looked at before, and one in a run that ends at its end.
#[test]
fn what_is_held_out_is_looked_at_at_the_latest_when_it_goes() {
    let config = MmConfig { hold_out: 2, ..MmConfig::new(Bytes::gib(1), MmPolicyName::Economist) };
    for ends in [false, true] {
        let mut mm = Mm::new(&config, Some(&profile())).expect("good parameters");
        mm.map(0, START, Bytes::mib(64), Section::Mmap);
        for slot in 0..32 {
            mm.fault(0, START + (slot << 21), true).expect("mapped");
        }
        assert!(account(&mm, ActionClass::FirstTouch).held_out > 0);
        if ends {
            mm.finish();
        } else {
            mm.unmap(0, START, Bytes::mib(64));
        }
        assert!(mm.spaces.slots().iter().all(|slot| slot.watched == Watched::No));
        assert!(!account(&mm, ActionClass::FirstTouch).realised_benefit.is_zero());
    }
}
