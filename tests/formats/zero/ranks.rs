//! Checkpoints in which the file of a process holds the part of another one.

use std::path::Path;

use super::changed::edit;
use super::{copied, refused};

/// Cases with the number of their processes and the beginning of the files' names.
const CASES: [(&str, usize); 6] = [
    ("stage1", 2),
    ("stage1-frozen", 2),
    ("stage2", 3),
    ("stage2-aligned", 3),
    ("stage3", 2),
    ("stage3-frozen", 3),
];

fn file(rank: usize) -> String {
    format!("bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
}

fn exchange(directory: &Path, a: usize, b: usize) {
    let [a, b] = [a, b].map(|rank| directory.join(file(rank)));
    let contents = [&b, &a].map(|path| std::fs::read(path).unwrap());
    std::fs::write(a, &contents[0]).unwrap();
    std::fs::write(b, &contents[1]).unwrap();
}

#[test]
fn copies_of_other_files_are_refused() {
    for (case, ranks) in CASES {
        for (from, to) in [(0, ranks - 1), (ranks - 1, 0), (1, 0)] {
            let copy = copied(case, |dir| {
                std::fs::copy(dir.join(file(from)), dir.join(file(to))).unwrap();
            });
            refused(
                copy.path(),
                "_optim_states.pt`: it holds the same values as",
            );
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
                edit(
                    &dir.join(file(rank)),
                    key,
                    key.as_bytes(),
                    b"param_slice_mappingz",
                );
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
