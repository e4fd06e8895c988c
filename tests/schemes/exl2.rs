//! EXL2's layers that are incomplete or contradictory, or in an order that the library's kernels do
//! not take.

use anamnesis::TargetDtype;

use crate::common::verdict::{Parse, check, recover, tensors, verdict};
use crate::common::{Raw, file};

/// Four bits for 64 inputs, then two for 32; 16 outputs.
const LAYER: [(&str, &str); 5] = [
    ("{w}", "X.q_weight I32 10,16"),
    ("{p}", "X.q_invperm I32 96"),
    ("{s}", "X.q_scale I32 2,2"),
    ("{m}", "X.q_scale_max F16 2"),
    ("{g}", "X.q_groups I16 4"),
];

fn spelled_out(text: &str) -> String {
    let replace = |text: String, (short, long): &(&str, &str)| text.replace(short, long);
    LAYER.iter().fold(text.to_owned(), replace)
}

#[test]
fn parts_that_do_not_fit() {
    let table = r#"
        {w}; {p}; {s}; {m} |  | Parse: `X.q_weight` & X.q_groups
        {w}; {p}; {s}; {g} |  | Parse: `X.q_weight` & X.q_scale_max
        {w}; {p}; {m}; {g} |  | Parse: `X.q_weight` & X.q_scale
        {w}; {s}; {m}; {g} |  | Parse: `X.q_weight` & X.q_invperm
        {w}; X.q_perm I32 96; {s}; {m}; {g} |  | Parse: `X.q_weight` & X.q_invperm
        {w}; X.q_perm I32 96; {p}; {s}; {m}; {g} |  | Unsupported: `X.q_weight` & `X.q_perm`
        {w}; X.q_group_map I16 192; {p}; {s}; {m}; {g} |  | Unsupported: `X.q_weight` & `X.q_group_map`
        {w}; X.weight F16 16,96; {p}; {s}; {m}; {g} |  | Unsupported: `X.q_weight` & `X.weight`
        {p} |  | Parse: `X.q_invperm`
        {g} |  | Parse: `X.q_groups`
        {m} |  | Parse: `X.q_scale_max`
        X.q_weight I16 10,16; {p}; {s}; {m}; {g} |  | Parse: `X.q_weight` & I32
        X.q_weight I32 160; {p}; {s}; {m}; {g} |  | Parse: `X.q_weight` & two dimensions
        X.q_weight I32 10,12; {p}; {s}; {m}; {g} |  | Parse: `X.q_weight` & multiple of 8
        {w}; X.q_invperm I16 96; {s}; {m}; {g} |  | Parse: `X.q_invperm` & I32
        {w}; X.q_invperm I32 65568; {s}; {m}; {g} |  | Unsupported: `X.q_weight` & 65568
        {w}; {p}; X.q_scale I32 2,1; {m}; {g} |  | Parse: `X.q_scale` & [2, 2]
        {w}; {p}; X.q_scale F16 2,2; {m}; {g} |  | Parse: `X.q_scale` & I32
        {w}; {p}; {s}; X.q_scale_max F32 2; {g} |  | Parse: `X.q_scale_max` & F16
        {w}; {p}; {s}; X.q_scale_max F16 3; {g} |  | Parse: `X.q_scale` & 3 groups
        {w}; {p}; {s}; {m}; X.q_groups I16 2 |  | Parse: `X.q_groups` & I16 [4]
        {w}; {p}; {s}; {m}; X.q_groups I32 4 |  | Parse: `X.q_groups` & I16
        {w}; {p}; {s}; {m}; {g}; X.bias F16 17 |  | Parse: `X.q_weight` & 17 values
        # Groups of no bits.
        {w}; {p}; {s}; {m}; {g} |  | Parse: `X.q_groups` & group 0 has 0 bits
    "#;
    check(&spelled_out(table));
}

/// A layer whose groups and order of inputs are `groups` and `order`.
fn layer(groups: [i16; 4], order: impl Fn(usize) -> i32) -> Vec<Raw> {
    let mut all = tensors(&spelled_out("{w}; {p}; {s}; {m}; {g}"));
    all[1].bytes = (0..96).flat_map(|i| order(i).to_le_bytes()).collect();
    all[4].bytes = groups.iter().flat_map(|n| n.to_le_bytes()).collect();
    all
}

#[test]
fn groups_and_orders() {
    let in_order = |i: usize| i as i32;
    let whole = file(&layer([4, 0, 2, 8], in_order), &[]);
    let model = anamnesis::parse_bytes(whole).unwrap();
    assert!(model.remember_to_bytes(TargetDtype::F16).is_ok());
    for groups in [
        [4, 0, 2, 7],
        [4, 0, 2, 9],
        [4, 0, 2, 11],
        [4, 1, 2, 8],
        [4, 0, 2, 0],
        [2, 0, 4, 2],
        [7, 0, 2, 7],
        [4, 0, 1, 8],
        [4, 0, 4, 8],
        [16, 0, 2, 8],
        [4, -1, 2, 8],
        [-4, 0, 2, 8],
        [8, 0, 2, 8],
    ] {
        let result = recover(file(&layer(groups, in_order), &[]), "");
        let wrong = verdict(result, Parse, &["`X.q_groups`"]);
        assert_eq!(wrong, None, "{groups:?}");
    }
    for bad in [0, 96, -1, i32::MIN] {
        let order = |i: usize| if i == 90 { bad } else { in_order(i) };
        let result = recover(file(&layer([4, 0, 2, 8], order), &[]), "");
        let wrong = verdict(result, Parse, &["`X.q_invperm`", "input 90", &bad.to_string()]);
        assert_eq!(wrong, None);
    }
}
