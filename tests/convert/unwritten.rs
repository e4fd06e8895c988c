//! Files that programs run or obey where they find them: no conversion writes them.

use std::path::Path;

use anamnesis::{Adapter, ConvertOptions, ConvertTarget, Forget, TargetDtype, parse};

use crate::common::data;
use crate::common::directory::{make, shards, write_files};

/// Paths that are in no output.
pub const OBEYED: &[&str] = &[
    ".git/config",
    ".git/hooks/post-checkout",
    ".GIT/config",
    "sub/.Git/config",
    "GIT~1/config",
    ".git./config",
    ".git /config",
    ".g\u{200c}it/config",
    ".gitmodules",
    ".hg/hgrc",
    ".svn/entries",
    ".jj/config",
    "HEAD",
    "sub/head",
    "commondir",
    ".envrc",
    "sub/.envrc",
    ".env",
    ".ssh/authorized_keys",
    ".vscode/tasks.json",
    ".idea/workspace.xml",
    ".devcontainer/devcontainer.json",
    ".dir-locals.el",
    ".exrc",
    ".gdbinit",
    ".cargo/config.toml",
    ".mise.toml",
    "mise.toml",
    ".bashrc",
    "__pycache__/modeling.cpython-313.pyc",
    "desktop.ini",
    "AutoRun.inf",
];

/// All files below `directory`, as paths from there.
fn files(directory: &Path) -> Vec<String> {
    let mut found = vec![];
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => found.extend(files(&path).iter().map(|below| format!("{name}/{below}"))),
            false => found.push(name),
        }
    }
    found.sort();
    found
}

/// Writes every one of [`OBEYED`] and some files of a model into `directory`. Names that are one to
/// the file system are written once.
fn plant(directory: &Path) {
    let all = OBEYED
        .iter()
        .map(|name| (*name, "[core]\n\tfsmonitor = echo\n"));
    let all: Vec<_> = all.collect();
    write_files(directory, &all);
    write_files(
        directory,
        &[
            ("git/config", "kept"),
            ("heads/HEAD.txt", "kept"),
            ("modeling_x.py", "kept"),
            ("model-00009.safetensors.partial", "not ours"),
            ("anamnesis-part-7-of-9.json", "{}"),
        ],
    );
}

fn assert_clean(output: &Path, notes: &[String], what: &str) {
    let files = files(output);
    for name in OBEYED {
        assert!(!files.iter().any(|file| file == name), "{what}: {name}");
    }
    for name in ["git/config", "heads/HEAD.txt", "modeling_x.py"] {
        assert!(files.iter().any(|file| file == name), "{what}: no {name}");
    }
    let is_hidden = |file: &&String| file.split('/').any(|part| part.starts_with('.'));
    assert_eq!(files.iter().find(is_hidden), None, "{what}");
    let is_ours = |file: &&String| file.ends_with(".partial") || file.contains("-part-");
    assert_eq!(files.iter().find(is_ours), None, "{what}");
    for name in [".envrc", ".vscode", "HEAD", "GIT~1", "sub/.envrc", "x.partial"] {
        let name = name.replace("x.partial", "model-00009.safetensors.partial");
        let note = format!("`{name}` was left out: ");
        assert!(notes.iter().any(|n| n.starts_with(&note)), "{what}: {name}: {notes:?}");
    }
    // What is usual beside a model needs no word.
    assert!(!notes.iter().any(|note| note.contains("`.git`")), "{notes:?}");
}

#[test]
fn of_directories() {
    let root = crate::common::tempdir().unwrap();
    let input = root.path().join("in");
    make(&input, &shards(2, 128));
    plant(&input);
    let model = parse(&input).unwrap();
    let output = root.path().join("out");
    let report = model.remember(&output, TargetDtype::BF16).unwrap();
    assert_clean(&output, &report.notes, "remember");
    let mut options = vec![("convert", ConvertOptions::new(ConvertTarget::Safetensors))];
    if cfg!(feature = "lethe") {
        let forget = Forget::from("fp8".parse::<anamnesis::ForgetScheme>().unwrap());
        options.push(("forget", ConvertOptions::from(forget)));
    }
    for (what, mut options) in options {
        options.run.replace = anamnesis::Replace::Everything;
        let report = model.convert(&output, &options).unwrap();
        assert_clean(&output, &report.notes, what);
    }
}

#[test]
fn of_bases_of_adapters() {
    let root = crate::common::tempdir().unwrap();
    let base = root.path().join("base");
    std::fs::create_dir(&base).unwrap();
    for entry in std::fs::read_dir(data().join("adapters/base")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, base.join(path.file_name().unwrap())).unwrap();
    }
    plant(&base);
    let adapter = Adapter::open(data().join("adapters/plain")).unwrap();
    let options = ConvertOptions::from(TargetDtype::F32).with_adapters(vec![adapter]);
    let output = root.path().join("out");
    let report = parse(&base).unwrap().convert(&output, options).unwrap();
    assert_clean(&output, &report.notes, "merge");
}

/// A snapshot of the cache has links to blobs, which may be called anything.
#[cfg(unix)]
#[test]
fn of_the_cache_of_the_hub() {
    let root = crate::common::tempdir().unwrap();
    let repository = root.path().join("models--org--name");
    let snapshot = repository.join("snapshots/main");
    make(&snapshot, &shards(2, 128));
    plant(&snapshot);
    let hash = "0123456789".repeat(4);
    write_files(&repository, &[(&format!("blobs/{hash}"), "touch run")]);
    let blob = format!("../../blobs/{hash}");
    std::os::unix::fs::symlink(&blob, snapshot.join(".autoenv")).unwrap();
    std::os::unix::fs::symlink(&blob, snapshot.join("vocab.txt")).unwrap();
    let output = root.path().join("out");
    let model = parse(&snapshot).unwrap();
    let report = model.remember(&output, TargetDtype::BF16).unwrap();
    assert_clean(&output, &report.notes, "cache");
    assert!(output.join("vocab.txt").exists());
}
