//! Checkpoints of DeepSpeed's ZeRO: what DeepSpeed has written and joined itself
//! (`generate/deepspeed_zero.py`), missing files, and changed bytes.

pub mod changed;
mod hostile;
mod ranks;

use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, parse};
use safetensors::SafeTensors;

use crate::common::{assert_same, data};

/// The cases, and the number of tensors whose parts lie in several files.
const CASES: [(&str, usize); 10] = [
    ("stage1", 2),
    ("stage1-frozen", 3),
    ("stage2", 4),
    ("stage2-one", 0),
    ("stage2-aligned", 4),
    ("stage1-fp16-reordered", 2),
    ("stage2-fp16-offload", 2),
    ("stage3-fp16-offload", 7),
    ("stage3", 7),
    ("stage3-frozen", 7),
];

#[test]
fn tensors_are_those_of_zero_to_fp32() {
    for (name, in_pieces) in CASES {
        let expected = data().join(format!("deepspeed/expected-{name}.safetensors"));
        let expected = std::fs::read(expected).unwrap();
        let tensors = SafeTensors::deserialize(&expected).unwrap();
        let directory = data().join("deepspeed").join(name);
        // The directory that has the checkpoint, and the checkpoint itself.
        for directory in [directory.clone(), directory.join("global_step1")] {
            let model = parse(&directory).unwrap();
            assert_eq!(model.tensors().len(), tensors.len(), "{name}");
            for (tensor, view) in tensors.tensors() {
                let found = model
                    .tensor(&tensor)
                    .unwrap_or_else(|| panic!("{name}: no {tensor}"));
                assert_eq!(found.shape(), view.shape(), "{name}: {tensor}");
                assert_eq!(found.dtype().to_string(), format!("{:?}", view.dtype()));
                assert_eq!(*found.bytes().unwrap(), *view.data(), "{name}: {tensor}");
            }
            let apart = model.tensors().filter(|t| t.file().is_none());
            assert_eq!(apart.count(), in_pieces, "{name}");
            model.verify_checksums().unwrap();
            let out = crate::common::tempdir().unwrap();
            let options = ConvertOptions::new(ConvertTarget::Safetensors);
            model.convert(out.path().join("out"), &options).unwrap();
            let written = std::fs::read(out.path().join("out/model.safetensors")).unwrap();
            assert_same(&expected, &written, name);
        }
    }
}

#[test]
fn what_is_left_out_is_named() {
    let model = parse(data().join("deepspeed/stage3")).unwrap();
    let notes = model.inspect().notes.join("\n");
    assert!(notes.contains("(ZeRO stage 3, 2 processes); the state of the optimizer"), "{notes}");
    let model = parse(data().join("deepspeed/stage1-frozen")).unwrap();
    let notes = model.inspect().notes.join("\n");
    assert!(
        notes.contains("2 parameters that the optimizer does not have, e.g. `norm.bias`"),
        "{notes}"
    );
}

/// A copy of the checkpoint of a case, which `change` changes.
fn copied(case: &str, change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let copy = crate::common::tempdir().unwrap();
    let source = data().join("deepspeed").join(case).join("global_step1");
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    change(copy.path());
    copy
}

fn refused(directory: &Path, words: &str) {
    match parse(directory) {
        Ok(_) => panic!("{words}: it is read"),
        Err(error) => assert!(error.to_string().contains(words), "{words}: {error}"),
    }
}

#[test]
fn missing_files_are_errors() {
    let without = |case: &str, name: &str, words: &str| {
        let copy = copied(case, |dir| std::fs::remove_file(dir.join(name)).unwrap());
        refused(copy.path(), words);
    };
    let optim = |rank: usize| format!("bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt");
    let model = |rank: usize| format!("zero_pp_rank_{rank}_mp_rank_00_model_states.pt");
    without("stage1", &optim(0), "zero_pp_rank_0_mp_rank_00_optim_states.pt is missing");
    without("stage1", &optim(1), "1 files *_optim_states.pt of 2 processes");
    without("stage2", &optim(1), "zero_pp_rank_1_mp_rank_00_optim_states.pt is missing");
    without("stage2", "mp_rank_00_model_states.pt", "which say what is in them");
    without("stage3", &optim(1), "1 files *_optim_states.pt of 2 processes");
    without("stage3", &model(0), "which say what is in them");
    without("stage3", &model(1), "1 files *_model_states.pt of 2 processes");
    without("stage3-frozen", &model(1), "zero_pp_rank_1_mp_rank_00_model_states.pt is missing");
    // The module of stage 3 is empty, in the directory as in the file itself.
    let copy = copied("stage3", |dir| {
        std::fs::remove_file(dir.join(optim(0))).unwrap();
        std::fs::remove_file(dir.join(optim(1))).unwrap();
        std::fs::remove_file(dir.join(model(1))).unwrap();
    });
    refused(copy.path(), "without the weights");
    refused(&copy.path().join(model(0)), "without the weights");
    // The directory above does without its `latest`, but then it has no weights.
    let above = crate::common::tempdir().unwrap();
    std::fs::create_dir(above.path().join("global_step1")).unwrap();
    refused(above.path(), "there are no weights");
    std::fs::write(above.path().join("latest"), "../global_step1").unwrap();
    refused(above.path(), "there are no weights");
}

#[test]
fn files_that_do_not_go_together_are_errors() {
    let add = |case: &str, from: &str, to: &str, words: &str| {
        let from = data().join("deepspeed").join(from);
        let copy = copied(case, |dir| {
            std::fs::copy(from, dir.join(to)).unwrap();
        });
        refused(copy.path(), words);
    };
    let of_stage1 = "stage1/global_step1/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
    let of_stage3 = "stage3/global_step1/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
    let model = "stage1/global_step1/mp_rank_00_model_states.pt";
    add(
        "stage1",
        of_stage1,
        "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",
        "3 files *_optim_states.pt of 2",
    );
    add("stage1", of_stage1, "zero_pp_rank_1_mp_rank_00_optim_states.pt", "are of one process");
    add(
        "stage1",
        of_stage3,
        "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "another stage or number of processes",
    );
    add(
        "stage2",
        of_stage1,
        "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "another stage or number of processes",
    );
    // Tensor, pipeline and expert parallelism.
    add(
        "stage1",
        of_stage1,
        "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt",
        "which are not joined",
    );
    add("stage1", model, "mp_rank_01_model_states.pt", "which are not joined");
    add("stage1", model, "layer_0_expert_1_mp_rank_00_model_states.pt", "which are not joined");
    add("stage1", model, "layer_01-model_00-model_states.pt", "which are not joined");
    // Another checkpoint in the same directory.
    add("stage1", model, "zero_pp_rank_0_mp_rank_00_model_states.pt", "are of stage 3");
    add("stage3", model, "mp_rank_00_model_states.pt", "are of stage 3");
    add("stage1", "expected-stage1.safetensors", "model.safetensors", "which of two models?");
    // The state of another model, of other parameters.
    add(
        "stage1",
        "stage2/global_step1/mp_rank_00_model_states.pt",
        "mp_rank_00_model_states.pt",
        "`param_alignment_paddings` are of other parameters",
    );
}

/// The file of one process alone has a part of the weights, and its optimizer's.
#[test]
fn a_process_alone_is_refused() {
    let directory = data().join("deepspeed/stage1/global_step1");
    let part = directory.join("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
    refused(&part, "`deepspeed.runtime.fp16.loss_scaler.LossScaler`");
}
