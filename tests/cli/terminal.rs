//! What is printed on a terminal, here a pseudo terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use nix::pty::{Winsize, openpty};

use crate::common::{data, f32s, file, raw};

/// What `amn` prints on a terminal of so many columns.
fn printed(columns: u16, arguments: &[&str]) -> String {
    let (text, code) = printed_with(columns, arguments, &[]);
    assert_eq!(code, Some(0), "{text}");
    text
}

/// What `amn` prints on a terminal of so many columns with these variables of the environment, and its
/// exit code.
fn printed_with(
    columns: u16,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> (String, Option<i32>) {
    Screen::start(columns, arguments, variables).end()
}

/// `amn`, which runs on a pseudo terminal.
struct Screen {
    child: Child,
    /// The side that is read.
    master: File,
    /// The program's side.
    terminal: File,
}

impl Screen {
    fn start(columns: u16, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
        command.args(arguments).stdin(Stdio::null());
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
            command.env_remove(name);
        }
        command.env("TERM", "xterm").envs(variables.iter().copied());
        let side = || pair.slave.try_clone().unwrap();
        let child = command.stdout(side()).stderr(side()).spawn().unwrap();
        drop(command);
        Self { child, master: File::from(pair.master), terminal: File::from(pair.slave) }
    }

    /// What is printed up to the first read that completes `text`.
    fn read_until(&mut self, text: &str) -> String {
        let (mut read, mut buffer) = (String::new(), [0; 4096]);
        while !read.contains(text) {
            let n = self.master.read(&mut buffer).unwrap();
            read += std::str::from_utf8(&buffer[..n]).unwrap();
        }
        read
    }

    /// What is printed from here to the end, and the exit code.
    fn end(self) -> (String, Option<i32>) {
        let Self { mut child, mut master, mut terminal } = self;
        // A terminal that nobody has open any more may lose what was not read yet, so the end is a mark
        // that is written to it behind all that the program wrote.
        let waiting = std::thread::spawn(move || {
            let code = child.wait().unwrap().code();
            terminal.write_all(&[END]).unwrap();
            (code, terminal)
        });
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        while bytes.last() != Some(&END) {
            let n = master.read(&mut buffer).unwrap();
            bytes.extend(&buffer[..n]);
        }
        bytes.pop();
        (String::from_utf8(bytes).unwrap(), waiting.join().unwrap().0)
    }
}

/// A character that no program here writes.
const END: u8 = 0;

#[test]
fn tables_end_at_the_edge() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    let name = format!("model.{}.weight", "x".repeat(70));
    let tensors = [raw(&name, "F32", &[2], f32s(&[1.0, 2.0])), raw("a", "F32", &[1], f32s(&[1.0]))];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let path = path.to_str().unwrap();
    let whole = String::from_utf8(crate::amn(&["ls", path]).stdout).unwrap();
    assert!(whole.lines().next().unwrap().ends_with("  FILE"), "{whole}");
    assert!(whole.contains(&name) && !whole.contains('…'), "pipes get whole lines: {whole}");
    let cut = printed(60, &["ls", path]);
    let lines: Vec<&str> = cut.lines().collect();
    for line in &lines[..3] {
        assert_eq!(line.chars().count(), 60, "{cut}");
        assert!(line.ends_with('…'), "{cut}");
    }
    assert_eq!(printed(200, &["ls", path]).replace('\r', ""), whole);
}

#[test]
fn progress_is_a_bar_unless_quiet() {
    let directory = crate::common::tempdir().unwrap();
    let out = directory.path().join("out").to_string_lossy().into_owned();
    let input = data().join("demo/model-fp8.safetensors");
    let command = ["remember", input.to_str().unwrap(), "-f", "-o", &out];
    let with = |more: &[&str]| printed(100, &[&command[..], more].concat());
    assert!(with(&[]).contains("ETA"));
    for more in [&["-q"][..], &["--progress", "never"]] {
        assert!(!with(more).contains("ETA"), "{more:?}");
    }
    assert!(with(&["-q", "--progress", "always"]).contains("ETA"));
}

