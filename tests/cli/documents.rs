//! `amn completions` and `amn man`.

use std::process::Command;

use crate::amn;

const COMMANDS: [&str; 8] =
    ["parse", "ls", "show", "inspect", "remember", "forget", "convert", "report"];

fn printed(arguments: &[&str]) -> String {
    let output = amn(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = printed(&["completions", shell]);
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        assert!(script.contains("max-shard-size"), "{shell}");
    }
    assert_eq!(amn(&["completions", "basic"]).status.code(), Some(2));
}

/// Bash itself completes with the script.
#[cfg(unix)]
#[test]
fn bash_completes() {
    let script = printed(&["completions", "bash"]);
    let text = format!(
        "{script}\nCOMP_WORDS=(amn ins); COMP_CWORD=1; _amn amn ins amn; echo \"${{COMPREPLY[*]}}\""
    );
    let Ok(output) = Command::new("bash").args(["-c", &text]).output() else {
        return;
    };
    let reply = String::from_utf8(output.stdout).unwrap();
    assert_eq!(reply.trim(), "inspect", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn manual_pages() {
    let page = printed(&["man"]);
    assert!(page.contains(".TH amn 1"), "{page}");
    for command in COMMANDS {
        assert!(page.contains(&format!("amn\\-{command}")), "{command}");
        let page = printed(&["man", command]);
        assert!(page.contains(&format!(".TH amn-{command} 1")), "{page}");
        assert!(page.contains("\\-\\-help"), "{page}");
    }
    assert_eq!(amn(&["man", "nothing"]).status.code(), Some(2));
}
