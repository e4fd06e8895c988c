//! HIGGS layers that are incomplete or contradictory.

use anamnesis::TargetDtype;

use crate::common::file;
use crate::common::verdict::{Unsupported, check, parse_beside, tensors, verdict};

const CONFIG: &str = r#"{"quant_method":"higgs","bits":4,"p":2,"group_size":64,"hadamard_size":64,"tune_metadata":{"X":{"M":1,"N":128,"K":64,"num_bits":4,"group_size":64,"dtype":"torch.float16","template_id":16}}}"#;

/// [`CONFIG`] with other text in the place of some.
fn with(from: &str, to: &str) -> String {
    assert!(CONFIG.contains(from), "{from}");
    CONFIG.replace(from, to)
}

#[test]
fn higgs() {
    let table = r#"
        X.weight I16 32,64 | {C} | Parse: `X.weight` & X.tables2
        X.weight I16 32,64; {p} | {C} | Parse: `X.weight` & X.tables
        X.weight I16 32,64; {p}; {t} | {C} | Parse: `X.weight` & X.scales
        {p} | {C} | Parse: `X.tables2`
        {p} |  | Parse: `X.tables2`
        {q} |  | Unsupported: `X.weight` & config
        {q} | {"quant_method":"gptq"} | Unsupported: `X.weight` & higgs
        {q} | {"quant_method":"higgs","hadamard_size":64} | Unsupported: `X.weight` & tune_metadata
        {q} | {no hadamard} | Unsupported: `X.weight` & hadamard_size
        {q} | {other layer} | Unsupported: `X.weight` & `X`
        {q} | {no template} | Unsupported: `X.weight` & template_id
        {q} | {template 144} | Unsupported: `X.weight` & 144
        {q} | {template -1} | Unsupported: `X.weight` & -1
        # A tile of 256 rows.
        {q} | {template 0} | Parse: `X.weight` & 256
        {q} | {N 256} | Parse: `X.weight` & N
        {q} | {no K} | Parse: `X.weight` & K
        {q} | {num_bits 3} | Parse: `X.weight` & num_bits
        {q} | {bits 3} | Parse: `X.weight` & bits
        {q} | {p 4} | Unsupported: `X.weight` & `p` 4
        {q} | {p -1} | Unsupported: `X.weight` & `p` -1
        {q} | {group 128} | Parse: `X.weight` & group_size
        {q} | {hadamard 128} | Parse: `X.weight` & hadamard_size
        {q} | {hadamard 32} | Parse: `X.weight` & hadamard_size
        {q} | {hadamard -1} | Parse: `X.weight` & hadamard_size
        {q} | {hadamard 48} | Parse: `X.weight` & hadamard_size
        {q} | {bf16} | Parse: `X.tables2` & F16
        X.weight I16 32,64; {p}; {t}; X.scales BF16 128,1 | {C} | Parse: `X.tables2` & BF16
        X.weight I16 32,64; {p}; {t}; X.scales F32 128,1 | {C} | Parse: `X.tables2` & F32
        X.weight I16 32,64; X.tables2 F32 16,16,1; {t}; X.scales F16 128,1 | {C} | Parse: `X.tables2`
        X.weight I16 32,64; X.tables2 F16 16,8,2; {t}; X.scales F16 128,1 | {C} | Parse: `X.tables2`
        X.weight I16 32,64; X.tables2 F16 32,32,2; {t}; X.scales F16 128,1 | {C} | Parse: `X.tables2`
        X.weight I16 32,64; {p}; X.tables F16 8; X.scales F16 128,1 | {C} | Parse: `X.weight` & X.tables
        X.weight I16 30,64; {p}; {t}; X.scales F16 128,1 | {C} | Parse: `X.weight` & 128 rows
        X.weight I16 32,64; {p}; {t}; X.scales F16 128,3 | {C} | Parse: `X.weight` & 3 scales
        X.weight I16 32,0; {p}; {t}; X.scales F16 128,0 | {C} | Parse: `X.weight`
        X.weight I16 2048; {p}; {t}; X.scales F16 128,1 | {C} | Parse: `X.weight` & matrices
        X.weight I16 32,64; {p}; {t}; X.scales F16 128 | {C} | Parse: `X.weight` & matrices
        X.weight I32 32,64; {p}; {t}; X.scales F16 128,1 | {C} | Parse: `X.weight`
    "#;
    let names = [
        ("{q}", "X.weight I16 32,64; {p}; {t}; X.scales F16 128,1"),
        ("{p}", "X.tables2 F16 16,16,2"),
        ("{t}", "X.tables F16 16"),
    ];
    let table = names
        .iter()
        .fold(table.to_owned(), |table, (short, long)| table.replace(short, long));
    let configs = [
        ("{C}", CONFIG.to_owned()),
        ("{no hadamard}", with(r#""hadamard_size":64,"#, "")),
        ("{other layer}", with(r#""X":"#, r#""Y":"#)),
        ("{no template}", with(r#","template_id":16"#, "")),
        ("{template 144}", with(r#""template_id":16"#, r#""template_id":144"#)),
        ("{template -1}", with(r#""template_id":16"#, r#""template_id":-1"#)),
        ("{template 0}", with(r#""template_id":16"#, r#""template_id":0"#)),
        ("{N 256}", with(r#""N":128"#, r#""N":256"#)),
        ("{no K}", with(r#""K":64,"#, "")),
        ("{num_bits 3}", with(r#""num_bits":4"#, r#""num_bits":3"#)),
        ("{bits 3}", with(r#""bits":4,"p""#, r#""bits":3,"p""#)),
        ("{p 4}", with(r#""p":2"#, r#""p":4"#)),
        ("{p -1}", with(r#""p":2"#, r#""p":-1"#)),
        ("{group 128}", with(r#""group_size":64,"had"#, r#""group_size":128,"had"#)),
        ("{hadamard 128}", with(r#""hadamard_size":64"#, r#""hadamard_size":128"#)),
        ("{hadamard 32}", with(r#""hadamard_size":64"#, r#""hadamard_size":32"#)),
        ("{hadamard -1}", with(r#""hadamard_size":64"#, r#""hadamard_size":-1"#)),
        ("{hadamard 48}", with(r#""hadamard_size":64"#, r#""hadamard_size":48"#)),
        ("{bf16}", with("torch.float16", "torch.bfloat16")),
    ];
    let table = configs
        .iter()
        .fold(table, |table, (short, long)| table.replace(short, long));
    check(&table);
}

/// transformers pads the inputs of layers that it quantizes, and cannot load such a model.
#[test]
fn padded_inputs() {
    let layer = "X.weight I16 32,64; X.tables2 F16 16,16,2; X.tables F16 16; X.scales F16 128,1";
    let bytes = file(&tensors(&layer.replace('X', "up_proj")), &[]);
    let quantization = CONFIG.replace(r#""X""#, r#""up_proj""#);
    for (hidden, is_refused) in [(64, false), (40, true)] {
        let config = format!(
            r#"{{"model_type":"llama","hidden_size":{hidden},"quantization_config":{quantization}}}"#
        );
        let model = parse_beside(&bytes, &[("config.json", &config)]).unwrap();
        let result = model.remember_to_bytes(TargetDtype::F32);
        assert_eq!(result.is_err(), is_refused, "{hidden}");
        if is_refused {
            let words = ["`up_proj.weight`", "40 inputs", "64"];
            assert_eq!(verdict(result, Unsupported, &words), None);
        }
    }
}
