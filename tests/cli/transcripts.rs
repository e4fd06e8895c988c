//! The examples of `docs/cli.md` that only read, run as they stand there.

use std::process::Command;

/// Commands that write nothing.
const READERS: [&str; 5] = ["parse", "ls", "show", "scan", "inspect"];

/// Runs `line` in a shell where `amn` is the program; what it printed, and its exit code.
fn run(line: &str) -> (String, Option<i32>) {
    let script = format!(
        "amn() {{ '{}' \"$@\"; }}\n{line}",
        env!("CARGO_BIN_EXE_amn")
    );
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

#[test]
fn examples_print_what_the_documents_say() {
    let (mut tried, mut code) = (0, None);
    for block in include_str!("../../docs/cli.md")
        .split("\n```text\n")
        .skip(1)
    {
        let (block, _) = block.split_once("\n```").unwrap();
        // The part before the first command is empty, or the block is no transcript.
        for example in format!("\n{block}").split("\n$ ").skip(1) {
            let (command, expected) = example.split_once('\n').unwrap_or((example, ""));
            let verb = command
                .strip_prefix("amn ")
                .and_then(|rest| rest.split(' ').next());
            if command == "echo $?" {
                if let Some(code) = code.take() {
                    assert_eq!(expected, format!("{code}"), "{block}");
                }
                continue;
            }
            code = None;
            if !verb.is_some_and(|verb| READERS.contains(&verb)) || command.contains("ollama:") {
                continue;
            }
            let (found, exit) = run(command);
            assert_eq!(found.trim_end(), expected.trim_end(), "{command}");
            (tried, code) = (tried + 1, exit);
        }
    }
    assert!(tried >= 14, "{tried}");
}
