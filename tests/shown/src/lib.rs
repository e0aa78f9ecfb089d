//! Tests that a machine cannot show anything by.
//!
//! A test that is left out passes, and so may hide for years that it tests nothing. In continuous
//! integration (`CI`) it fails therefore, unless what is missing is on the list below.
//! `TERRACE_UNSUPPORTED_OK=1` allows everything to be missing.

use std::env;

/// What tests may be left out for even in continuous integration, and why.
const MAY_BE_MISSING: &[(&str, &str)] = &[
    (
        "huge pages",
        "there may be no free block of 2 MiB at the moment, and kernels are built without them",
    ),
    (
        "tracefs",
        "it is mounted by whoever wants it, and files of recorded calls are tested without",
    ),
    (
        "memory of memfd_secret",
        "it is locked, which users may have little of, and kernels are built without it",
    ),
    ("a kernel without RWP", "newer ones have it, and what they do is another test"),
];

/// Whether everything must be shown.
pub fn must_show_everything() -> bool {
    let is = |variable: &str, is: fn(&str) -> bool| env::var(variable).is_ok_and(|v| is(&v));
    is("CI", |value| !value.is_empty()) && !is("TERRACE_UNSUPPORTED_OK", |value| value == "1")
}

/// A test is left out, because this is missing here.
#[track_caller]
pub fn is_missing(what: &str) {
    is_missing_though(what, must_show_everything());
}

/// The same, by whether everything must be shown.
#[track_caller]
pub fn is_missing_though(what: &str, must_be_shown: bool) {
    let may = MAY_BE_MISSING.iter().any(|(name, _)| *name == what);
    assert!(
        may || !must_be_shown,
        "{what} is missing here, so that this is not tested; TERRACE_UNSUPPORTED_OK=1 allows that"
    );
    eprintln!("SKIPPED: {what} is missing here");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_on_the_list_may_be_missing_where_everything_must_be_shown() {
        is_missing_though("swap", false);
        is_missing_though("huge pages", true);

        let refused = std::panic::catch_unwind(|| is_missing_though("swap", true)).unwrap_err();

        let said = refused.downcast_ref::<String>().unwrap();
        assert!(said.starts_with("swap is missing here"), "{said}");
    }
}
