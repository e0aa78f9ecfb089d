//! The reproduction of HeMem's figure, at a thousandth of the paper's scale.

mod common;

use common::{apart, small_gups, small_machine};
use terrace_core::{Bytes, Nanos};
use terrace_sim::reproduce::{HememConfig, HememTable, hemem};
use terrace_sim::{Phases, Span};

fn table(host_threads: usize) -> HememTable {
    let config = HememConfig {
        machine: small_machine(),
        gups: small_gups(Bytes::mib(16)),
        hot_sets: [16, 96, 160, 512].map(Bytes::mib).to_vec(),
        phases: Phases {
            warm_up: Span::Time(Nanos::millis(1500)),
            runs: 2,
            run: Span::Time(Nanos::millis(500)),
        },
        scale: 64,
        scale_unsampled: 128,
        host_threads,
        ..HememConfig::default()
    };
    hemem(&config, &|_| ()).expect("the configuration is valid")
}

#[test]
fn the_table_shows_the_papers_shape_and_does_not_depend_on_host_threads() {
    let result = table(2);
    let gups = |row: usize, column: usize| result.rows[row].cells[column].gups;
    let (all_dram, hemem, memory_mode, first_touch) = (0, 2, 3, 4);
    for row in 0..3 {
        assert!(gups(row, hemem) > 0.8 * gups(row, all_dram), "{result}");
        assert!(gups(row, first_touch) < 0.8 * gups(row, all_dram), "{result}");
    }
    assert!(gups(2, memory_mode) < 0.9 * gups(0, memory_mode), "{result}");
    assert!(gups(3, hemem) < 0.7 * gups(3, all_dram), "{result}");
    assert!(apart(gups(3, hemem), gups(3, first_touch)) < 0.1, "{result}");

    let single = HememTable { host_seconds: result.host_seconds, ..table(1) };
    assert_eq!(result, single);
}

#[test]
fn the_printed_table_has_every_point_and_every_claim() {
    let result = table(2);
    let text = result.to_string();
    for row in &result.rows {
        assert!(text.contains(&row.hot_set.to_string()), "{text}");
    }
    assert_eq!(result.claims.len(), 5);
    for claim in result.claims.iter().chain(&result.claims_of_papers_rule) {
        assert!(text.contains(claim.paper) && text.contains(&claim.measured), "{text}");
    }
    assert!(text.contains("do not fit into DRAM"), "{text}");
}
