//! The options that bound what a file may claim, and the errors that name them.

use std::path::Path;

use anamnesis::ParseLimits;

use crate::amn;
use crate::common::data;

/// Every limit of `ParseLimits` ends a command with code 4, in an error that names the option; with
/// a bound that suffices the command succeeds.
#[test]
fn every_limit_is_an_option() {
    let model = data().join("demo/model-fp8.safetensors");
    let arrays = data().join("npz/compressed.npz");
    let [model, arrays] = [&model, &arrays].map(|path| path.to_str().unwrap());
    let rows = [
        ("--max-single-alloc", model, "16", "1MiB"),
        ("--max-total-bytes", model, "100", "1GB"),
        ("--max-item-count", model, "1", "100"),
        ("--max-decompression-ratio", arrays, "0", "2000"),
    ];
    for (option, file, low, high) in rows {
        for command in ["parse", "inspect", "remember", "convert"] {
            let more: &[&str] = match command {
                "remember" => &["--dry-run"],
                "convert" => &["--to", "npz", "--dry-run"],
                _ => &[],
            };
            let run = |bound| amn(&[&[command, file, option, bound][..], more].concat());
            let (refused, accepted) = (run(low), run(high));
            let said = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.code(), Some(4), "{command} {option}: {said}");
            assert!(said.contains(option), "{command}: {said}");
            let said = String::from_utf8(accepted.stderr).unwrap();
            assert_eq!(accepted.status.code(), Some(0), "{command} {option}: {said}");
        }
    }
}

/// An archive of zeros ends at the default, and an option raises it. No file is left.
#[test]
fn a_bomb_ends() {
    use crate::common::zip::{Member, Zip, dict, npy};
    let dir = crate::common::tempdir().unwrap();
    let (bomb, out) = (dir.path().join("bomb.npz"), dir.path().join("out"));
    let header = npy(&dict("'|u1'", "False", "(2147483648,)"), &[]);
    let mut member = Member::deflated("a.npy", &header);
    member.data.resize(2 << 20, 0);
    let member = member.both(|h| {
        h.stored_len = 2 << 20;
        h.len = (header.len() + (2 << 30)) as u32;
    });
    std::fs::write(&bomb, Zip::of(&[member]).file()).unwrap();
    let (bomb, out) = (bomb.to_str().unwrap(), out.to_str().unwrap());
    for arguments in [&["inspect", bomb][..], &["parse", bomb], &["remember", bomb, "-o", out]] {
        let output = amn(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("--max-decompressed-bytes"), "{said}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let raised = amn(&["inspect", bomb, "--max-decompressed-bytes", "3GiB"]);
    assert_eq!(raised.status.code(), Some(0));
}

/// The options stand under a heading of their own in the help of every command.
#[test]
fn help() {
    for command in ["parse", "inspect", "remember", "forget", "convert"] {
        let text = String::from_utf8(amn(&[command, "--help"]).stdout).unwrap();
        let limits = text.split("Limits of what a file may claim:").nth(1);
        let limits = limits.unwrap_or_else(|| panic!("{command}: {text}"));
        let (limits, _) = limits.split_once("\nExamples:").unwrap();
        assert_eq!(limits.matches("--max-").count(), 5, "{command}: {limits}");
    }
}

/// `docs/safety.md`, `ParseLimits::default()` and `--help` state the same default for every limit
/// that can be set.
#[test]
fn defaults_are_documented() {
    type Limit = (&'static str, &'static str, fn(&ParseLimits) -> u64);
    const LIMITS: [Limit; 5] = [
        ("max_single_alloc_bytes", "--max-single-alloc SIZE", ParseLimits::max_single_alloc_bytes),
        ("max_total_bytes", "--max-total-bytes SIZE", ParseLimits::max_total_bytes),
        ("max_item_count", "--max-item-count N", ParseLimits::max_item_count),
        (
            "max_decompression_ratio",
            "--max-decompression-ratio N",
            ParseLimits::max_decompression_ratio,
        ),
        (
            "max_decompressed_bytes",
            "--max-decompressed-bytes SIZE",
            ParseLimits::max_decompressed_bytes,
        ),
    ];
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/safety.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `max_"));
    let rows: Vec<Vec<&str>> = rows
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), LIMITS.len());
    let help = String::from_utf8(amn(&["parse", "--help"]).stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for (row, (name, option, limit)) in rows.iter().zip(LIMITS) {
        let default = match limit(&ParseLimits::default()) {
            u64::MAX => "none".to_owned(),
            bytes => {
                assert!(bytes.is_multiple_of(1 << 30), "{name}: {bytes}");
                format!("{} GiB", bytes >> 30)
            }
        };
        let [of, _, said, with] = row[..] else {
            panic!("{row:?}")
        };
        let expected = (format!("`{name}`"), &*default, format!("`{option}`"));
        assert_eq!((of.to_owned(), said, with.to_owned()), expected);
        let (dashes, value) = option.split_once(' ').unwrap();
        let (_, rest) = help
            .split_once(&format!("{dashes} <{value}>"))
            .unwrap_or_else(|| panic!("{option}: {help}"));
        let said = rest.split(" --").next().unwrap();
        let expected = format!("[default: {}]", default.replace(' ', ""));
        assert!(said.contains(&expected), "{option}: {said}");
    }
}
