//! Encoded GGUF files, decoded by candle.

use std::io::Cursor;

use anamnesis::{ConvertOptions, ForgetScheme, parse_bytes};
use candle_core::quantized::gguf_file;

use crate::GGUF_TYPES;
use crate::common::forget::{bf16s, decoded, values_of, weights};
use crate::common::{Random, f32s, file, raw};

#[test]
fn candle_decodes_the_same() {
    let mut random = Random(37);
    let tensors = [
        raw("blk.0.ffn_up.weight", "F32", &[48, 512], f32s(&weights(&mut random, 48 * 512))),
        raw(
            "blk.0.ffn_down_exps.weight",
            "BF16",
            &[3, 8, 256],
            bf16s(&weights(&mut random, 3 * 8 * 256)),
        ),
        raw("output_norm.weight", "BF16", &[512], bf16s(&weights(&mut random, 512))),
    ];
    let model = parse_bytes(file(&tensors, &[])).unwrap();
    for name in GGUF_TYPES {
        let scheme = format!("gguf:{name}")
            .parse::<ForgetScheme>()
            .unwrap()
            .pure();
        let mut options: ConvertOptions = scheme.into();
        options.single_file = true;
        let bytes = model.plan(options).unwrap().to_bytes().unwrap();
        let ours = parse_bytes(bytes.clone()).unwrap();
        let (back, mut reader) = (decoded(&ours).unwrap(), Cursor::new(&bytes));
        let content = gguf_file::Content::read(&mut reader).unwrap();
        let device = candle_core::Device::Cpu;
        for t in ours.tensors() {
            let theirs = content.tensor(&mut reader, t.name(), &device).unwrap();
            assert!(
                t.name() == "output_norm.weight" || t.dtype().to_string() == name.to_uppercase(),
                "{}",
                t.dtype()
            );
            let theirs = theirs.dequantize(&device).unwrap();
            assert_eq!(theirs.dims(), t.shape(), "{name}");
            let theirs = theirs.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert!(theirs == values_of(&back, t.name()), "{name}: {}", t.name());
        }
    }
}
