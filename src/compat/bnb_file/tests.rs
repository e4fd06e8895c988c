//! Tests of bitsandbytes files made of values.

use super::*;

#[test]
fn shapes_that_are_quantized() {
    assert!(is_eligible_for_nf4(&[2, 32]) && is_eligible_for_nf4(&[64, 1]));
    assert!(
        !is_eligible_for_nf4(&[64])
            && !is_eligible_for_nf4(&[2, 31])
            && !is_eligible_for_nf4(&[0, 64])
    );
    assert!(!is_eligible_for_nf4(&[usize::MAX, 64]));
}

/// A file that decodes, over more than one tile, under the names of its tensors.
#[test]
fn a_file_of_weights_and_others() {
    let value = |i: usize| {
        half::bf16::from_f32((i % 97) as f32 - 48.0)
            .to_bits()
            .to_le_bytes()
    };
    let weight: Vec<u8> = (0..700 * 480).flat_map(value).collect();
    let inputs = [
        BnbWriteInput { name: "b.weight", shape: &[700, 480], bf16_data: &weight },
        BnbWriteInput { name: "a.bias", shape: &[3], bf16_data: &weight[..6] },
    ];
    assert_eq!(classify_inputs(&inputs), BnbNf4WriteStats { quantized: 1, passthrough: 1 });
    let bytes = write_bnb_nf4_safetensors_bytes(&inputs).unwrap();
    let model = crate::parse_bytes(bytes.clone()).unwrap();
    let names: Vec<_> = model.tensors().map(|t| t.name().to_owned()).collect();
    assert!(names.contains(&"b.weight.quant_state.bitsandbytes__nf4".to_owned()), "{names:?}");
    let out = crate::parse_bytes(model.remember_to_bytes(TargetDtype::BF16).unwrap()).unwrap();
    let found: Vec<_> = out
        .tensors()
        .map(|t| (t.name().to_owned(), t.shape().to_vec()))
        .collect();
    assert_eq!(found.len(), 2);
    assert!(found.contains(&("b.weight".to_owned(), vec![700, 480])), "{found:?}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write_bnb_nf4_safetensors(&inputs, &path).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert!(write_bnb_nf4_safetensors_bytes(&[inputs[1], inputs[1]]).is_err());
    let short = BnbWriteInput { bf16_data: &weight[2..], ..inputs[0] };
    assert!(write_bnb_nf4_safetensors_bytes(&[short]).is_err());
}

/// The same tensors, with the same bytes, as those of a model that is encoded: rows are not whole
/// blocks here.
#[cfg(feature = "lethe")]
#[test]
fn weights_as_the_pipeline_stores_them() {
    use crate::lethe::bnb::{Bnb4, Bnb4QuantType};
    use crate::lethe::kernels::activations::Activations;
    use crate::lethe::{EncodeBuffers, Method, TileValues, WeightInfo};
    let shape = [96, 42];
    let floats: Vec<f32> = (0..96 * 42).map(|i| (i % 89) as f32 - 44.0).collect();
    let bf16 = |x: &f32| half::bf16::from_f32(*x).to_bits().to_le_bytes();
    let input = BnbWriteInput {
        name: "layer.weight",
        shape: &shape,
        bf16_data: &floats.iter().flat_map(bf16).collect::<Vec<u8>>(),
    };
    let method = Bnb4 {
        quant_type: Bnb4QuantType::Nf4,
        block: NF4_BLOCK_SIZE,
        double_quant: false,
        compute_dtype: TargetDtype::BF16,
    };
    let weight = WeightInfo { name: input.name, shape: &shape, dtype: TargetDtype::BF16 };
    let encoder = method.encoder(&weight).unwrap();
    let len = |s: &crate::lethe::StoredTensor| s.dtype.byte_len(&s.shape).unwrap();
    let stored = encoder.stored();
    let mut data: Vec<_> = stored.iter().map(|s| vec![0; len(s)]).collect();
    let tile = crate::remember::Tile { rows: 0..96, cols: 0..42 };
    let values = TileValues {
        tile: &tile,
        values: &floats,
        survey: 0.0,
        maxima: &[],
        activations: Activations::default(),
        level: crate::simd::Level::detect(),
    };
    let mut put = |i: usize, at: u64, bytes: &[u8]| {
        data[i][at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let mut back = vec![0.0; floats.len()];
    let buffers = &mut EncodeBuffers::default();
    encoder
        .encode(&values, buffers, &mut back, &mut put)
        .unwrap();
    let parts = encode(&input).unwrap();
    assert_eq!(parts.len(), stored.len());
    for ((part, s), data) in parts.iter().zip(&stored).zip(&data) {
        assert_eq!((&part.name, part.dtype), (&s.name, s.dtype));
        assert_eq!((&part.shape, &part.data), (&s.shape, data));
    }
}

/// The weight of layer `linear` is `linear.weight`, by which the library finds it; other tensors
/// keep their names.
#[test]
fn names_of_layers() {
    let data = [0x3f; 128];
    let input = |name, shape| BnbWriteInput { name, shape, bf16_data: &data };
    let names = |inputs: &[BnbWriteInput<'_>]| -> Vec<String> {
        let bytes = write_bnb_nf4_safetensors_bytes(inputs).unwrap();
        let model = crate::parse_bytes(bytes).unwrap();
        let mut names: Vec<_> = model.tensors().map(|t| t.name().to_owned()).collect();
        names.sort();
        names
    };
    let four = |base: &str| {
        ["", ".absmax", ".quant_map", ".quant_state.bitsandbytes__nf4"]
            .map(|end| format!("{base}weight{end}"))
    };
    assert_eq!(names(&[input("linear", &[1, 64])]), four("linear."));
    assert_eq!(names(&[input("linear.weight", &[1, 64])]), four("linear."));
    assert_eq!(names(&[input("weight", &[1, 64])]), four(""));
    assert_eq!(names(&[input("norm", &[64])]), ["norm"]);
    let twice = [input("linear", &[1, 64]), input("linear.weight", &[64, 1])];
    assert!(write_bnb_nf4_safetensors_bytes(&twice).is_err());
}

#[test]
fn lengths_and_dimensions_that_are_refused() {
    let refusal = |shape: &[usize], bf16_data: &[u8]| {
        let input = BnbWriteInput { name: "w", shape, bf16_data };
        write_bnb_nf4_safetensors_bytes(&[input])
            .unwrap_err()
            .to_string()
    };
    for shape in [&[64, 1][..], &[2, 5], &[5]] {
        let text = refusal(shape, &[0; 16]);
        assert!(text.contains("tensor `w`: bf16_data length 16"), "{text}");
    }
    for shape in [&[0, 64][..], &[64, 0], &[0], &[2, 0, 3]] {
        let text = refusal(shape, &[]);
        assert!(text.contains("zero dimension"), "{text}");
    }
    let text = refusal(&[usize::MAX, 64], &[0; 2]);
    assert!(text.contains("bf16_data length 2"), "{text}");
}
