//! SpQR's layers that are incomplete or contradictory, and single values outside of the weight.

use crate::common::verdict::{Parse, check, recover, tensors, verdict};
use crate::common::{Raw, file};

/// 32 × 16 values, with single values of each row.
const LAYER: [(&str, &str); 4] = [
    ("{w}", "X.dense_weights I64 32"),
    ("{r}", "X.row_offsets I32 33"),
    ("{v}", "X.col_vals I32 4"),
    ("{p}", "X.in_perm I32 8"),
];

fn spelled_out(text: &str) -> String {
    let replace = |text: String, (short, long): &(&str, &str)| text.replace(short, long);
    LAYER.iter().fold(text.to_owned(), replace)
}

#[test]
fn parts_that_do_not_fit() {
    let table = r#"
        {w}; {v}; {p} |  | Parse: `X.dense_weights` & X.row_offsets
        {w}; {r}; {p} |  | Parse: `X.dense_weights` & X.col_vals
        {r} |  | Parse: `X.row_offsets`
        {v} |  | Parse: `X.col_vals`
        {w}; {r}; {v} |  | Parse: `X.dense_weights` & X.in_perm
        {w}; {r}; {v}; X.in_perm I32 0 |  | Unsupported: `X.dense_weights` & SpQR & config.json
        {w}; {r}; {v}; {p}; X.weight F16 32,16 |  | Parse: `X.dense_weights` & `X.weight`
        X.dense_weights I32 32; {r}; {v}; {p} |  | Parse: `X.dense_weights` & I64
        X.dense_weights I64 2,16; {r}; {v}; {p} |  | Parse: `X.dense_weights` & one dimension
        {w}; X.row_offsets I64 33; {v}; {p} |  | Parse: `X.row_offsets` & I32
        {w}; {r}; X.col_vals F32 4; {p} |  | Parse: `X.col_vals` & I32
        {w}; {r}; {v}; X.in_perm I16 16 |  | Parse: `X.in_perm` & I32
        # Sizes that no matrix has.
        X.dense_weights I64 40; {r}; {v}; {p} |  | Parse: `X.dense_weights` & 40 words
        {w}; X.row_offsets I32 34; {v}; {p} |  | Parse: `X.dense_weights` & 34 offsets
        {w}; X.row_offsets I32 32; {v}; {p} |  | Parse: `X.dense_weights` & 32 offsets
        {w}; X.row_offsets I32 1; {v}; {p} |  | Parse: `X.dense_weights` & 1 offsets
        {w}; X.row_offsets I32 0; {v}; {p} |  | Parse: `X.dense_weights` & 0 offsets
        X.dense_weights I64 0; {r}; {v}; {p} |  | Parse: `X.dense_weights` & 0 words
        {w}; {r}; {v}; X.in_perm I32 20000 |  | Unsupported: `X.dense_weights` & 40000
        # Sizes that the library does not write.
        {w}; {r}; {v}; {p} | {"quant_method":"spqr","bits":4} | Unsupported: `X.dense_weights` & `bits` 4
        {w}; {r}; {v}; {p} | {"quant_method":"spqr","bits":3,"beta1":8} | Unsupported: `X.dense_weights` & `beta1` 8
        {w}; {r}; {v}; {p} | {"quant_method":"spqr","beta2":32} | Unsupported: `X.dense_weights` & `beta2` 32
        # An order of zeros.
        {w}; {r}; {v}; {p} | {"quant_method":"spqr","bits":3} | Parse: `X.in_perm` & twice
    "#;
    check(&spelled_out(table));
}

/// A layer with these offsets, single values and order of inputs.
fn layer(offsets: &[i32], singles: &[i32], order: impl Fn(u16) -> u16) -> Vec<Raw> {
    let (offset_count, count) = (offsets.len(), singles.len());
    let text = format!("{{w}}; X.row_offsets I32 {offset_count}; X.col_vals I32 {count}; {{p}}");
    let mut all = tensors(&spelled_out(&text));
    all[1].bytes = offsets.iter().flat_map(|n| n.to_le_bytes()).collect();
    all[2].bytes = singles.iter().flat_map(|n| n.to_le_bytes()).collect();
    all[3].bytes = (0..16).flat_map(|i| order(i).to_le_bytes()).collect();
    all
}

#[test]
fn places_outside_of_the_weight() {
    let rows = |of: &dyn Fn(usize) -> i32| -> Vec<i32> { (0..33).map(of).collect() };
    let even = rows(&|i| (i / 8) as i32);
    let ones = [0x3c00_0000; 4];
    let decode = |offsets: &[i32], singles: [i32; 4], order: &dyn Fn(u16) -> u16| {
        recover(file(&layer(offsets, &singles, order), &[]), "")
    };
    for order in [|i| i, |i: u16| 15 - i, |i: u16| i ^ 5] {
        assert!(decode(&even, ones, &order).is_ok());
        assert!(decode(&[0, 4, 4], ones, &order).is_ok());
    }
    for (offsets, what) in [
        (rows(&|i| if i == 20 { 5 } else { (i / 8) as i32 }), "ascend"),
        (rows(&|i| if i == 3 { -1 } else { 0 }), "ascend"),
        (rows(&|i| if i == 32 { 5 } else { 4 }), "ascend"),
        (rows(&|i| (i / 9) as i32), "ascend"),
        (rows(&|i| 1 + (i / 11) as i32), "ascend"),
        (vec![0, 16, 4], "ascend"),
        // Values before the first offset or behind the last would be left out.
        (vec![0, 2, 3], "ascend"),
        (vec![1, 2, 4], "ascend"),
    ] {
        let result = decode(&offsets, ones, &|i| i);
        assert_eq!(verdict(result, Parse, &["`X.row_offsets`", what]), None);
    }
    for column in [16, 0x7fff, 0x8000, 0xffff] {
        let result = decode(&even, [column; 4], &|i| i);
        let named = column.to_string();
        assert_eq!(verdict(result, Parse, &["`X.col_vals`", &named]), None);
    }
    for order in [|i: u16| i.max(1), |i: u16| i + 1, |i: u16| i ^ 0x8000] {
        let result = decode(&even, ones, &order);
        assert_eq!(verdict(result, Parse, &["`X.in_perm`"]), None);
    }
}

/// Rows whose single values are more than their columns. Their number bounds what is loaded at
/// once.
#[test]
fn more_single_values_than_columns() {
    let decode = |count: i32| {
        let singles = vec![0x3c00_0000; count as usize];
        recover(file(&layer(&[0, count, count], &singles, |i| i), &[]), "")
    };
    assert!(decode(256).is_ok());
    let named = ["`X.row_offsets`", "272 single values"];
    assert_eq!(verdict(decode(272), Parse, &named), None);
}
