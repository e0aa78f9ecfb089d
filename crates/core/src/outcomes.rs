//! What independent choices can come to: all combinations if they are few, else the extremes and
//! a sample. Crash tests ask it which states a power failure can leave behind.

/// The combinations of choices, the n-th of which has `choices[n]` possibilities, counted from 0:
/// all of them if there are at most `budget`; else nothing, everything, each alone, all but one,
/// and a random sample.
pub fn outcomes(
    choices: &[usize],
    budget: usize,
    mut random: impl FnMut() -> u64,
) -> Vec<Vec<usize>> {
    let all = choices.iter().try_fold(1usize, |n, &c| n.checked_mul(c).filter(|n| *n <= budget));
    if let Some(all) = all {
        return (0..all)
            .map(|mut index| {
                let digit = |&choices: &usize| {
                    let digit = index % choices;
                    index /= choices;
                    digit
                };
                choices.iter().map(digit).collect()
            })
            .collect();
    }
    let full: Vec<usize> = choices.iter().map(|c| c - 1).collect();
    let mut states = vec![vec![0; choices.len()], full.clone()];
    while states.len() < budget {
        let pick = (random() % choices.len() as u64) as usize;
        let mut state = match states.len() % 3 {
            0 => vec![0; choices.len()],
            1 => full.clone(),
            _ => choices.iter().map(|&c| (random() % c as u64) as usize).collect(),
        };
        state[pick] = if states.len() % 3 == 0 { full[pick] } else { 0 };
        states.push(state);
    }
    states
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn few_combinations_are_all_there_once() {
        let states = outcomes(&[2, 3, 1, 2], 12, || unreachable!("nothing is left to chance"));
        let different: BTreeSet<_> = states.iter().cloned().collect();
        assert_eq!((states.len(), different.len()), (12, 12));
        assert!(states.iter().all(|s| s[0] < 2 && s[1] < 3 && s[2] == 0 && s[3] < 2));
        assert_eq!(outcomes(&[], 1, || 0), [[0usize; 0]]);
    }

    #[test]
    fn of_many_the_extremes_are_there_and_none_is_impossible() {
        let choices = [3; 40];
        let mut seed = 1u64;
        let random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        let states = outcomes(&choices, 50, random);
        assert_eq!(states.len(), 50);
        assert!(states.contains(&vec![0; 40]) && states.contains(&vec![2; 40]));
        assert!(states.iter().flatten().all(|&digit| digit < 3));
    }
}
