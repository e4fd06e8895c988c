//! Layers of AQLM, VPTQ and bitsandbytes that are incomplete or contradictory.

use crate::common::file;
use crate::common::verdict::{check, recover, tensors};

#[test]
fn aqlm() {
    let table = r#"
        X.codes I8 4,3,2 | {G} | Parse: `X.codes` & X.codebooks
        X.codes I8 4,3,2; {b} | {G} | Parse: `X.codes` & X.scales
        X.codes I16 4,3,2; {b}; {s} | {"quant_method":"aqlm","nbits_per_codebook":16} | Parse: `X.codes` & nbits_per_codebook
        {q} | {"quant_method":"aqlm","num_codebooks":1} | Parse: `X.codes` & num_codebooks
        {q} | {"quant_method":"aqlm","in_group_size":16} | Parse: `X.codes` & in_group_size
        {q} | {"quant_method":"aqlm","out_group_size":2} | Parse: `X.codes` & out_group_size
        X.codes I32 4,3,2; {b}; {s} | {G} | Parse: `X.codes` & I16
        X.codes I8 4,3; {b}; {s} | {G} | Parse: `X.codes`
        X.codes I8 4,3,1; {b}; {s} | {G} | Parse: `X.codes` & codebooks
        # Transposed, as layers for CPUs leave them.
        X.codes I8 3,4,2; {b}; {s} | {G} | Parse: `X.codes` & [3, 1, 1, 1]
        X.codes I8 4,3,2; {b}; X.scales F16 4,3,1,1 | {G} | Parse: `X.codes` & [4, 3, 1, 1]
        X.codes I8 4,3,2; {b}; X.scales I32 4,1,1,1 | {G} | Parse: `X.scales`
        X.codes I8 4,3,2; X.codebooks I8 2,256,1,8; {s} | {G} | Parse: `X.codebooks`
        X.codes I8 4,3,2; X.codebooks F16 2,256,8; {s} | {G} | Parse: `X.codebooks`
        X.codes I8 4,3,2; X.codebooks F16 2,200,1,8; {s} | {G} | Parse: `X.codes` & 200
        X.codes I8 4,3,2; X.codebooks F16 2,512,1,8; {s} | {G} | Parse: `X.codes` & 512
        X.codes I8 4,3,2; X.codebooks F16 2,256,1,128; {s} | {G} | Unsupported: `X.codebooks` & 128
        X.codes I8 4,3,2; X.codebooks F16 2,256,1,0; {s} | {G} | Unsupported: `X.codebooks`
        X.codes I8 4,3,0; X.codebooks F16 0,256,1,8; {s} | {G} | Parse: `X.codes`
        X.codes I8 4,3,2 | {"quant_method":"gptq"} | Parse: `X.codes`
        {q} |  | Unsupported: `X.codes` & config
        {q} | {"quant_method":"gptq"} | Unsupported: `X.codes` & config
        X.codebooks F16 2,256,1,8 | {G} | Parse: `X.codebooks`
    "#;
    let table = table
        .replace("{q}", "X.codes I8 4,3,2; {b}; {s}")
        .replace("{b}", "X.codebooks F16 2,256,1,8");
    let table = table.replace("{s}", "X.scales F16 4,1,1,1");
    check(&table.replace("{G}", r#"{"quant_method":"aqlm"}"#));
}

#[test]
fn vptq() {
    let table = r#"
        X.indices I32 1,2,8 | {C} | Parse: `X.indices` & X.centroids.weight
        {q} |  | Parse: `X.indices` & vector_lens
        {q} | {"vector_lens":[-1,8]} | Parse: `X.indices` & num_centroids
        {q} | {"vector_lens":8,"num_centroids":[-1,256],"num_res_centroids":[-1,-1]} | Parse: `X.indices` & vector_lens
        {q} | {"vector_lens":[-1,-8],"num_centroids":[-1,256],"num_res_centroids":[-1,-1]} | Parse: `X.indices` & vector_lens
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[-1,-1]} | Parse: `X.indices` & inputs
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,200],"num_res_centroids":[-1,-1],"in_features":32} | Unsupported: `X.indices` & 200
        {q} | {"vector_lens":[-1,65],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":32} | Unsupported: `X.indices` & 65
        {q} | {"vector_lens":[-1,9223372036854775807],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":32} | Unsupported: `X.indices`
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,9223372036854775807],"num_res_centroids":[-1,-1],"in_features":32} | Unsupported: `X.indices`
        {q} | {"vector_lens":[-1,4],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":32,"out_features":8} | Parse: `X.indices` & [1, 1024]
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[16,-1],"in_features":32} | Unsupported: `X.indices` & outliers
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[-1,16],"in_features":32} | Parse: `X.indices` & 12 bits
        {q} | {C,"group_num":2} | Parse: `X.indices` & 2 groups
        {q} | {C,"group_size":30} | Parse: `X.indices` & 1 groups
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":64} | Parse: `X.indices` & 64 codes
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":70000} | Unsupported: `X.indices` & 70000
        {q} | {D,"out_features":0} | Parse: `X.indices` & outputs
        {q} | {D,"out_features":-2} | Parse: `X.indices` & -2
        {q} | {D,"out_features":17} | Parse: `X.indices` & 17
        {q} | {D,"out_features":8} | Parse: `X.indices` & 8 outputs
        {q} | {C,"is_indice_packed":false} | Unsupported: `X.indices` & packed
        {q} | {C,"indices_as_float":true} | Unsupported: `X.indices` & floats
        {q} | {C,"vector_quant_dim":"in"} | Unsupported: `X.indices` & inputs
        {q} | {C,"enable_perm":true} | Parse: `X.indices` & X.perm
        {q} | {C,"enable_norm":true} | Parse: `X.indices` & X.weight_scale
        {q}; X.weight_scale F16 32 | {C,"enable_norm":true} | Parse: `X.indices` & X.weight_bias
        {q}; {n} | {C,"enable_norm":true,"norm_dim":1} | Parse: `X.indices` & [16]
        {q}; {n} | {C,"enable_norm":true,"norm_dim":2} | Parse: `X.indices` & norm_dim
        {q}; {n} | {C} | Parse: `X.indices` & X.weight_scale
        {q}; X.perm I16 32 | {C} | Parse: `X.indices` & X.perm
        {q}; X.perm I16 16 | {C,"enable_perm":true} | Parse: `X.indices` & [32]
        {q}; X.perm F16 32 | {C,"enable_perm":true} | Parse: `X.perm` & I16
        # All columns are that of input 0.
        {q}; X.perm I16 32 | {C,"enable_perm":true} | Parse: `X.perm` & twice
        {q}; X.res_centroids.weight F16 1,128 | {C} | Parse: `X.indices` & X.res_centroids.weight
        {q}; X.res_indices I16 1,2,32 | {C} | Unsupported: `X.indices` & X.res_indices
        {q}; X.outlier_centroids.weight F16 1,128 | {C} | Parse: `X.indices` & X.outlier_centroids.weight
        {q} | {C,"npercent":0.5} | Parse: `X.indices` & X.outlier_indices
        {q} | {C,"outlier_size":4} | Parse: `X.indices` & X.outlier_indices
        {q}; X.outlier_indices I16 1,2,4 | {C,"outlier_size":5} | Parse: `X.indices` & 5 outliers
        {q}; X.outlier_indices I16 1,2,4 | {C} | Parse: `X.indices` & outliers
        {q}; X.outlier_indices I16 1,2,4 | {O} | Parse: `X.indices` & X.outlier_centroids.weight
        {q}; X.outlier_indices I16 2,2,4 | {O} | Parse: `X.outlier_indices`
        {q}; X.outlier_indices F16 1,2,4 | {O} | Parse: `X.outlier_indices`
        {q}; X.outlier_indices I16 1,3,4; X.outlier_centroids.weight F16 1,128 | {O} | Parse: `X.indices` & [1, 2, 4]
        {q}; X.outlier_indices I16 1,2,4; X.outlier_centroids.weight F16 1,128 | {"vector_lens":[4,8],"num_centroids":[16,256],"num_res_centroids":[-1,-1],"in_features":36,"out_features":16} | Unsupported: `X.indices` & length
        {q}; X.outlier_indices I16 1,2,4; X.outlier_centroids.weight F16 1,128 | {"vector_lens":[8,8],"num_centroids":[16,256],"num_res_centroids":[-1,-1],"in_features":4} | Parse: `X.indices` & outliers
        X.indices I16 1,2,32; X.centroids.weight F16 1,2048 | {C} | Parse: `X.indices` & I32
        X.indices I32 2,8; X.centroids.weight F16 1,2048 | {C} | Parse: `X.indices` & I32
        X.indices I32 1,0,8; X.centroids.weight F16 1,2048 | {C} | Parse: `X.indices`
        X.indices I32 0,2,8; X.centroids.weight F16 0,2048 | {C} | Parse: `X.indices`
        X.indices I32 1,2,8; X.centroids.weight I16 1,2048 | {C} | Parse: `X.centroids.weight`
        X.indices I32 1,2,8 | {"quant_method":"gptq"} | Parse: `X.indices`
        X.centroids.weight F16 1,2048 | {"quant_method":"vptq"} | Parse: `X.centroids.weight`
        X.res_centroids.weight F16 1,128 |  | Parse: `X.res_centroids.weight`
    "#;
    let sizes = r#""num_res_centroids":[-1,-1],"quant_method":"vptq""#;
    let main =
        format!(r#"{{{sizes},"vector_lens":[-1,8],"num_centroids":[-1,256],"in_features":32,"#);
    let outlier = format!(
        r#"{{{sizes},"vector_lens":[8,8],"num_centroids":[16,256],"in_features":36,"out_features":16}}"#
    );
    let table = table
        .replace("{q}", "X.indices I32 1,2,8; X.centroids.weight F16 1,2048")
        .replace("{n}", "X.weight_scale F16 32; X.weight_bias F16 32")
        .replace("{D,", &main)
        .replace("{C}", "{C,}")
        .replace("{C,", &format!(r#"{main}"out_features":16,"#))
        .replace("{O}", &outlier)
        .replace(",}", "}");
    check(&table);
}

#[test]
fn bnb() {
    let table = r#"
        {w}; {a}; {m} |  | Parse: `X.weight` & quant_state
        {w}; {m}; {s} {ok} |  | Parse: `X.weight` & X.weight.absmax
        {w}; {a}; {s} {ok} |  | Parse: `X.weight` & X.weight.quant_map
        {w}; {s} {ok} |  | Parse: `X.weight`
        {a} |  | Parse: `X.weight.absmax`
        {s} {ok} |  | Parse: {state}
        # GPTQModel's names.
        {w}; X.weight_absmax F32 2 |  | Parse: `X.weight` & X.weight_quant_map
        {w}; X.weight_quant_state U8 2 |  | Parse: `X.weight` & X.weight_absmax
        {w}; X.weight_absmax F32 2; X.weight_quant_map F32 16 |  | Parse: `X.weight` & X.weight_quant_state
        X.weight_absmax F32 2 |  | Parse: `X.weight_absmax`
        X.weight I8 8,16; X.weight_scb F32 16 |  | Parse: `X.weight_scb` & [8]
        X.weight_scb F32 16 |  | Parse: `X.weight_scb`
        # What the state says.
        {w}; {a}; {m}; {s} {"blocksize":64 |  | Parse: {state}
        {w}; {a}; {m}; {s} ? |  | Parse: {state}
        {w}; {m}; X.weight.absmax F32 1; {s} {"shape":[8,16]} |  | Parse: `X.weight.absmax` & blocks of 64
        {w}; {a}; {m}; {s} {"blocksize":2147483648,"shape":[8,16]} |  | Parse: {state} & 2147483648
        {w}; {m}; X.weight.absmax F32 1; {s} {"blocksize":8192,"shape":[8,16]} |  | Parse: {state} & 8192
        {w}; {m}; X.weight.absmax F32 8; {s} {"blocksize":16,"shape":[8,16]} |  | Parse: {state} & blocks of 16
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[8,16],"blocksize":128} |  | Parse: {state} & `blocksize` & twice
        {w}; {a}; {m}; {s} {"blocksize":64} |  | Parse: {state} & shape
        {w}; {a}; {m}; {s} {"blocksize":-64,"shape":[8,16]} |  | Parse: {state}
        {w}; {a}; {m}; {s} {"blocksize":0,"shape":[8,16]} |  | Parse: {state}
        {w}; {a}; {m}; {s} {"blocksize":63,"shape":[8,16]} |  | Parse: {state} & 63
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[8,17]} |  | Parse: `X.weight` & [8, 17]
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[9223372036854775808,4]} |  | Parse: `X.weight`
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[0,16]} |  | Parse: `X.weight`
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[8,16],"dtype":"{long}"} |  | Parse: {state}
        # Companions that do not fit.
        {w}; {m}; {s} {ok}; X.weight.absmax F32 3 |  | Parse: `X.weight.absmax`
        {w}; {m}; {s} {ok}; X.weight.absmax I32 2 |  | Parse: `X.weight.absmax` & I32
        {w}; {a}; {s} {ok}; X.weight.quant_map F32 15 |  | Parse: `X.weight.quant_map`
        {w}; {a}; {s} {ok}; X.weight.quant_map F16 16 |  | Parse: `X.weight.quant_map`
        # Double quantization.
        {w}; {m}; {d}; {nm}; {s} {nested:256} |  | Parse: `X.weight` & nested_absmax
        {w}; {m}; {d}; {na}; {s} {nested:256} |  | Parse: `X.weight` & nested_quant_map
        {w}; {m}; {d}; {na}; {nm}; {s} {ok} |  | Parse: `X.weight` & nested_offset
        {w}; {m}; {d}; {na}; {nm}; {s} {nested:0} |  | Parse: `X.weight` & blocks of 0
        {w}; {m}; {d}; {na}; {nm}; {s} {nested:4294967296} |  | Parse: `X.weight` & blocks of 4294967296
        {w}; {m}; {d}; X.weight.nested_absmax F32 2; {nm}; {s} {nested:256} |  | Parse: `X.weight.nested_absmax`
        {w}; {m}; {d}; {na}; X.weight.nested_quant_map F32 9; {s} {nested:256} |  | Parse: `X.weight.nested_quant_map`
        # LLM.int8().
        X.weight I8 8,16; X.SCB F32 7 |  | Parse: `X.SCB` & [8]
        X.weight I8 8,16; X.SCB F16 8 |  | Parse: `X.SCB` & F16
        X.weight I8 128; X.SCB F32 128 |  | Parse: `X.weight`
        X.SCB F32 8 |  | Parse: `X.SCB`
        X.weight I8 8,16; X.SCB F32 8; X.weight_format TEXT 2 |  | Unsupported: `X.weight` & weight_format
        # Codes under the dtype of weights, whose companions are elsewhere.
        X.weight BF16 64,1; n.weight BF16 8 | {bf16 storage} | Parse: `X.weight`
    "#;
    let names = [
        ("{w}", "X.weight U8 64,1"),
        ("{a}", "X.weight.absmax F32 2"),
        ("{d}", "X.weight.absmax U8 2"),
        ("{m}", "X.weight.quant_map F32 16"),
        ("{s}", "X.weight.quant_state.bitsandbytes__nf4 TEXT"),
        ("{na}", "X.weight.nested_absmax F32 1"),
        ("{nm}", "X.weight.nested_quant_map F32 256"),
        ("{ok}", r#"{"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[8,16]}"#),
        ("{nested:", r#"{"blocksize":64,"shape":[8,16],"nested_offset":0.5,"nested_blocksize":"#),
        ("{long}", &"x".repeat(70_000)),
        ("{bf16 storage}", r#"{"load_in_4bit":true,"bnb_4bit_quant_storage":"bfloat16"}"#),
        ("{state}", "`X.weight.quant_state.bitsandbytes__nf4`"),
    ];
    check(
        &names
            .iter()
            .fold(table.to_owned(), |table, (short, long)| table.replace(short, long)),
    );
}

/// States that say less or more than bitsandbytes writes decode as those that it writes.
#[test]
fn bnb_states() {
    let with = |state: &str| {
        let mut all = tensors(
            "X.weight U8 64,1; X.weight.absmax F32 2; X.weight.quant_map F32 16; \
             X.weight.quant_state.bitsandbytes__nf4 U8 1",
        );
        for (t, fill) in all.iter_mut().zip([0x12, 0x3f, 0x3e]) {
            t.bytes.fill(fill);
        }
        all[3].shape = vec![state.len()];
        all[3].bytes = state.into();
        recover(file(&all, &[]), "").unwrap()
    };
    let whole = with(r#"{"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[8,16]}"#);
    for state in [
        r#"{"shape":[8,16]}"#,
        r#"{"blocksize":64,"shape":[8,16],"nested_blocksize":0}"#,
        r#"{"blocksize":64,"shape":[8,16],"nested_blocksize":null,"nested_offset":null}"#,
        r#"{"blocksize":64,"shape":[8,16],"quant_storage":"uint8","version":{"of":[1,2]}}"#,
        r#"{"blocksize":64,"shape":[8,16],"shape":[8,16]}"#,
    ] {
        assert!(with(state) == whole, "{state}");
    }
}
