//! What leaves of either side when room is made.

use terrace_core::Bytes;

/// Less than this is not asked of a side by itself: the kernel reclaims 32 pages at once.
pub(super) const LEAST: Bytes = Bytes::kib(128);

/// How much of `wanted` files give, and how much the program does, so that afterwards each has its
/// part of what is left, as far as it has so much: files `share` of `budget`.
pub fn take(
    wanted: Bytes,
    files: Bytes,
    program: Bytes,
    share: Bytes,
    budget: Bytes,
) -> (Bytes, Bytes) {
    let all = files + program;
    let wanted = wanted.min(all);
    let left = all - wanted;
    let part = (share / budget.max(Bytes(1))).clamp(0.0, 1.0);
    let target = Bytes::from_f64(left.as_f64() * part);
    // The program cannot have more than it has, so files keep what it leaves.
    let target = target.max(left - program);
    let of_files = (files - target).min(wanted).min(files);
    let of_program = wanted - of_files;
    // What is too little for a call by itself is the other side's.
    if of_files < LEAST && of_program + of_files <= program {
        (Bytes::ZERO, of_program + of_files)
    } else if of_program < LEAST && of_files + of_program <= files {
        (of_files + of_program, Bytes::ZERO)
    } else {
        (of_files, of_program)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn who_has_more_than_its_share_gives() {
        let of = |files: u64, program: u64, wanted: u64| {
            let mib = Bytes::mib;
            let (files, program) = take(mib(wanted), mib(files), mib(program), mib(100), mib(400));
            (files.get() / MIB, program.get() / MIB)
        };
        assert_eq!(of(200, 200, 40), (40, 0), "files have twice their share");
        assert_eq!(of(50, 350, 40), (0, 40), "the program has more than its own");
        assert_eq!(of(100, 300, 40), (10, 30), "each has its own");
        assert_eq!(of(400, 0, 40), (40, 0), "there is nothing else");
        assert_eq!(of(20, 10, 40), (20, 10), "all that there is");
    }

    proptest! {
        #[test]
        fn as_much_leaves_as_is_wanted_and_is_there(
            wanted in 0u64..1 << 32,
            files in 0u64..1 << 32,
            program in 0u64..1 << 32,
            share in 0u64..1 << 32,
            budget in 0u64..1 << 33,
        ) {
            let [wanted, files, program, share, budget] =
                [wanted, files, program, share, budget].map(Bytes);
            let (a, b) = take(wanted, files, program, share, budget);
            prop_assert!(a <= files && b <= program, "{a:?} {b:?}");
            prop_assert_eq!(a + b, wanted.min(files + program));
        }

        /// However often room is made: what a side has comes to its share from above, and the other
        /// one is not taken below its own for that.
        #[test]
        fn both_sides_come_to_their_shares(
            budget in 64u64..1 << 14,
            share in 0.02f64..0.98,
            files in 0.0f64..2.0,
            steps in 1u64..8,
        ) {
            let budget = Bytes::mib(budget);
            let share = Bytes::from_f64(budget.as_f64() * share);
            let mut files = Bytes::from_f64(budget.as_f64() * files);
            let mut program = budget * 2 - files;
            // Twice the budget is there: half of it has to leave.
            let had = (files, program);
            let step = budget / steps;
            while files + program > budget {
                let wanted = step.min(files + program - budget);
                let (a, b) = take(wanted, files, program, share, budget);
                (files, program) = (files - a, program - b);
            }
            // What is too little for a call by itself adds up.
            let slack = LEAST * (steps + 1);
            prop_assert!(files <= share + slack || program + slack >= had.1);
            prop_assert!(files + slack >= share || files + slack >= had.0);
        }
    }
}
