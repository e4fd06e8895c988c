//! `--help`: options in groups, examples that parse, lines of at most 100 characters.

use std::process::Command;

const COMMANDS: [&str; 15] = [
    "parse",
    "ls",
    "show",
    "scan",
    "inspect",
    "remember",
    "forget",
    "convert",
    "merge",
    "edit",
    "diff",
    "check",
    "report",
    "completions",
    "man",
];

/// The help of a command, or of the program if it is empty.
fn help(command: &str) -> String {
    let mut amn = Command::new(env!("CARGO_BIN_EXE_amn"));
    let asked = match command {
        "" => amn.arg("--help"),
        command => amn.args([command, "--help"]),
    };
    String::from_utf8(asked.output().unwrap().stdout).unwrap()
}

#[test]
fn lines_are_wrapped() {
    for command in COMMANDS.into_iter().chain([""]) {
        let text = help(command);
        let long = text.lines().find(|line| line.chars().count() > 100);
        assert_eq!(long, None, "{command}");
    }
}

/// `-h` is one screen, and says how many options `--help` has besides.
#[test]
fn the_short_help_is_one_screen() {
    let options = |text: &str| -> Vec<String> {
        let words = text.lines().filter_map(|line| {
            // `  -f, --force` or `      --json`.
            let rest = line
                .get(6..)
                .filter(|_| line.starts_with("  -") || line.starts_with("      -"))?;
            Some(
                rest.strip_prefix("--")?
                    .split([' ', '='])
                    .next()?
                    .to_owned(),
            )
        });
        words.collect()
    };
    for command in COMMANDS {
        let mut amn = Command::new(env!("CARGO_BIN_EXE_amn"));
        let output = amn
            .args([command, "-h"])
            .env("COLUMNS", "80")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 40, "{command}: {lines}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("\nExamples:\n"), "{text}");
        let (some, all) = (options(&text), options(&help(command)));
        assert!(some.iter().all(|name| all.contains(name)), "{some:?} {all:?}");
        let more = format!("amn {command} --help has {} more options.\n", all.len() - some.len());
        assert_eq!(text.ends_with(&more), all.len() > some.len(), "{more}: {text}");
        assert!(text.contains("--help"), "{text}");
    }
    // The full help comes with both, and of `help`.
    let both = String::from_utf8(crate::amn(&["diff", "-h", "--help"]).stdout).unwrap();
    assert_eq!(both, help("diff"));
    assert_eq!(String::from_utf8(crate::amn(&["help", "diff"]).stdout).unwrap(), help("diff"));
}

#[test]
fn options_are_in_groups() {
    let position =
        |text: &str, what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    for (command, groups) in [
        ("remember", &["Input", "Output", "How it runs", "Limits of what a file may claim"][..]),
        ("convert", &["Input", "Output", "Which tensors", "How it runs"]),
        ("forget", &["Input", "Encoding", "Which tensors", "Output", "How it runs"]),
        ("ls", &["Input", "Which tensors", "Output", "How it runs"]),
        ("show", &["Input", "Output", "How it runs"]),
        ("edit", &["Changes", "Output", "How it runs"]),
        ("diff", &["Which tensors", "Output", "How it runs"]),
        ("report", &["Output", "How it runs"]),
    ] {
        let text = help(command);
        let at: Vec<_> = groups
            .iter()
            .map(|group| position(&text, &format!("\n{group}:\n")))
            .collect();
        assert!(at.is_sorted(), "{command}: {text}");
    }
    let text = help("forget");
    let (quiet, run) = (position(&text, "--quiet"), position(&text, "How it runs:"));
    let (group_size, encoding) = (position(&text, "--group-size"), position(&text, "Encoding:"));
    assert!(encoding < group_size && group_size < run && run < quiet, "{text}");
}

/// Every example is understood: run without its files, it fails for another reason than its
/// arguments.
#[cfg(unix)]
#[test]
fn examples_parse() {
    let directory = crate::common::tempdir().unwrap();
    for command in COMMANDS.into_iter().chain([""]) {
        let text = help(command);
        let (_, examples) = text
            .split_once("\nExamples:\n")
            .unwrap_or_else(|| panic!("{command}: no examples"));
        for line in examples.lines() {
            let line = line.strip_prefix("  amn ").unwrap();
            assert!(line.starts_with(command), "{line}");
            // What a line does stands behind it.
            let (line, _) = line.split_once("   ").unwrap_or((line, ""));
            let script = format!("exec '{}' {line}", env!("CARGO_BIN_EXE_amn"));
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]).current_dir(directory.path());
            let output = shell.output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(!matches!(output.status.code(), None | Some(2 | 101)), "{line}: {error}");
        }
    }
}
