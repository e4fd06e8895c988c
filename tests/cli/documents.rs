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

/// Schemes, containers and element types are completed.
#[test]
fn values_are_completed() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = printed(&["completions", shell]).replace('\\', "");
        for name in ["gguf:q4_k_m", "fp8-block", "safetensors", "bf16"] {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    // In an interactive bash, which ends words where the script says.
    #[cfg(unix)]
    {
        let script = printed(&["completions", "bash"]);
        for (line, expected) in [
            ("amn forget x --to gguf:q4_k_", "gguf:q4_k_m gguf:q4_k_s"),
            ("amn convert x --to np", "npz"),
            ("amn remember x --to bf", "bf16"),
            ("amn diff a b --sort e", "error"),
        ] {
            let text = format!(
                "{script}\n[[ $COMP_WORDBREAKS != *:* ]] || exit 1; COMP_WORDS=({line}); set -- \"${{COMP_WORDS[@]}}\"\n\
                 COMP_CWORD=$(($# - 1)); _amn amn \"${{@: -1}}\" \"${{@: -2:1}}\"\n\
                 printf '%s\\n' \"${{COMPREPLY[@]}}\" | sort"
            );
            let Ok(output) = Command::new("bash").args(["-c", &text]).output() else {
                return;
            };
            let reply = String::from_utf8(output.stdout).unwrap();
            let words: Vec<&str> = reply.split_whitespace().collect();
            assert_eq!(words.join(" "), expected, "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    // Help and manual do not list them.
    for text in [printed(&["forget", "--help"]), printed(&["man", "forget"])] {
        assert!(!text.contains("mxfp8-modelopt"), "{text}");
    }
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
