//! What somebody else plants where an output directory is made, as they can in a shared folder: it
//! is neither written to nor made a part of the output.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Once;

use anamnesis::{ConvertOptions, Progress, RememberOptions, TargetDtype, parse};

use crate::common::directory::{assert_same_tree, names_in, seven_layers, tree};
use crate::resume::interrupt;

const PRECIOUS: &str = "somebody's file";

fn resumed() -> ConvertOptions {
    ConvertOptions::from(TargetDtype::BF16).with_resume(true)
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

/// Somebody's directory with a file.
fn somebodys(root: &Path) -> PathBuf {
    let theirs = root.join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("file"), PRECIOUS).unwrap();
    std::fs::write(root.join("their-file"), PRECIOUS).unwrap();
    theirs
}

/// The error of a conversion to `out`; nothing that is somebody's may change.
fn refused(root: &Path, options: ConvertOptions) -> String {
    let (theirs, file) = (tree(&root.join("theirs")), root.join("their-file"));
    let modes = (mode(&root.join("theirs")), mode(&file));
    let model = parse(root.join("model")).unwrap();
    let error = model.convert(root.join("out"), options).unwrap_err();
    assert_same_tree(&theirs, &tree(&root.join("theirs")), "somebody's directory");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), PRECIOUS);
    assert_eq!(modes, (mode(&root.join("theirs")), mode(&file)));
    assert!(!root.join("out").exists());
    error.to_string()
}

#[test]
fn a_link_in_place_of_the_unfinished_directory() {
    for is_empty in [true, false] {
        for force in [false, true] {
            let root = crate::common::tempdir().unwrap();
            let root = root.path();
            seven_layers(root, 256);
            let theirs = somebodys(root);
            if is_empty {
                std::fs::remove_file(theirs.join("file")).unwrap();
            } else {
                std::fs::write(theirs.join(".anamnesis"), "").unwrap();
            }
            symlink(&theirs, root.join(".out.partial")).unwrap();
            let run = RememberOptions::new(TargetDtype::BF16).with_force(force);
            let error = refused(root, run.into());
            assert!(error.contains("link"), "{error}");
        }
    }
}

#[test]
fn a_link_in_the_unfinished_directory() {
    for name in [
        ".anamnesis",
        "anamnesis-part-1-of-1.partial",
        "anamnesis-part-1-of-1.json",
        "model-00005-of-00007.safetensors.partial",
        "model-00005-of-00007.safetensors",
        "model.safetensors.index.json",
        "config.json",
        "tokenizer.json",
        "extra",
    ] {
        let root = crate::common::tempdir().unwrap();
        let root = root.path();
        let (input, _) = seven_layers(root, 256);
        let theirs = somebodys(root);
        interrupt(root, &input);
        let planted = root.join(".out.partial").join(name);
        let _ = std::fs::remove_file(&planted);
        let target = if name == "extra" {
            theirs
        } else {
            root.join("their-file")
        };
        symlink(target, &planted).unwrap();
        let error = refused(root, resumed());
        assert!(error.contains(name) && error.contains("link"), "{error}");
    }
}

#[test]
fn a_hard_link_in_the_unfinished_directory() {
    let root = crate::common::tempdir().unwrap();
    let root = root.path();
    let (input, _) = seven_layers(root, 256);
    somebodys(root);
    interrupt(root, &input);
    let name = "model-00005-of-00007.safetensors.partial";
    std::fs::hard_link(root.join("their-file"), root.join(".out.partial").join(name)).unwrap();
    let error = refused(root, resumed());
    assert!(error.contains(name) && error.contains("hard link"), "{error}");
}

#[test]
fn what_another_user_has_made_is_refused() {
    for name in ["", "anamnesis-part-1-of-1.json", "planted.py"] {
        let root = crate::common::tempdir().unwrap();
        let root = root.path();
        let (input, _) = seven_layers(root, 256);
        somebodys(root);
        interrupt(root, &input);
        let planted = root.join(".out.partial").join(name);
        if name == "planted.py" {
            std::fs::write(&planted, "import os").unwrap();
        }
        if chown(&planted, Some(12345), None).is_err() {
            eprintln!("only the superuser may give files to others");
            return;
        }
        let error = refused(root, resumed());
        assert!(error.contains(name) && error.contains("another user"), "{error}");
    }
}

/// All of the directory is another user's, so that nothing in it differs from the rest.
#[test]
fn a_directory_of_another_user_is_refused() {
    let root = crate::common::tempdir().unwrap();
    let root = root.path();
    let (input, _) = seven_layers(root, 256);
    somebodys(root);
    interrupt(root, &input);
    let mut theirs = vec![root.join(".out.partial")];
    while let Some(path) = theirs.pop() {
        if path.is_dir() {
            theirs.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        }
        if chown(&path, Some(12345), None).is_err() {
            eprintln!("only the superuser may give files to others");
            return;
        }
    }
    let error = refused(root, resumed());
    // Before anything of ours is made in it.
    assert!(error.contains(".out.partial: it belongs to another user"), "{error}");
}

#[test]
fn nobody_else_has_access_before_the_directory_has_its_name() {
    let root = crate::common::tempdir().unwrap();
    let root = root.path();
    let (input, want) = seven_layers(root, 256);
    let (partial, output) = (root.join(".out.partial"), root.join("out"));
    let seen = partial.clone();
    let check = move |_: Progress| assert_eq!(mode(&seen), 0o700);
    let run = RememberOptions::new(TargetDtype::BF16).with_progress(check);
    parse(&input).unwrap().remember(&output, run).unwrap();
    assert_same_tree(&want, &tree(&output), "made in private");
    std::fs::create_dir(root.join("ordinary")).unwrap();
    assert_eq!(mode(&output), mode(&root.join("ordinary")));
    std::fs::write(root.join("ordinary/file"), "").unwrap();
    for name in names_in(&output, "json") {
        assert_eq!(mode(&output.join(&name)), mode(&root.join("ordinary/file")), "{name}");
    }

    // An unfinished directory that is open to others is closed to them.
    std::fs::remove_dir_all(&output).unwrap();
    interrupt(root, &input);
    std::fs::set_permissions(&partial, Permissions::from_mode(0o777)).unwrap();
    let seen = partial.clone();
    let check = move |_: Progress| assert_eq!(mode(&seen), 0o700);
    let run = RememberOptions::new(TargetDtype::BF16).with_progress(check);
    let options = ConvertOptions::from(run).with_resume(true);
    parse(&input).unwrap().convert(&output, options).unwrap();
    assert_same_tree(&want, &tree(&output), "resumed");
}

#[test]
fn a_directory_that_is_exchanged_meanwhile() {
    let root = crate::common::tempdir().unwrap();
    let root = root.path();
    seven_layers(root, 256);
    let theirs = somebodys(root);
    let (partial, away, once) = (root.join(".out.partial"), root.join("away"), Once::new());
    let exchange = move |progress: Progress| {
        if progress.done_bytes * 2 >= progress.total_bytes {
            once.call_once(|| {
                std::fs::rename(&partial, &away).unwrap();
                symlink(&theirs, &partial).unwrap();
            });
        }
    };
    let run = RememberOptions::new(TargetDtype::BF16).with_progress(exchange);
    let error = refused(root, run.into());
    assert!(error.contains("another directory is in its place"), "{error}");
}
