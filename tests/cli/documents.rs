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

/// What interactive bash completes the last word of `line` to, in a directory and with the cache of
/// Hugging Face at `cache`; `None` without bash.
#[cfg(unix)]
fn completed(line: &str, cache: &std::path::Path) -> Option<String> {
    let script = printed(&["completions", "bash"]);
    let text = format!(
        "{script}\nCOMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         _amn_values amn \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &text]).env("HF_HUB_CACHE", cache);
    let output = bash.output().ok()?;
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// Tensors of the model at hand and models in the cache are completed. What a name says is not run.
#[cfg(unix)]
#[test]
fn names_are_completed() {
    use crate::common::{data, f32s, file, raw};
    let directory = crate::common::tempdir().unwrap();
    let cache = directory.path().join("hub");
    std::fs::create_dir_all(cache.join("models--acme--tiny-llama")).unwrap();
    let (amn, demo) = (env!("CARGO_BIN_EXE_amn"), data().join("demo/model-fp8.safetensors"));
    let demo = demo.display();
    let evil = directory.path().join("evil.safetensors");
    let touched = directory.path().join("touched");
    let name = format!("a$(touch${{IFS}}{})", touched.display());
    let tensors = [raw(&name, "F32", &[1], f32s(&[1.0])), raw("b", "F32", &[1], f32s(&[1.0]))];
    std::fs::write(&evil, file(&tensors, &[])).unwrap();
    let (scale, weight) = ("layers.0.attention.wq.weight_scale", "layers.0.attention.wq.weight");
    let both = format!("{scale}\n{weight}");
    for (line, expected) in [
        (format!("{amn} show {demo} layers.0."), &*both),
        (format!("{amn} remember {demo} --drop layers.0.attention.wq.weight_"), scale),
        (format!("{amn} show {demo} x"), ""),
        (format!("{amn} show {} b", evil.display()), "b"),
        (format!("{amn} inspect acme/ti"), "acme/tiny-llama"),
        (format!("{amn} inspect other/"), ""),
    ] {
        let Some(found) = completed(&line, &cache) else {
            return;
        };
        assert_eq!(found, expected, "{line}");
    }
    let found = completed(&format!("{amn} show {} a", evil.display()), &cache).unwrap();
    assert!(found.starts_with("a\\$"), "quoted: {found}");
    assert!(!touched.exists(), "the name has been run");
}

/// The same in zsh, whose functions are called as its completion calls them, and in fish. A shell that
/// is not there is not tested.
#[cfg(unix)]
#[test]
fn other_shells_complete_names() {
    let directory = crate::common::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("models--acme--tiny-llama")).unwrap();
    let demo = crate::common::data().join("demo/model-fp8.safetensors");
    let demo = demo.to_str().unwrap();
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_amn"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let says = |shell: &str, text: &str| {
        let mut command = Command::new(shell);
        command
            .args(["-c", text])
            .env("PATH", &path)
            .env("HF_HUB_CACHE", directory.path());
        Some(String::from_utf8(command.output().ok()?.stdout).unwrap())
    };
    let (scale, weight) = ("layers.0.attention.wq.weight_scale", "layers.0.attention.wq.weight");
    let script = printed(&["completions", "zsh"]);
    for function in [":_amn_tensors'", ":_amn_models'"] {
        assert!(script.matches(function).count() > 8, "{function}: {script}");
    }
    // The functions of zsh's completion system, which a script has not.
    let system = "compdef() { }; _files() { }; compadd() { print -rl -- ${(P)2} }";
    let calls = format!(
        "words=(show {demo} la) CURRENT=3; _amn_tensors; words=(inspect ac) CURRENT=2; _amn_models"
    );
    if let Some(found) = says("zsh", &format!("{system}\n{script}\n{calls}")) {
        assert_eq!(found.lines().collect::<Vec<_>>(), [scale, weight, "acme/tiny-llama"]);
    }
    let script = printed(&["completions", "fish"]);
    for (line, expected) in [
        (format!("amn show {demo} {weight}_"), scale),
        (format!("amn remember {demo} --drop {weight}_"), scale),
        ("amn inspect acme/".to_owned(), "acme/tiny-llama"),
    ] {
        if let Some(found) = says("fish", &format!("{script}\ncomplete -C '{line}'")) {
            assert_eq!(found.trim(), expected, "{line}");
        }
    }
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
            ("amn convert x --to np", "npy npz"),
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
