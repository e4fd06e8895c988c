//! The output file: cancelled conversions, places that are refused, and files that are replaced.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anamnesis::{
    AnamnesisError, CancelToken, ConvertOptions, RememberOptions, TargetDtype, parse, parse_bytes,
};

use super::{demo, mixed};
use crate::common::{assert_same, data, file};

fn left_behind(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_cancelled_conversion_leaves_nothing() {
    let directory = crate::common::tempdir().unwrap();
    let cancel = CancelToken::new();
    let (token, seen) = (cancel.clone(), Arc::new(AtomicU64::new(0)));
    let count = seen.clone();
    let options = RememberOptions::new(TargetDtype::F32)
        .with_cancel(cancel)
        .with_threads(2)
        .with_progress(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            token.cancel();
        });
    let model = parse_bytes(file(&mixed(), &[])).unwrap();
    let error = model
        .remember(directory.path().join("out"), options)
        .unwrap_err();
    assert!(matches!(error, AnamnesisError::Cancelled), "{error}");
    assert!(seen.load(Ordering::Relaxed) <= 2, "work went on");
    assert!(left_behind(directory.path()).is_empty());
}

#[test]
fn progress_ends_at_the_total() {
    let most = Arc::new(AtomicU64::new(0));
    let seen = most.clone();
    let options = RememberOptions::new(TargetDtype::BF16).with_progress(move |p| {
        assert!(p.done_bytes <= p.total_bytes);
        seen.fetch_max(p.done_bytes, Ordering::Relaxed);
    });
    let bytes = parse_bytes(file(&mixed(), &[]))
        .unwrap()
        .remember_to_bytes(options)
        .unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(most.load(Ordering::Relaxed), bytes.len() as u64 - header);
}

fn refused(output: &Path, force: bool) -> String {
    let model = parse(demo()).unwrap();
    let error = model
        .remember(output, RememberOptions::new(TargetDtype::BF16).with_force(force))
        .unwrap_err();
    assert!(matches!(error, AnamnesisError::Io(_)), "{error}");
    error.to_string()
}

#[test]
fn bad_places_are_refused_before_the_work() {
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("there"), b"precious").unwrap();
    assert!(refused(&at("there"), false).contains("exists"));
    assert_eq!(std::fs::read(at("there")).unwrap(), b"precious");
    assert!(refused(directory.path(), true).contains("is a directory"));
    assert!(refused(&at("missing/out"), true).contains("missing"));
    assert!(refused(&at("there/out"), true).contains("there"));
    #[cfg(unix)]
    assert!(refused(Path::new("/dev/null"), true).contains("not a regular file"));
    assert_eq!(left_behind(directory.path()), ["there"]);
}

#[cfg(unix)]
#[test]
fn the_input_is_never_the_output() {
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::copy(demo(), at("model")).unwrap();
    std::os::unix::fs::symlink(at("model"), at("soft")).unwrap();
    std::fs::hard_link(at("model"), at("hard")).unwrap();
    let model = parse(at("model")).unwrap();
    let bf16 = RememberOptions::new(TargetDtype::BF16);
    for name in ["model", "soft", "hard"] {
        for options in [bf16.clone(), bf16.clone().with_force(true)] {
            let error = model.remember(at(name), options).unwrap_err();
            assert!(error.to_string().contains("the output is the input"), "{name}: {error}");
        }
    }
    assert_eq!(std::fs::read(at("model")).unwrap(), std::fs::read(demo()).unwrap());
}

/// Programs run twice: without further options, every call replaces the file that the last run has
/// made.
#[test]
fn an_output_is_replaced_unless_the_options_say_otherwise() {
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out");
    let model = parse(demo()).unwrap();
    let bf16 = TargetDtype::BF16;
    let safetensors = anamnesis::ConvertTarget::Safetensors;
    type Write<'a> = &'a dyn Fn(bool) -> anamnesis::Result<anamnesis::Report>;
    let remember: Write = &|keep| match keep {
        true => model.remember(&output, RememberOptions::new(bf16).no_replace()),
        false => model.remember(&output, bf16),
    };
    let convert: Write = &|keep| match keep {
        true => model.convert(&output, ConvertOptions::new(safetensors).no_replace()),
        false => model.convert(&output, safetensors),
    };
    let forget: Write = &|keep| {
        let nf4 = ConvertOptions::from(anamnesis::ForgetScheme::NF4);
        model.forget(&output, if keep { nf4.no_replace() } else { nf4 })
    };
    for write in [remember, convert, forget] {
        std::fs::write(&output, b"old").unwrap();
        let error = write(true).unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        assert_eq!(std::fs::read(&output).unwrap(), b"old");
        let len = write(false).unwrap().output_bytes;
        assert_eq!(write(false).unwrap().output_bytes, len);
        assert_eq!(std::fs::metadata(&output).unwrap().len(), len);
        assert_eq!(left_behind(directory.path()), ["out"]);
    }
}

#[test]
fn force_replaces_and_repeats() {
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out");
    std::fs::write(&output, b"old").unwrap();
    let model = parse(demo()).unwrap();
    let report = model
        .remember(&output, RememberOptions::new(TargetDtype::BF16).with_force(true))
        .unwrap();
    assert_eq!(std::fs::metadata(&output).unwrap().len(), report.output_bytes);
    assert_same(
        &std::fs::read(data().join("demo/expected-bf16.safetensors")).unwrap(),
        &std::fs::read(&output).unwrap(),
        "demo",
    );
    assert_eq!(left_behind(directory.path()), ["out"]);
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&output).unwrap().permissions(),
        );
        assert_eq!(mode & 0o600, 0o600);
        assert_eq!(mode & 0o111, 0);
    }
}
