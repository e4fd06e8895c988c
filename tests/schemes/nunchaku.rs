//! Nunchaku's layers that are incomplete or contradict their config.

use crate::common::verdict::check;

#[test]
fn nunchaku() {
    let text = r#"
        # Its own models, and a file without a config.
        {a} |  | Unsupported: `X.qweight` & Nunchaku & nunchaku_lite
        {a} | {"method":"svdquant","weight":{"dtype":"int4"}} | Unsupported: `X.qweight` & Nunchaku & fused
        # SVDQuant.
        {a} | {"quant_method":"nunchaku_lite"} | Parse: `X.qweight` & svdq_w4a4
        {a} | {"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"nvfp4","group_size":16}} | Parse: `X.qweight` & nvfp4
        {a} | {"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"int4","group_size":32}} | Parse: `X.qweight` & 32
        {a} | {"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"int4","group_size":64,"act_unsigned":[]}} | Unsupported: `X.qweight` & act_unsigned
        {q}; {d}; {s} | {lite} | Parse: `X.qweight` & X.smooth_factor
        {q}; {d} | {lite} | Parse: `X.qweight` & X.wscales
        {s} | {lite} | Parse: `X.wscales`
        {q}; {s}; X.smooth_factor BF16 128; X.proj_up BF16 128,16 | {lite} | Parse: `X.qweight` & X.proj_down
        X.qweight I8 120,64; {d}; {s}; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight` & 128
        X.qweight I8 128,32; {d}; {s}; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight` & 128
        X.qweight I8 8192; {d}; {s}; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight`
        X.qweight U8 128,64; {d}; {s}; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight` & I8
        {q}; {d}; X.wscales BF16 128,2; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight` & `X.wscales` & [128, 2]
        {q}; {d}; {s}; X.smooth_factor BF16 64 | {lite} | Parse: `X.smooth_factor` & [64]
        {q}; {s}; X.smooth_factor BF16 128; X.proj_down BF16 128,8; X.proj_up BF16 128,8 | {lite} | Parse: `X.qweight` & rank 8
        {q}; {s}; X.smooth_factor BF16 128; X.proj_down BF16 128,16; X.proj_up BF16 128,32 | {lite} | Parse: `X.proj_up` & [128, 32]
        {a}; X.bias BF16 64 | {lite} | Parse: `X.bias` & [64]
        {a}; X.bias I32 128 | {lite} | Parse: `X.bias` & I32
        {a}; X.smooth_factor_orig BF16 128 | {lite} | Parse: `X.smooth_factor_orig`
        {q}; {d}; X.wscales F8_E4M3 8,128; X.smooth_factor BF16 128 | {"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"nvfp4","group_size":16}} | Parse: `X.qweight` & X.wcscales
        # AWQ.
        X.qweight I32 2,64; X.wscales BF16 2,8; X.wzeros BF16 2,8 | {lite} | Parse: `X.qweight` & awq_w4a16
        X.qweight I32 2,64; X.wscales BF16 2,8 | {awq} | Parse: `X.qweight` & X.wzeros
        X.qweight I32 2,64; X.wscales BF16 2,4; X.wzeros BF16 2,8 | {awq} | Parse: `X.qweight` & [2, 4]
        X.qweight I32 2,40; X.wscales BF16 2,8; X.wzeros BF16 2,8 | {awq} | Parse: `X.qweight` & 64
    "#;
    let names = [
        ("{a}", "{q}; {d}; {s}; X.smooth_factor BF16 128"),
        ("{q}", "X.qweight I8 128,64"),
        ("{s}", "X.wscales BF16 2,128"),
        ("{d}", "X.proj_down BF16 128,16; X.proj_up BF16 128,16"),
        (
            "{lite}",
            r#"{"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"int4","group_size":64,"rank":16,"targets":["X"]}}"#,
        ),
        (
            "{awq}",
            r#"{"quant_method":"nunchaku_lite","awq_w4a16":{"precision":"int4","group_size":64,"targets":["X"]}}"#,
        ),
    ];
    let replace = |text: String, (name, value): &(&str, &str)| text.replace(name, value);
    check(&names.iter().fold(text.to_owned(), replace));
}
