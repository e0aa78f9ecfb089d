//! The example of `docs/persistence-schemes.md` is a scheme that survives.

#[allow(dead_code)]
#[path = "../examples/new_scheme.rs"]
mod new_scheme;

#[test]
fn the_documented_scheme_survives_every_crash() {
    assert_eq!(
        format!("{:?}", new_scheme::main()),
        format!("{:?}", std::process::ExitCode::SUCCESS)
    );
}
