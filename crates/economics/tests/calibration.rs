//! Where prices come from.
// Numbers are copied, not computed.
#![allow(clippy::float_cmp)]

mod common;

use common::{laptop, optane};
use terrace_core::{BytesPerSecond, Frequency, Nanos};
use terrace_economics::{Calibration, Interval, Parameters};

#[test]
fn every_number_of_a_machine_file_arrives_where_it_belongs() {
    let calibration = optane();
    assert_eq!(calibration.clock, Frequency::ghz(2.2));
    assert_eq!(calibration.cpus, 24);
    assert_eq!((calibration.mlp.low, calibration.mlp.high), (1.0, 12.0));
    assert!((calibration.mlp.expected - 24.0 / 13.0).abs() < 1e-12);
    assert_eq!(calibration.user_fault, Nanos::micros(15));
    assert_eq!(calibration.tiers[1].read_bandwidth, BytesPerSecond(39.4e9));
    assert_eq!(calibration.tiers[1].write_bandwidth, BytesPerSecond(13.9e9));
    assert_eq!(calibration.tiers[1].load_knee, 0.5);
    let calibration = laptop();
    assert_eq!(calibration.compress, Nanos::micros(8));
    assert_eq!(calibration.decompress, Nanos::micros(2));
}

#[test]
fn a_calibration_comes_back_from_a_file_unchanged() {
    let text = serde_json::to_string(&laptop()).unwrap();
    assert_eq!(serde_json::from_str::<Calibration>(&text).unwrap(), laptop());
}

#[test]
fn parameters_may_be_given_in_part_but_not_misspelt() {
    let some: Parameters = serde_json::from_str(r#"{"z": 2.0}"#).unwrap();
    assert_eq!(some, Parameters { z: 2.0, ..Parameters::default() });
    let error = serde_json::from_str::<Parameters>(r#"{"hysterisis": 1.0}"#).unwrap_err();
    assert!(error.to_string().contains("hysterisis"), "{error}");
}

#[test]
fn the_machine_files_make_calibrations_that_can_be_right() {
    assert_eq!(optane().check(), Ok(()));
    assert_eq!(laptop().check(), Ok(()));
}

#[test]
fn a_calibration_that_cannot_be_right_is_refused_by_field() {
    type Spoil = fn(&mut Calibration);
    let wrong: [(&str, Spoil); 8] = [
        ("clock", |c| c.clock = Frequency(0.0)),
        ("cpus", |c| c.cpus = 0),
        ("mlp", |c| c.mlp = Interval { low: 2.0, expected: 1.0, high: 3.0 }),
        ("copy-bandwidth", |c| c.copy_bandwidth = BytesPerSecond(f64::NAN)),
        ("shootdown-batch", |c| c.shootdown_batch = 0),
        ("cost-spread", |c| c.cost_spread = 0.5),
        ("parameters.idle", |c| c.parameters.idle = Nanos::ZERO),
        ("parameters.z", |c| c.parameters.z = f64::NAN),
    ];
    for (field, spoil) in wrong {
        let mut calibration = optane();
        spoil(&mut calibration);
        assert_eq!(calibration.check().unwrap_err().field, field);
    }
}
