//! Checkpoints in which the file of a process holds the part of another one.

use std::path::{Path, PathBuf};

use super::changed::edit;
use super::{copied, refused};

/// Cases with the number of their processes and the beginning of the files' names.
const CASES: [(&str, usize); 9] = [
    ("stage1", 2),
    ("stage1-frozen", 2),
    ("stage2", 3),
    ("stage2-aligned", 3),
    ("stage3", 2),
    ("stage3-frozen", 3),
    ("stage1-fp16-reordered", 2),
    ("stage2-fp16-offload", 2),
    ("stage3-fp16-offload", 2),
];

/// The file of a process; its name tells BF16.
fn file(directory: &Path, rank: usize) -> PathBuf {
    let name = format!("zero_pp_rank_{rank}_mp_rank_00_optim_states.pt");
    let of_bf16 = directory.join(format!("bf16_{name}"));
    match of_bf16.exists() {
        true => of_bf16,
        false => directory.join(name),
    }
}

fn exchange(directory: &Path, a: usize, b: usize) {
    let [a, b] = [a, b].map(|rank| file(directory, rank));
    let contents = [&b, &a].map(|path| std::fs::read(path).unwrap());
    std::fs::write(a, &contents[0]).unwrap();
    std::fs::write(b, &contents[1]).unwrap();
}

#[test]
fn copies_of_other_files_are_refused() {
    for (case, ranks) in CASES {
        for (from, to) in [(0, ranks - 1), (ranks - 1, 0), (1, 0)] {
            let copy = copied(case, |dir| {
                std::fs::copy(file(dir, from), file(dir, to)).unwrap();
            });
            refused(copy.path(), "_optim_states.pt`: it holds the same values as");
        }
    }
}

#[test]
fn exchanged_files_are_refused() {
    for (case, ranks) in CASES {
        // Nothing in the files of stage 3 says whose they are.
        if case.starts_with("stage3") {
            continue;
        }
        for other in 1..ranks {
            let copy = copied(case, |dir| exchange(dir, 0, other));
            refused(copy.path(), "it is the part of another process");
            refused(copy.path(), "_optim_states.pt`");
        }
    }
}

/// Where the files do not say where parameters lie, the module in 16 bits tells.
#[test]
fn other_values_than_those_of_the_module_are_refused() {
    for (case, ranks) in CASES {
        if case.starts_with("stage3") {
            continue;
        }
        let unsaid = |dir: &Path| {
            for rank in 0..ranks {
                let key = "param_slice_mappings";
                edit(&file(dir, rank), key, key.as_bytes(), b"param_slice_mappingz");
            }
        };
        let copy = copied(case, unsaid);
        anamnesis::parse(copy.path()).unwrap();
        let copy = copied(case, |dir| {
            unsaid(dir);
            exchange(dir, 0, 1);
        });
        // Paddings tell where there are some.
        refused(
            copy.path(),
            match case {
                "stage2" => "are not those of the module",
                _ => "it is the part of another process",
            },
        );
    }
}
