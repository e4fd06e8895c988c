//! Checkpoints of which a byte of a pickle differs.

use std::path::Path;

use anamnesis::parse;

use super::{copied, refused};
use crate::common::zip::{Member, Zip};

/// Replaces bytes of the pickle in the archive `path`, the first behind `anchor`, with as many.
pub fn edit(path: &Path, anchor: &str, from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let mut edited = vec![];
    for (name, mut content) in members(&std::fs::read(path).unwrap()) {
        if name.ends_with("data.pkl") {
            let find = |what: &[u8], from: usize| {
                let mut windows = content[from..].windows(what.len());
                let at = windows.position(|found| found == what);
                from + at.unwrap_or_else(|| panic!("no {what:?} behind {anchor} in {path:?}"))
            };
            let at = find(from, find(anchor.as_bytes(), 0));
            content[at..at + to.len()].copy_from_slice(to);
        }
        edited.push(Member::stored(&name, &content));
    }
    std::fs::write(path, Zip::of(&edited).file()).unwrap();
}

/// The members of an archive of torch: names and contents.
pub fn members(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let found = stored_members(bytes).into_iter();
    found
        .map(|(name, start, len)| (name, bytes[start..start + len].to_vec()))
        .collect()
}

/// The members of an archive of torch, which are not compressed: name, first byte and length.
fn stored_members(bytes: &[u8]) -> Vec<(String, usize, usize)> {
    let u16_at = |at: usize| usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let end = bytes
        .windows(4)
        .rposition(|found| found == b"PK\x05\x06")
        .unwrap();
    let (n, mut at) = (u16_at(end + 10), u32_at(end + 16));
    let mut members = vec![];
    for _ in 0..n {
        let (len, name_len, header) = (u32_at(at + 24), u16_at(at + 28), u32_at(at + 42));
        let name = String::from_utf8(bytes[at + 46..][..name_len].to_vec()).unwrap();
        let start = header + 30 + u16_at(header + 26) + u16_at(header + 28);
        members.push((name, start, len));
        at += 46 + name_len + u16_at(at + 30) + u16_at(at + 32);
    }
    members
}

#[test]
fn changed_states_are_errors() {
    let changed = |case: &str, file: &str, anchor: &str, from: &[u8], to: &[u8], words: &str| {
        let copy = copied(case, |dir| edit(&dir.join(file), anchor, from, to));
        refused(copy.path(), words);
    };
    let (model, first) =
        ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt");
    let optim = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";
    // The tuple (11, 5), which is the shape of the embedding.
    let shape = b"K\x0bK\x05\x86";
    for (case, file) in [
        ("stage1", model),
        ("stage2", model),
        ("stage2-one", model),
        ("stage3", first),
        ("stage3-frozen", first),
    ] {
        for other in [b"K\x7fK\x05\x86", b"K\x01K\x05\x86"] {
            changed(case, file, "param_shapes", shape, other, "and the files have");
        }
    }
    for (case, file) in [("stage2", model), ("stage3-frozen", first)] {
        changed(
            case,
            file,
            "frozen_param_shapes",
            b"K\x05\x85",
            b"K\x09\x85",
            "and the files have",
        );

        let copy = copied(case, |dir| {
            edit(&dir.join(file), "param_shapes", b"norm.weight", b"mid.weighty");
        });
        assert!(parse(copy.path()).unwrap().tensor("mid.weighty").is_some());
    }
    for (anchor, from, to, words) in [
        ("param_shapes", &b"param_shapes"[..], &b"param_shopes"[..], "no `param_shapes`"),
        ("buffer_names", b"buffer_names", b"buffer_nomes", "no `buffer_names`"),
        ("module", b"module", b"mobule", "no `module`"),
        ("mp_world_size", b"K\x01", b"K\x02", "`mp_world_size` is not 1"),
        ("pp_degree", b"K\x01", b"K\x02", "`pp_degree` is not 1"),
        ("tp_degree", b"K\x01", b"K\x02", "`tp_degree` is not 1"),
        ("shared_params", b"embed.weight", b"embed.weighs", "`embed.weighs`, which is not there"),
        ("shared_params", b"head.weight", b"norm.weight", "has it twice"),
    ] {
        changed("stage1", model, anchor, from, to, words);
    }
    for (anchor, to, words) in [
        ("zero_stage", "zero_stoge", "no `zero_stage`"),
        ("partition_count", "partition_kount", "no `partition_count`"),
        (
            "single_partition_of_fp32_groups",
            "single_partition_of_fp64_groups",
            "no `single_partition",
        ),
        (
            "deepspeed.runtime.zero.config",
            "deepspeed.runtime.zero.konfig",
            "deepspeed.runtime.zero.konfig",
        ),
    ] {
        changed("stage1", optim, anchor, anchor.as_bytes(), to.as_bytes(), words);
    }
    changed("stage1", optim, "ZeroStageEnum", b"K\x01", b"K\x04", "another stage");
}

/// Whatever byte of a state differs, the checkpoint is read or refused, and what is read can be
/// decoded.
#[test]
fn any_changed_byte_is_read_or_refused() {
    for (case, file) in [
        ("stage2", "mp_rank_00_model_states.pt"),
        ("stage3-frozen", "zero_pp_rank_1_mp_rank_00_model_states.pt"),
        ("stage3", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    ] {
        let copy = copied(case, |_| {});
        let path = copy.path().join(file);
        let original = std::fs::read(&path).unwrap();
        let (_, start, len) = stored_members(&original).remove(0);
        for at in (start..start + len).step_by(13) {
            let mut bytes = original.clone();
            bytes[at] = bytes[at].wrapping_add(1 + (at % 7) as u8);
            let members = stored_members(&bytes).into_iter();
            let members =
                members.map(|(name, start, len)| Member::stored(&name, &bytes[start..start + len]));
            std::fs::write(&path, Zip::of(&members.collect::<Vec<_>>()).file()).unwrap();
            let Ok(model) = parse(copy.path()) else {
                continue;
            };
            for tensor in model.tensors() {
                assert!(tensor.bytes().is_ok(), "{at}");
            }
        }
    }
}
