//! ParoQuant's layers that are incomplete or contradictory.

use crate::common::file;
use crate::common::verdict::{Parse, check, recover, tensors, verdict};

/// Rotations that do not fit, or that miss a part: without one of them the rest would be plain AWQ.
#[test]
fn paroquant() {
    let table = r#"
        {a}; {t}; {p} |  | Parse: `X.qweight` & X.channel_scales
        {a}; {t}; {c} |  | Parse: `X.qweight` & X.pairs
        {a}; {p}; {c} |  | Parse: `X.qweight` & X.theta
        {a}; {c} |  | Parse: `X.qweight` & X.theta
        {a} | {"quant_method":"paroquant","bits":4} | Parse: `X.qweight` & X.theta
        {a}; X.theta F16 2,31; {p}; {c} |  | Parse: `X.qweight` & `X.theta` & [2, 31]
        {a}; X.theta F16 3,32; {p}; {c} |  | Parse: `X.qweight` & `X.pairs` & [3, 32]
        {a}; {t}; X.pairs I16 2,32; {c} |  | Parse: `X.qweight` & `X.pairs` & [2, 32]
        {a}; {t}; X.pairs I32 2,64; {c} |  | Parse: `X.pairs` & I16
        {a}; {t}; X.pairs I16 128; {c} |  | Parse: `X.pairs`
        {a}; {t}; {p}; X.channel_scales F16 1,32 |  | Parse: `X.channel_scales` & 64
        {a}; {t}; {p}; X.channel_scales I32 1,64 |  | Parse: `X.channel_scales` & I32
        {a}; X.theta I16 2,32; {p}; {c} |  | Parse: `X.theta` & I16
        {a}; X.theta F16 0,32; X.pairs I16 0,64; {c} |  | Unsupported: `X.qweight` & 0 rotations
        {a}; X.theta F16 65,32; X.pairs I16 65,64; {c} |  | Unsupported: `X.qweight` & 65 rotations
        {a}; {t}; {p}; {c} | {"quant_method":"paroquant","krot":8} | Parse: `X.qweight` & 8 rotations
        {a}; {t}; {p}; {c} | {"quant_method":"paroquant","bits":4,"group_size":16} | Parse: `X.qweight` & 16
        {a}; {t}; {p}; {c} | {"quant_method":"paroquant","bits":8} | Parse: `X.qweight` & 8 bits
        {a}; {t}; {p}; {c} | {"quant_method":"gptq","bits":4} | Parse: `X.qweight` & GPTQ
        X.qweight I32 8,32; X.scales F16 2,32; X.qzeros I32 2,4; {t}; {p}; {c} |  | Parse: `X.qweight` & GEMM
        X.qweight I32 512,4; X.scales F16 1,32; X.qzeros I32 1,4; X.theta F16 1,256; X.pairs I16 1,512; X.channel_scales F16 1,512 |  | Unsupported: `X.qweight` & 512
        X.channel_scales F16 1,64 |  | Parse: `X.channel_scales`
        # Experts with the rotation of all.
        {e}; E.gate_up_weight_theta F16 2,32; E.gate_up_weight_pairs I16 2,64 |  | Parse: `E.0.up_proj.qweight` & E.gate_up_weight_channel_scales
        {e}; E.gate_up_weight_channel_scales F16 1,64 |  | Parse: `E.0.up_proj.qweight` & E.gate_up_weight_theta
        X.gate_up_rot_channel_scales F16 1,64 |  | Parse: `X.gate_up_rot_channel_scales`
        {e}; E.down_weight_channel_scales F16 1,64 |  | Parse: `E.down_weight_channel_scales`
        {e} | {"quant_method":"paroquant","bits":4} | Parse: `E.0.up_proj.qweight` & E.0.up_proj.theta
        {e}; E.gate_up_weight_theta F16 2,32; E.gate_up_weight_pairs I16 2,64; E.gate_up_weight_channel_scales F16 1,64 |  | Parse: `E.gate_up_weight_pairs` & twice
        # All columns of the pairs are column 0.
        {a}; {t}; {p}; {c} |  | Parse: `X.pairs` & twice
    "#;
    let names = [
        ("{a}", "X.qweight I32 64,4; X.scales F16 2,32; X.qzeros I32 2,4"),
        ("{t}", "X.theta F16 2,32"),
        ("{p}", "X.pairs I16 2,64"),
        ("{c}", "X.channel_scales F16 1,64"),
    ];
    let table = names
        .iter()
        .fold(table.to_owned(), |table, (short, long)| table.replace(short, long));
    let expert =
        "E.0.up_proj.qweight I32 64,4; E.0.up_proj.scales F16 2,32; E.0.up_proj.qzeros I32 2,4";
    check(&table.replace("{e}", expert));
    for bad in [32i16, -1, i16::MIN, i16::MAX] {
        let mut all = tensors(&names.map(|(_, long)| long).join("; "));
        let order = |i: i16| if i == 100 { bad } else { i % 32 };
        let pairs = all.iter_mut().find(|t| t.name == "X.pairs").unwrap();
        pairs.bytes = (0..128).flat_map(|i| order(i).to_le_bytes()).collect();
        let wrong = verdict(
            recover(file(&all, &[]), ""),
            Parse,
            &["`X.pairs`", "rotation 1 of group 1", &bad.to_string()],
        );
        assert_eq!(wrong, None);
    }
}
