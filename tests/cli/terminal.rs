//! What is printed on a terminal, here a pseudo terminal.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use nix::pty::{Winsize, openpty};

use crate::common::{data, f32s, file, raw};

/// What `amn` prints on a terminal of so many columns.
fn printed(columns: u16, arguments: &[&str]) -> String {
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(Some(&size), None).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
    command.args(arguments).stdin(Stdio::null());
    command
        .stdout(terminal.slave.try_clone().unwrap())
        .stderr(terminal.slave);
    let mut child = command.spawn().unwrap();
    // Closes this side of the terminal: reading ends with an error when the program has closed its
    // own.
    drop(command);
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let mut master = File::from(terminal.master);
    while let Ok(n @ 1..) = master.read(&mut buffer) {
        bytes.extend(&buffer[..n]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(bytes).unwrap()
}

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
