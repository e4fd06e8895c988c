//! FP-Quant's layers that are incomplete or contradictory.

use crate::common::verdict::{Parse, Unsupported, check, recover, tensors, verdict};
use crate::common::{Raw, file};

const LAYER: &str = "X.qweight U8 8,32; X.scales U8 8,2; X.weight_global_scale F32 1; \
                     X.forward_hadamard_matrix F32 16,16; X.backward_hadamard_matrix F32 16,16; X.act_global_scale F32 1";

#[test]
fn fp_quant() {
    let table = r#"
        {q} | {"quant_method":"fp_quant"} | Parse: `X.qweight` & X.forward_hadamard_matrix
        {q}; {s}; {h} |  | Parse: `X.qweight` & X.weight_global_scale
        {q}; {g}; {h} |  | Parse: `X.qweight` & X.scales
        X.dqweight BF16 8,64 | {"quant_method":"fp_quant"} | Parse: `X.dqweight` & X.forward_hadamard_matrix
        X.dqweight BF16 8,64; {g}; {h} |  | Unsupported: `X.dqweight` & config
        X.dqweight U8 8,64; {g}; {h} | {"quant_method":"fp_quant","forward_dtype":"mxfp4"} | Parse: `X.dqweight` & floats
        X.dqweight BF16 8,64; {g}; {h} | {"quant_method":"fp_quant","forward_dtype":"mxfp8"} | Unsupported: `X.dqweight`
        X.weight BF16 8,64; {g}; {h} |  | Unsupported: `X.weight` & store_master_weights
        X.weight BF16 8,64; {g}; {h} | {"quant_method":"fp_quant","store_master_weights":false} | Parse: `X.weight` & store_master_weights: false
        {q}; {s}; {g}; {h} | {"quant_method":"fp_quant","store_master_weights":true} | Parse: `X.qweight` & store_master_weights: true
        {q}; {s}; {g}; {h} | {"quant_method":"fp_quant","pseudoquantization":true} | Parse: `X.qweight` & pseudoquantization: true
        X.weight I8 8,64; {g}; {h} | {"quant_method":"fp_quant","store_master_weights":true} | Parse: `X.weight` & floats
        {q}; {s}; {g}; X.forward_hadamard_matrix F32 8,8 |  | Unsupported: `X.forward_hadamard_matrix` & 16, 32, 64 and 128
        {q}; {s}; {g}; X.forward_hadamard_matrix F32 256,256 |  | Unsupported: `X.forward_hadamard_matrix`
        {q}; {s}; {g}; X.forward_hadamard_matrix F32 16,32 |  | Unsupported: `X.forward_hadamard_matrix`
        {q}; {s}; {g}; X.forward_hadamard_matrix F32 () |  | Unsupported: `X.forward_hadamard_matrix`
        {q}; {s}; {g}; X.forward_hadamard_matrix I32 16,16 |  | Parse: `X.forward_hadamard_matrix` & I32
        {q}; {s}; {g}; X.forward_hadamard_matrix F32 128,128 |  | Parse: `X.qweight` & 64 inputs
        # All zeros.
        {q}; {s}; {g}; {h} |  | Unsupported: `X.forward_hadamard_matrix` & neither
        {q}; {s}; X.weight_global_scale F32 2; {h} |  | Parse: `X.weight_global_scale` & one
        {q}; {s}; X.weight_global_scale I32 1; {h} |  | Parse: `X.weight_global_scale` & I32
        {q}; X.scales U8 8,8; {g}; {h} |  | Parse: `X.qweight` & `X.scales` & 64 inputs
        {q}; X.scales U8 9,2; {g}; {h} |  | Parse: `X.qweight` & `X.scales` & 8 rows
        {q}; X.scales BF16 8,2; {g}; {h} |  | Parse: `X.qweight` & `X.scales` & U8
        {q}; {s}; {g}; {h} | {"quant_method":"fp_quant","forward_dtype":"nvfp4"} | Parse: `X.qweight` & mxfp4 & `nvfp4`
        {q}; X.scales U8 128,4; {g}; {h} | {"quant_method":"fp_quant","forward_dtype":"mxfp4"} | Parse: `X.qweight` & nvfp4 & `mxfp4`
        {q}; {s}; {g}; {h} | {"quant_method":"fp_quant","hadamard_group_size":32} | Parse: `X.forward_hadamard_matrix` & 32 columns
        X.qweight I32 8,8; {s}; {g}; {h} |  | Parse: `X.qweight` & U8
        X.qweight U8 2,8,32; {s}; {g}; {h} |  | Parse: `X.qweight` & two dimensions
        X.forward_hadamard_matrix F32 16,16 |  | Parse: `X.forward_hadamard_matrix`
        X.backward_hadamard_matrix F32 16,16 |  | Parse: `X.backward_hadamard_matrix`
    "#;
    let names = [
        ("{q}", "X.qweight U8 8,32"),
        ("{s}", "X.scales U8 8,2"),
        ("{g}", "X.weight_global_scale F32 1"),
        ("{h}", "X.forward_hadamard_matrix F32 16,16"),
    ];
    let table = names
        .iter()
        .fold(table.to_owned(), |table, (short, long)| table.replace(short, long));
    check(&table);
}

