//! Names, titles and rope of the tables; expected values come from llama.cpp's converter and torch
//! 2.6.

use super::dims::Need;
use super::general::{size_label, title};
use super::names::{Place, fill, find, split_suffix};
#[cfg(feature = "lethe")]
use super::pre_norms::is_complete;
use super::rope::Llama3;
use crate::families::CLASSES;

#[test]
fn names_with_numbers() {
    let at = |layer, expert| Place { layer, expert };
    let rows = [
        ("model.norm", "model.norm", Some(at(None, None))),
        ("a.{i}.b", "a.12.b", Some(at(Some(12), None))),
        ("a.{i}.{e}", "a.0.7", Some(at(Some(0), Some(7)))),
        ("a.{i}.b", "a.b", None),
        ("a.{i}.b", "a.01.b", None),
        ("a.{i}.b", "a.+1.b", None),
        ("a.{i}.b", "a.99999999999999999999999.b", None),
        ("a.{i}", "a.1.b", None),
        ("a.{i}.b", "a.1", None),
    ];
    for (pattern, name, expected) in rows {
        assert_eq!(find(pattern, name), expected, "{pattern} {name}");
        if let Some(place) = expected {
            assert_eq!(fill(pattern, place), name);
        }
    }
    assert_eq!(split_suffix("a.weight"), ("a", ".weight"));
    assert_eq!(split_suffix("a.bias"), ("a", ".bias"));
    assert_eq!(split_suffix("a.weights"), ("a.weights", ""));
}

/// No name fits two rules of a layer, except those of projections that are fused in transformers.
#[test]
fn rules_are_unique() {
    for class in CLASSES {
        let names = class.tensors.iter().flat_map(|rules| rules.iter());
        let kind = |need| match need {
            Need::Kind(kind) | Need::KindIn(_, kind) => kind,
            Need::If(_) => "if",
            // A tensor of the first layer that is a copy of another, and the others' own.
            Need::First => "first",
            _ => "",
        };
        let mut names: Vec<_> = names.map(|rule| (rule.gguf, kind(rule.need))).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{}", class.classes[0]);
    }
}

/// Of a class with pre-norms it is known which norm each matrix reads, and all classes of its name in
/// GGUF have such norms.
#[test]
#[cfg(feature = "lethe")]
fn pre_norms_have_all_readers() {
    for class in CLASSES.iter().filter(|class| class.traits.has_pre_norms) {
        assert!(is_complete(class), "{}", class.classes[0]);
        let mut namesakes = CLASSES.iter().filter(|other| other.gguf == class.gguf);
        assert!(namesakes.all(|other| other.traits.has_pre_norms), "{}", class.gguf);
    }
}

#[test]
fn titles_and_sizes() {
    let titles = [
        ("Meta-Llama-3.1-8B-Instruct", "Meta Llama 3.1 8B Instruct"),
        ("qwen2-moe", "Qwen2 Moe"),
        ("llama_bias", "Llama_Bias"),
        ("my model v1.5", "My Model v1.5"),
        ("7b-chat", "7b Chat"),
    ];
    for (name, expected) in titles {
        assert_eq!(title(name), expected);
    }
    let sizes = [
        (8_030_261_248, "8.0B"),
        (494_032_768, "494M"),
        (103_000, "103K"),
        (999, "1.0K"),
        (1_000_000_000_001, "1.0T"),
        (1_000_000, "1000K"),
    ];
    for (parameters, expected) in sizes {
        assert_eq!(size_label([("a.weight", &[parameters][..])].into_iter()), expected);
    }
    let mixtral = [
        ("a.weight", &[1_605_644_288][..]),
        ("blk.0.ffn_up_exps.weight", &[8, 5_637_144_576, 1][..]),
    ];
    assert_eq!(size_label(mixtral.into_iter()), "8x7.2B");
}

/// The factors of Llama 3.1 8B and of Llama 3.2 3B between the two limits, which begin at the 29th.
#[test]
fn factors_of_llama3() {
    let scaling =
        |factor| Llama3 { base: 500_000.0, factor, low: 1.0, high: 4.0, original: 8192.0 };
    let rows: [(f64, [u32; 7]); 2] = [
        (
            8.0,
            [
                0x3f9a_8ed5,
                0x3fc6_d64a,
                0x4001_af1d,
                0x402c_732e,
                0x406b_cace,
                0x40a8_3c06,
                0x4100_0000,
            ],
        ),
        (
            32.0,
            [
                0x3f9e_126b,
                0x3fd3_5ec2,
                0x4011_b4ca,
                0x4052_b46f,
                0x40a5_7db9,
                0x411a_aaee,
                0x4200_0000,
            ],
        ),
    ];
    for (factor, expected) in rows {
        let found = scaling(factor).factors(128);
        assert_eq!(found.len(), 64);
        assert!(found[..29].iter().all(|&x| x == 1.0));
        assert_eq!(
            found[29..36]
                .iter()
                .map(|x| x.to_bits())
                .collect::<Vec<_>>(),
            expected
        );
        assert_eq!(Llama3::of(&found, 500_000.0, 128), Some(scaling(factor)));
    }
    // Only the last factor is stretched: the length is unknown, but the factors come back.
    let found = scaling(8.0).factors(8);
    assert_eq!(Llama3::of(&found, 500_000.0, 8).map(|found| found.factors(8)), Some(found));
    assert_eq!(Llama3::of(&[1.0, 3.0, 2.0, 8.0], 500_000.0, 8), None);
}
