//! The program, run as a user runs it.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/canonical.rs"]
mod canonical;
#[path = "../common/mod.rs"]
mod common;

mod check;
mod check_gguf;
mod commands;
mod diff;
mod documents;
mod edit;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod faults;
#[cfg(unix)]
mod file_size;
mod forget;
mod gguf_kv;
mod habits;
mod help;
mod html;
mod inputs;
mod inspect;
mod json;
#[cfg(all(feature = "npz", feature = "pth"))]
mod limits;
mod listings;
mod ls;
mod messages;
#[cfg(target_os = "linux")]
mod mounts;
mod names;
mod ollama;
#[cfg(unix)]
mod open_files;
#[cfg(unix)]
mod owners;
#[cfg(unix)]
mod parts;
#[cfg(target_os = "linux")]
mod reads;
mod resume;
mod sarif;
mod scan;
mod scan_corpus;
mod show;
#[cfg(unix)]
mod signals;
mod silent;
mod sums;
mod tables;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(unix)]
mod transcripts;
#[cfg(unix)]
mod usage;
mod ways_out;
mod whole;
#[cfg(unix)]
mod written_files;

use std::process::{Command, Output};

/// Runs `amn` with `arguments` to its end.
fn amn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_amn"))
        .args(arguments)
        .output()
        .unwrap()
}
