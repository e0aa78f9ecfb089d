//! The analytic engine: pages as metadata, and the mean time of their accesses.
//!
//! Hundreds of gigabytes at some hundred million updates a second. What a cache answers and how
//! long a tier takes under load are formulas; which page lies where, samples and moves are counted
//! one by one. For questions about single accesses there is the [exact engine](crate::exact).
//!
//! | file | concept |
//! |---|---|
//! | [`simulation`] | the world: time, ticks, measurements |
//! | [`config`] | what to simulate |
//! | [`report`] | what came of it |
//! | [`device`] | a tier's latency under load, bandwidth, granularity |
//! | [`balance`] | the balance of latency and throughput |
//! | [`cache`] | the last-level cache, analytically |
//! | [`memory_mode`] | DRAM as a hardware cache |
//! | `threads` | the program's threads, and where their accesses go |
//! | [`sampler`] | hardware event sampling |
//! | `observe` | hint faults and accessed bits |
//! | [`migration`] | the migration engine |
//! | [`pages`] | where each page lies |
//! | [`listeners`] | who is told of a run |

pub mod balance;
pub mod cache;
pub mod config;
pub mod device;
pub mod listeners;
pub mod memory_mode;
pub mod migration;
mod observe;
pub mod pages;
pub mod report;
pub mod sampler;
pub mod simulation;
mod threads;