/// Verdicts have colours on a terminal, unless the environment asks for none; elsewhere they have them
/// if it forces them.
#[test]
fn verdicts_have_colours() {
    let at = |name: &str| data().join(name).to_string_lossy().into_owned();
    let (good, evil) = (at("demo/model-fp8.safetensors"), at("pth/attack_eval.pt"));
    let hostile = at("gptq/b4_v1_hostile_f16/model.safetensors");
    let cases: [(&[&str], &[&str]); 5] = [
        (&["check", &good], &[": \u{1b}[1m\u{1b}[32mclean\u{1b}[0m (2 tensors"]),
        (&["check", "--data", &hostile], &["\u{1b}[31m", "[31merror\u{1b}[0m: "]),
        (&["scan", &evil], &["[31mdangerous\u{1b}[0m   /", "1 file: \u{1b}[1m\u{1b}[31mdangerous"]),
        (&["diff", &good, &good], &["The models are \u{1b}[1m\u{1b}[32mequal\u{1b}[0m."]),
        (&["diff", &good, &hostile], &["The models are \u{1b}[1m\u{1b}[33mdifferent\u{1b}[0m."]),
    ];
    for (arguments, parts) in cases {
        let (text, code) = printed_with(200, arguments, &[]);
        for part in parts {
            assert!(text.contains(part), "{part:?}: {text:?}");
        }
        let plain = amn_without_terminal(arguments, &[]);
        assert!(!plain.contains('\u{1b}'), "{plain:?}");
        for variable in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
            let never = ["--progress", "never"];
            let never = if arguments[0] == "scan" {
                &[][..]
            } else {
                &never
            };
            let (text, same) = printed_with(200, &[arguments, never].concat(), &[variable]);
            assert_eq!((text.replace('\r', ""), same), (plain.clone(), code), "{variable:?}");
        }
        let forced = amn_without_terminal(arguments, &[("CLICOLOR_FORCE", "1")]);
        assert!(parts.iter().all(|part| forced.contains(part)), "{forced:?}");
    }
    // JSON has none.
    let json = amn_without_terminal(&["check", "--json", &hostile], &[("CLICOLOR_FORCE", "1")]);
    assert!(!json.contains('\u{1b}'), "{json}");
}

/// What `amn` prints into a pipe.
fn amn_without_terminal(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
    command.args(arguments).envs(variables.iter().copied());
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// What a terminal shows of what was written to it: lines, in which a carriage return begins anew.
fn shown(written: &str) -> Vec<String> {
    let line = |text: &str| {
        let mut cells: Vec<char> = Vec::new();
        for part in text.split('\r') {
            for (i, c) in part.chars().enumerate() {
                match cells.get_mut(i) {
                    Some(cell) => *cell = c,
                    None => cells.push(c),
                }
            }
        }
        cells.into_iter().collect::<String>().trim_end().to_owned()
    };
    written.lines().map(line).collect()
}

/// Of a bar nothing is left when the program is interrupted, nor of the `^C` that the terminal shows
/// behind it.
#[test]
fn an_interrupt_leaves_no_bar() {
    let directory = crate::common::tempdir().unwrap();
    let (path, n) = (directory.path().join("in.safetensors"), 16 << 20);
    let tensors = [
        raw("a.weight", "F8_E4M3", &[n >> 12, 1 << 12], vec![1; n]),
        raw("a.weight_scale", "F32", &[], f32s(&[1.0])),
    ];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let (path, out) = (path.to_str().unwrap(), directory.path().join("out"));
    let forget = ["forget", path, "--to", "nf4", "-j", "1", "-o", out.to_str().unwrap()];
    let cases: [(&[&str], &str); 2] = [
        (&forget, "error: operation cancelled by the caller; nothing of the output is left"),
        (&["show", path, "a.weight", "-j", "1"], "error: operation cancelled by the caller"),
    ];
    for columns in [80, 40] {
        for (arguments, expected) in &cases {
            let mut screen = Screen::start(columns, arguments, &[]);
            let bar = screen.read_until("ETA ");
            let line = shown(&bar).pop().unwrap();
            assert!(line.chars().count() < usize::from(columns) - 2, "{line}");
            screen.terminal.write_all(b"^C").unwrap();
            let id = screen.child.id().to_string();
            Command::new("kill")
                .args(["-s", "INT", &id])
                .status()
                .unwrap();
            let (text, code) = screen.end();
            assert_eq!(code, Some(130), "{text:?}");
            let lines = shown(&(bar + &text));
            assert_eq!(lines.last().unwrap(), expected, "{lines:?}");
            let rest = &lines[..lines.len() - 1];
            assert!(rest.iter().all(|line| line.starts_with("Parsing...")), "{lines:?}");
        }
    }
}
