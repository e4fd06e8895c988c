//! The fuzz targets as a library: a program of `fuzz_targets` names one of them.
#![allow(clippy::unwrap_used, clippy::panic)]

pub mod bodies;
#[path = "../../common/mod.rs"]
pub mod common;

pub use libfuzzer_sys::fuzz_target;

/// The entry of the program that fuzzes the target called `$name`.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::fuzz_target!(|bytes: &[u8]| $crate::bodies::run($name, bytes));
    };
}
