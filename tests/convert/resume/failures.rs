//! Jobs that fail while several shards are written side by side.

use anamnesis::{ConvertOptions, RememberOptions, TargetDtype, parse};

use crate::common::directory::names_in;
use crate::common::{f32s, file, raw};

/// Ten layers, a shard each; the third and the fourth name a group that they do not have.
fn layers() -> Vec<u8> {
    let tensors = (0..10).flat_map(|i| {
        let group = if i == 2 || i == 3 { 99i32 } else { 1 };
        let name = |part: &str| format!("{i}.{part}");
        [
            raw(&name("qweight"), "I32", &[64, 64], vec![3; 64 * 64 * 4]),
            raw(&name("qzeros"), "I32", &[8, 8], vec![0x77; 256]),
            raw(&name("scales"), "F32", &[8, 64], f32s(&[0.5; 512])),
            raw(&name("g_idx"), "I32", &[512], group.to_le_bytes().repeat(512)),
        ]
    });
    file(&tensors.collect::<Vec<_>>(), &[])
}

#[test]
fn the_lowest_failure_counts_and_whole_shards_stay() {
    let root = crate::common::tempdir().unwrap();
    let (input, output) = (root.path().join("in"), root.path().join("out"));
    std::fs::write(&input, layers()).unwrap();
    for threads in [1, 2, 3, 4, 16] {
        let run = RememberOptions::new(TargetDtype::BF16)
            .with_threads(threads)
            .with_force(true);
        let options = ConvertOptions::from(run).with_max_shard_size(70_000);
        let error = parse(&input).unwrap().convert(&output, options);
        assert_eq!(
            error.unwrap_err().to_string(),
            "parse error: tensor `2.g_idx`: group 99 of 8",
            "{threads} threads"
        );
        let made = names_in(&root.path().join(".out.partial"), ".safetensors");
        assert_eq!(
            &made[..2],
            ["model-00001-of-00010.safetensors", "model-00002-of-00010.safetensors"],
            "{threads} threads"
        );
        // Nothing behind the shards that are written side by side with the failing one.
        assert!(made.len() <= 4, "{threads} threads: {made:?}");
    }
}