/// A layer whose matrix has 1 / 4 with the signs of the Hadamard matrix, changed by `change`.
fn layer(change: impl Fn(usize, usize, f32) -> f32) -> Vec<Raw> {
    let mut all = tensors(LAYER);
    let matrix = all
        .iter_mut()
        .find(|t| t.name == "X.forward_hadamard_matrix")
        .unwrap();
    let entries = (0..256usize).map(|i| {
        let (row, col) = (i / 16, i % 16);
        let sign = if (row & col).count_ones() % 2 == 0 {
            0.25
        } else {
            -0.25
        };
        change(row, col, sign)
    });
    matrix.bytes = entries.flat_map(f32::to_le_bytes).collect();
    all
}

/// Matrices that differ from a Hadamard matrix in one entry, that have a column twice, or that are
/// scaled oddly.
#[test]
fn matrices() {
    assert!(recover(file(&layer(|_, _, x| x), &[]), "").is_ok());
    let odd: [&dyn Fn(usize, usize, f32) -> f32; 6] = [
        &|row, col, x| if (row, col) == (15, 15) { -x } else { x },
        &|row, col, x| if (row, col) == (3, 5) { f32::NAN } else { x },
        &|row, col, x| if (row, col) == (0, 0) { 0.5 } else { x },
        &|row, col, x| {
            if col == 7 && row.count_ones() % 2 == 1 {
                -x
            } else {
                x
            }
        },
        &|_, _, x| -x,
        &|_, _, x| x * f32::INFINITY,
    ];
    for change in odd {
        let result = recover(file(&layer(change), &[]), "");
        let wrong = verdict(result, Unsupported, &["`X.forward_hadamard_matrix`", "neither"]);
        assert_eq!(wrong, None);
    }
}

/// A model that transformers has loaded and saved again has tensors without values for the forms
/// that its layers do not have.
#[test]
fn empty_tensors_of_other_forms() {
    let config = r#"{"quant_method":"fp_quant","forward_dtype":"nvfp4","pseudoquantization":false,"store_master_weights":false}"#;
    let mut all = layer(|_, _, x| x);
    let scales = all.iter_mut().find(|t| t.name == "X.scales").unwrap();
    *scales = tensors("X.scales U8 8,4").remove(0);
    let want = recover(file(&all, &[]), config).unwrap();
    all.extend(tensors("X.weight F32 0; X.dqweight F32 0"));
    assert_eq!(recover(file(&all, &[]), config).unwrap(), want);

    let pseudo = config.replace(r#"ation":false"#, r#"ation":true"#);
    all.retain(|t| !["X.qweight", "X.scales", "X.dqweight"].contains(&t.name.as_str()));
    let wrong = verdict(recover(file(&all, &[]), &pseudo), Parse, &["`X.weight`"]);
    assert_eq!(wrong, None, "an empty weight alone");
    all.extend(tensors("X.dqweight BF16 8,64; X.qweight F32 0; X.scales F32 0"));
    recover(file(&all, &[]), &pseudo).unwrap();
}

/// fp_quant before 0.2 has MXFP4 alone, whose global scale is 3 and not stored.
#[test]
fn layers_without_global_scale() {
    let config =
        r#"{"quant_method":"fp_quant","forward_dtype":"mxfp4","forward_method":"abs_max"}"#;
    let all = || {
        let mut all = layer(|_, _, x| x);
        for t in &mut all {
            match t.name.as_str() {
                "X.qweight" => (0..=u8::MAX)
                    .zip(&mut t.bytes)
                    .for_each(|(i, code)| *code = i),
                "X.scales" => t.bytes.fill(120),
                "X.weight_global_scale" => t.bytes = 3f32.to_le_bytes().into(),
                _ => {}
            }
        }
        all
    };
    let want = recover(file(&all(), &[]), config).unwrap();
    let mut old = all();
    old.retain(|t| t.name != "X.weight_global_scale");
    assert_eq!(recover(file(&old, &[]), config).unwrap(), want);
    for other in [config.replace("abs_max", "quest"), String::new()] {
        let result = recover(file(&old, &[]), &other);
        let wrong = verdict(result, Parse, &["`X.qweight`", "X.weight_global_scale"]);
        assert_eq!(wrong, None, "{other}");
    }
}
