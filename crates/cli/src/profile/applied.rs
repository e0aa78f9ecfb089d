//! Whether a profile fits the run that it is to be used in.

use std::path::Path;

use terrace_profile::{Key, Profile, Quantity, Rule, SLOT, Section, live};

use crate::failure::Failure;

/// Where a profile is to be used.
pub(crate) struct Here<'a> {
    /// The program and its arguments.
    pub(crate) program: &'a [String],
    /// What identifies the program's file, if it says so.
    pub(crate) build_id: Option<&'a str>,
    /// The processor's model.
    pub(crate) processor: &'a str,
}

/// Looks whether a profile can be used at all, and in what it is of something else than this run.
///
/// # Errors
///
/// Where nothing in it can come to anything: a run backs large mappings, and neither the heap nor
/// a program's own data; and some rules hold for no mapping that it manages ([`live`]).
pub(crate) fn check(
    path: &Path,
    profile: &Profile,
    here: &Here<'_>,
) -> Result<Vec<String>, Failure> {
    let name = path.display();
    let large = |key: &Key| match key {
        Key::Mapping { class, .. } => 1u64 << class >= SLOT.get(),
        _ => false,
    };
    let of_mappings = profile.regions.iter().any(|region| large(&region.key));
    let rules: Vec<&Rule> =
        profile.rules.iter().filter(|rule| rule.section == Section::Mmap).collect();
    let idle = holding_nowhere(&profile.rules);
    if !of_mappings && live::in_force(&profile.rules).is_empty() {
        let why = if rules.is_empty() {
            "it says nothing of mappings of 2 MiB and more, and a run backs nothing else with huge \
             pages"
                .to_owned()
        } else if idle.is_empty() {
            "the conditions of each of its rules about mappings exclude each other".to_owned()
        } else {
            format!("none of its rules about mappings holds in a run: {}", words(&idle))
        };
        return Err(Failure::bad_input(format!("--profile: {name}: would have no effect: {why}")));
    }
    let mut told = Vec::new();
    if let (Some(there), Some(now)) = (profile.program.first(), here.program.first())
        && file_name(there) != file_name(now)
    {
        told.push(format!(
            "--profile: {name} is of `{there}`, and this is `{now}`: mappings of the same size get \
             what it says of the other program's"
        ));
    } else if let (Some(there), Some(now)) = (&profile.build_id, here.build_id)
        && there != now
    {
        let program = here.program.first().map_or("the program", String::as_str);
        let short = |id: &str| id.get(..12).unwrap_or(id).to_owned();
        told.push(format!(
            "--profile: {name} is of another build of `{program}` ({}, and this is {}): what it \
             maps may have changed",
            short(there),
            short(now)
        ));
    }
    // An imported profile does not say of which machine it is.
    if profile.machine != here.processor {
        let of = if profile.rules.is_empty() {
            format!("the simulated machine `{}`", profile.machine)
        } else {
            format!("another machine (`{}`)", profile.machine)
        };
        told.push(format!(
            "--profile: {name} has page walks of {of}, not of this processor, `{}`",
            here.processor
        ));
    }
    if !idle.is_empty() {
        told.push(format!(
            "--profile: {name}: {} of {} rules about mappings hold nowhere: {}",
            idle.iter().map(|(_, numbers)| numbers.len()).sum::<usize>(),
            rules.len(),
            words(&idle)
        ));
    }
    Ok(told)
}

/// Rules about mappings that never hold in a run, counted from 1, by what they never hold for.
pub(super) fn holding_nowhere(rules: &[Rule]) -> Vec<(Quantity, Vec<usize>)> {
    let by = |quantity| {
        let numbered = rules.iter().enumerate().filter(|(_, rule)| {
            rule.section == Section::Mmap && live::refuses(rule) == Some(quantity)
        });
        (quantity, numbered.map(|(i, _)| i + 1).collect::<Vec<_>>())
    };
    Quantity::ALL.into_iter().map(by).filter(|(_, numbers)| !numbers.is_empty()).collect()
}

/// Which rules these are, and why they never hold.
pub(super) fn words(idle: &[(Quantity, Vec<usize>)]) -> String {
    /// So many are named.
    const MOST: usize = 10;
    let each = idle.iter().map(|(quantity, numbers)| {
        let named: Vec<_> = numbers.iter().take(MOST).map(ToString::to_string).collect();
        let more = match numbers.len().saturating_sub(MOST) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let rules = if numbers.len() == 1 { "rule" } else { "rules" };
        let (named, why) = (named.join(", "), live::what(*quantity));
        format!("{rules} {named}{more} by `{}` ({why})", quantity.name())
    });
    each.collect::<Vec<_>>().join("; ")
}

fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

#[cfg(test)]
mod tests {
    use terrace_core::{Frequency, Nanos};
    use terrace_profile::cbmm;

    use super::*;

    fn look(profile: &Profile, program: &str) -> Result<Vec<String>, String> {
        let program = [program.to_owned()];
        let here = Here { program: &program, build_id: Some("0abc"), processor: "A Processor" };
        check(Path::new("a.profile"), profile, &here).map_err(Failure::message)
    }

    fn recorded(text: &str) -> Profile {
        let head = "terrace-profile 1\nprogram /opt/walk 7\nmachine laptop\nclock 3000000000Hz\n\
                    horizon 1000000000ns\nruns 1\n";
        Profile::parse("a.profile", &format!("{head}{text}\n")).expect("good")
    }

    fn imported(text: &str) -> Profile {
        cbmm::import("a.csv", text, Nanos::SECOND, Frequency::ghz(2.2)).expect("good")
    }

    #[test]
    fn another_program_and_another_machine_are_told() {
        let profile = recorded("region mmap class=28 order=0 len=201326592B seen=1");
        let told = look(&profile, "./walk").expect("it works");
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("`laptop`") && told[0].contains("`A Processor`"), "{told:?}");
        let told = look(&profile, "sort").expect("it may work");
        assert!(told[0].contains("is of `/opt/walk`, and this is `sort`"), "{told:?}");
        let here = Profile { machine: "A Processor".into(), ..profile };
        assert_eq!(look(&here, "walk"), Ok(Vec::new()));
    }

    #[test]
    fn another_build_of_the_program_is_told() {
        let profile = recorded("region mmap class=28 order=0 len=201326592B seen=1");
        let of = |id: Option<&str>| Profile {
            machine: "A Processor".into(),
            build_id: id.map(str::to_owned),
            ..profile.clone()
        };
        assert_eq!(look(&of(Some("0abc")), "walk"), Ok(Vec::new()));
        assert_eq!(look(&of(None), "walk"), Ok(Vec::new()), "nobody knows");
        let told = look(&of(Some("0def")), "./walk").expect("it may work");
        assert!(
            told[0].contains("of another build of `./walk` (0def, and this is 0abc)"),
            "{told:?}"
        );
    }

    #[test]
    fn what_cannot_come_to_anything_is_refused() {
        let heap = recorded("region heap len=9437184B seen=1");
        assert!(look(&heap, "walk").expect_err("nothing applies").contains("would have no effect"));
        let small = recorded("region mmap class=20 order=0 len=1048576B seen=1");
        assert!(look(&small, "walk").is_err());
        let addresses = imported("huge,mmap,5000,addr,>,0x0\nhuge,heap,5000\n");
        assert!(look(&addresses, "walk").expect_err("nothing applies").contains("addresses"));
        let contrary = imported("huge,mmap,5000,len,>,9,len,<,5\n");
        assert!(look(&contrary, "walk").expect_err("nothing applies").contains("exclude"));
        let both = imported("huge,mmap,5000,addr,>,0x0\nhuge,mmap,7000\n");
        let told = look(&both, "walk").expect("one of them works");
        assert!(told.iter().any(|line| line.contains("1 of 2 rules")), "{told:?}");
    }

    #[test]
    fn rules_that_hold_for_no_mapping_that_a_run_manages_are_named() {
        let text = "huge,mmap,5,prot,=,3\nhuge,heap,5,prot,=,9\nhuge,mmap,5,prot,=,1\n\
                    huge,mmap,5,off,>,0\nhuge,mmap,5,prot,=,5\n";
        let told = look(&imported(text), "walk").expect("the first one works");
        let line = told.iter().find(|line| line.contains("hold nowhere")).expect("they are told");
        assert!(line.contains("3 of 4 rules about mappings"), "{line}");
        assert!(
            line.contains("rules 3, 5 by `prot` (") && line.contains("rule 4 by `off` ("),
            "{line}"
        );
        let none = imported("huge,mmap,5,prot,=,1\n");
        assert!(look(&none, "walk").expect_err("nothing applies").contains("rule 1 by `prot`"));
        let many = vec![(Quantity::Addr, (1..=12).collect())];
        assert!(
            words(&many).starts_with("rules 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more by `addr`")
        );
    }
}
