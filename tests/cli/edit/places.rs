//! Where an edited file goes: to another name, or to its own, also through a link.

use std::path::Path;

use super::{copy, refused};
use crate::amn;
use crate::common::directory::names_in;

const LONG: &str = "general.description=a text that is so long that the header has no room for it, and the data moves";

fn succeed(arguments: &[&str]) -> String {
    let output = amn(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// An output that is there, is the input, a directory, or called like another container.
#[test]
fn outputs_that_are_refused() {
    let root = crate::common::tempdir().unwrap();
    let path = copy("demo/model-q4_k.gguf", root.path());
    let other = copy("demo/model-fp8.safetensors", root.path());
    let at = |name: &str| root.path().join(name).to_string_lossy().into_owned();
    for (output, code, words) in [
        (&*other, 2, "another kind of file"),
        (&path, 7, "the output is the input"),
        (&at(""), 7, "directory"),
        (&at("no/such.gguf"), 7, "no"),
        ("-", 2, "not written to stdout"),
    ] {
        refused(&path, &["--set", "general.name=x", "-f", "-o", output], code, words);
    }
    std::fs::write(at("there.gguf"), "older").unwrap();
    refused(&path, &["--set", "general.name=x", "-o", &at("there.gguf")], 7, "--force");
    succeed(&["edit", &path, "--set", "general.name=x", "-f", "-o", &at("there.gguf")]);
    refused(&path, &["--set", "general.name=x"], 2, "-o OUT writes a copy, and --in-place");
    refused(&path, &["-i"], 2, "nothing to change");
    let names = names_in(root.path(), "");
    assert_eq!(names, ["model-fp8.safetensors", "model-q4_k.gguf", "there.gguf"]);
}

/// The old header, with which the new one can be undone.
#[test]
fn backups() {
    let root = crate::common::tempdir().unwrap();
    let path = copy("demo/model-q4_k.gguf", root.path());
    let backup = root.path().join("old").to_string_lossy().into_owned();
    for change in ["general.name=Tiny", LONG] {
        let before = std::fs::read(&path).unwrap();
        succeed(&["edit", &path, "--set", change, "-i", "--backup", &backup, "-f"]);
        let (old, now) = (std::fs::read(&backup).unwrap(), std::fs::read(&path).unwrap());
        assert!(before.starts_with(&old) && now.ends_with(&before[old.len()..]));
        assert!(now != before);
    }
    refused(&path, &["--set", "general.name=x", "-i", "--backup", &backup], 7, "--force");
    refused(&path, &["--set", "general.name=x", "-i", "-f", "--backup", &path], 7, "is the input");
    let both = ["--set", "general.name=x", "-f", "--backup", &backup, "-o", &backup];
    refused(&path, &both, 7, "the output is");
    std::fs::remove_file(&backup).unwrap();
    // Nothing changes, so nothing is kept.
    succeed(&["edit", &path, "--set", "general.name=Tiny", "-i", "--backup", &backup]);
    succeed(&["edit", &path, "--set", LONG, "--dry-run", "--backup", &backup]);
    assert!(!Path::new(&backup).exists());
}

/// The file that a link leads to is edited, with its owner and permissions.
#[cfg(unix)]
#[test]
fn links_and_permissions() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let root = crate::common::tempdir().unwrap();
    let path = copy("demo/model-q4_k.gguf", root.path());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let link = root.path().join("link.gguf");
    symlink("model-q4_k.gguf", &link).unwrap();
    let text = succeed(&["edit", link.to_str().unwrap(), "--set", LONG, "-i"]);
    assert!(text.contains("link.gguf (") && text.contains("a new file in its place"), "{text}");
    assert!(link.symlink_metadata().unwrap().is_symlink());
    let there = std::fs::metadata(&path).unwrap();
    assert_eq!(there.permissions().mode() & 0o777, 0o640);
    assert_eq!(names_in(root.path(), ""), ["link.gguf", "model-q4_k.gguf"]);
}

/// Files in the caches of Hugging Face and Ollama are named by their hash, and never change.
#[cfg(unix)]
#[test]
fn caches() {
    let root = crate::common::tempdir().unwrap();
    let cached = root.path().join("models--a--b");
    let [blobs, snapshot] = ["blobs", "snapshots/x"].map(|name| cached.join(name));
    for path in [&blobs, &snapshot] {
        std::fs::create_dir_all(path).unwrap();
    }
    let path = copy("demo/model-q4_k.gguf", root.path());
    let blob = blobs.join("sha256-0");
    std::fs::rename(&path, &blob).unwrap();
    let link = snapshot.join("m.gguf");
    std::os::unix::fs::symlink("../../blobs/sha256-0", &link).unwrap();
    let [blob, link] = [blob, link].map(|path| path.to_string_lossy().into_owned());
    for path in [&blob, &link] {
        refused(path, &["--set", "general.name=x", "-i"], 7, "-o OUT writes a copy elsewhere");
    }
    let other = root.path().join("blobs");
    std::fs::create_dir(&other).unwrap();
    std::fs::rename(&blob, other.join("sha256-0")).unwrap();
    let blob = other.join("sha256-0").to_string_lossy().into_owned();
    refused(&blob, &["--set", "general.name=x", "-i"], 7, "-o OUT writes a copy");
    succeed(&["edit", &blob, "--set", "general.name=x", "-o", &path]);
}

/// While another process edits the file, a second one is refused.
#[cfg(unix)]
#[test]
fn one_edit_at_a_time() {
    let root = crate::common::tempdir().unwrap();
    let path = copy("demo/model-q4_k.gguf", root.path());
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.lock().unwrap();
    for change in ["general.name=Tiny", LONG] {
        refused(&path, &["--set", change, "-i"], 7, "another process has locked it");
    }
    drop(file);
    succeed(&["edit", &path, "--set", LONG, "-i"]);
    assert_eq!(names_in(root.path(), ""), ["model-q4_k.gguf"]);
}

/// What is printed, and with `-q` is not.
#[test]
fn reports() {
    let root = crate::common::tempdir().unwrap();
    let path = copy("demo/model-q4_k.gguf", root.path());
    let text = succeed(&[
        "edit",
        &path,
        "--set",
        "general.name=Tiny",
        "--set",
        "my.list:[u8]=[1,2,3,4,5]",
        "--dry-run",
    ]);
    let expected = "Set:     general.name = Tiny, was SmolLM2, a slice\n\
                    Added:   my.list = [1, 2, 3, 4, …] (5 items) ([u8])\nOutput:  ";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(succeed(&["edit", &path, "--set", "general.name=Tiny", "-i", "-q"]), "");
    let text = succeed(&[
        "edit",
        &path,
        "--rename",
        "general.name=a",
        "--set",
        "b=1",
        "-i",
        "--unset",
        "general.architecture",
        "-f",
    ]);
    let expected = "Removed: general.architecture, was llama\nRenamed: general.name to a\nAdded:   b = 1 (u32)\n";
    assert!(text.starts_with(expected), "{text}");
}
