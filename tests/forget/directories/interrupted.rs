//! Encoding of directories that is interrupted, resumed, or done in parts.

use anamnesis::{
    AnamnesisError, CancelToken, ConvertOptions, Forget, ForgetScheme, TargetDtype, finish_parts,
    parse,
};

use super::{SCHEMES, model};
use crate::common::directory::{assert_same_tree, names_in, tree};
use crate::common::effort;
use crate::common::forget::options;

/// Options that stop the work once `bytes` are written.
fn cancelled_after(mut options: ConvertOptions, bytes: u64) -> ConvertOptions {
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let stop = move |p: anamnesis::Progress| {
        if p.done_bytes >= bytes {
            token.cancel();
        }
    };
    options.run = options
        .run
        .with_cancel(cancel)
        .with_threads(2)
        .with_progress(stop);
    options
}

#[test]
fn an_interrupted_encoding_is_resumed() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let mut resumed = 0;
    // In the gate each scheme is stopped at three places, otherwise at another one of them.
    let places = effort([1, 3, 3]);
    for (at, (scheme, _)) in SCHEMES.iter().enumerate() {
        let (want, output) = (root.path().join("want"), root.path().join("out"));
        let total = parse(&input)
            .unwrap()
            .forget(&want, options(scheme))
            .unwrap()
            .output_bytes;
        let all = [1, total / 3, total * 3 / 4];
        for bytes in all.into_iter().cycle().skip(at % 3).take(places) {
            let stopped = parse(&input)
                .unwrap()
                .forget(&output, cancelled_after(options(scheme), bytes));
            assert!(matches!(stopped, Err(AnamnesisError::Cancelled)), "{scheme}: {stopped:?}");
            assert!(!output.exists(), "{scheme}");
            // A run that finished no shard leaves nothing to resume.
            let unfinished = root.path().join(".out.partial");
            // With other parameters it is not resumed.
            let other = if *scheme == "w4a16" { "nf4" } else { "w4a16" };
            if unfinished.is_dir() {
                resumed += 1;
                let refused = parse(&input)
                    .unwrap()
                    .forget(&output, options(other).with_resume(true))
                    .unwrap_err();
                assert!(refused.to_string().contains("other parameters"), "{refused}");
            }
            parse(&input)
                .unwrap()
                .forget(&output, options(scheme).with_resume(true))
                .unwrap();
            assert_same_tree(
                &tree(&want),
                &tree(&output),
                &format!("{scheme}, after {bytes} bytes"),
            );
            std::fs::remove_dir_all(&output).unwrap();
        }
        std::fs::remove_dir_all(want).unwrap();
    }
    assert!(resumed >= SCHEMES.len() * places / 3, "{resumed}");
    assert_eq!(names_in(root.path(), ""), ["model"]);
}

#[test]
fn parts_make_the_same_directory() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let (want, output) = (root.path().join("want"), root.path().join("out"));
    for (scheme, _) in SCHEMES {
        parse(&input)
            .unwrap()
            .forget(&want, options(scheme))
            .unwrap();
        for part in [2, 1] {
            assert!(finish_parts(&output, false).is_err());
            parse(&input)
                .unwrap()
                .forget(&output, options(scheme).with_part(part, 2))
                .unwrap();
        }
        finish_parts(&output, false).unwrap();
        assert_same_tree(&tree(&want), &tree(&output), scheme);
        std::fs::remove_dir_all(&output).unwrap();
        std::fs::remove_dir_all(&want).unwrap();
    }
}

#[test]
fn parts_of_another_encoding_are_refused() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let output = root.path().join("out");
    let model = parse(&input).unwrap();
    model
        .forget(&output, options("gptq").with_part(1, 2))
        .unwrap();
    let before = tree(&root.path().join(".out.partial"));
    let forget = |change: fn(&mut Forget)| {
        let mut forget = Forget::from("gptq".parse::<ForgetScheme>().unwrap());
        change(&mut forget);
        ConvertOptions::from(forget).with_part(2, 2)
    };
    let others = [
        options("gptq-int8").with_part(2, 2),
        options("awq").with_part(2, 2),
        ConvertOptions::from(TargetDtype::BF16).with_part(2, 2),
        forget(|f| f.scheme = f.scheme.clone().with_group_size(64)),
        forget(|f| f.include = vec!["*q_proj*".to_owned()]),
        forget(|f| f.exclude = vec!["*.2.*".to_owned()]),
        forget(|f| f.like = Some("/nowhere".into())),
    ];
    for other in others {
        let scheme = format!("{:?}", other.forget);
        let error = model.forget(&output, other).unwrap_err().to_string();
        assert!(
            error.contains("other parameters") || error.contains("/nowhere"),
            "{scheme}: {error}"
        );
        assert_same_tree(&before, &tree(&root.path().join(".out.partial")), &scheme);
    }
    model
        .forget(&output, options("gptq").with_part(2, 2))
        .unwrap();
    finish_parts(&output, false).unwrap();
}
