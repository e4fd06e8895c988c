//! Safetensors headers and the companions that they list.

use anamnesis::Result;

use super::{SAFETENSORS, is_copy, travels};

#[test]
fn safetensors_headers() {
    use anamnesis::{
        AwqCompanions, AwqConfig, Bnb4Companions, BnbConfig, Dtype, GptqCompanions, GptqConfig,
        InspectInfo, ParseLimits, QuantScheme, SafetensorsHeader, TensorEntry, TensorRole,
        parse_safetensors_header, parse_safetensors_header_from_reader,
        parse_safetensors_header_from_reader_with_limits, parse_safetensors_header_with_limits,
    };
    travels::<Result<SafetensorsHeader>>();
    is_copy::<Dtype>();
    is_copy::<QuantScheme>();
    let file = std::fs::File::open(SAFETENSORS).unwrap();
    let header = parse_safetensors_header_from_reader(file).unwrap();
    let mut reader = std::fs::File::open(SAFETENSORS).unwrap();
    parse_safetensors_header_from_reader(&mut reader).unwrap();
    let (bytes, limits) = (std::fs::read(SAFETENSORS).unwrap(), ParseLimits::default());
    parse_safetensors_header_from_reader_with_limits(&bytes[..], &limits).unwrap();
    parse_safetensors_header_with_limits(&bytes, &limits).unwrap();
    assert_eq!(parse_safetensors_header(&bytes).unwrap().tensors, header.tensors);
    let info = InspectInfo::from(&header);
    assert_eq!(info.tensor_count, header.tensors.len());
    assert!(header.scheme != QuantScheme::Unquantized);
    let weight = header.quantized_tensors().next().unwrap();
    assert_eq!(header.find_scale_for(&weight.name).unwrap().role, TensorRole::Scale);
    assert_eq!(weight.byte_len(), weight.num_elements() * weight.dtype.byte_size());
    let counts = [header.quantized_count(), header.scale_count(), header.passthrough_count()];
    assert_eq!(counts.iter().sum::<usize>(), header.tensors.len());
    let none = [header.zeropoint_count(), header.group_index_count(), header.quant_map_count()];
    assert_eq!((none, header.nested_scale_count()), ([0; 3], 0));
    // Every field can be moved out.
    let gptq: Option<GptqConfig> = header.gptq_config;
    let awq: Option<AwqConfig> = header.awq_config;
    let bnb: Option<BnbConfig> = header.bnb_config;
    assert!(gptq.is_none() && awq.is_none() && bnb.is_none());
    let _: (u64, Option<std::collections::HashMap<String, String>>) =
        (header.header_size as u64, header.metadata);
    for TensorEntry { name, dtype, shape, data_offsets, .. } in header.tensors {
        let _: (String, String, Vec<usize>, u64) =
            (name, dtype.to_string(), shape, data_offsets.0 as u64);
    }
    let _: fn(GptqCompanions<'_>) -> Option<&TensorEntry> =
        |c| c.g_idx.or(Some(c.scales)).or(Some(c.qzeros));
    let _: fn(AwqCompanions<'_>) -> [&TensorEntry; 2] = |c| [c.scales, c.qzeros];
    let _: fn(Bnb4Companions<'_>) -> [Option<&TensorEntry>; 5] =
        |c| [Some(c.absmax), Some(c.quant_map), c.nested_absmax, c.nested_quant_map, c.quant_state];
    let _: fn(&[u8]) -> Result<anamnesis::parse::safetensors::SafetensorsHeader> =
        parse_safetensors_header;
    #[allow(unused_imports)]
    use TensorRole::{
        GroupIndex, NestedScale, Passthrough, QuantMap, QuantState, Quantized, Scale, ZeroPoint,
    };
}

/// Companions and configs that a header infers from shapes alone.
#[test]
fn companions() {
    use crate::common::verdict::tensors;
    use crate::common::{file, raw};
    use anamnesis::{TensorRole, parse_safetensors_header};
    let gptq = "X.qweight I32 32,64; X.scales F16 2,64; X.qzeros I32 2,16; X.g_idx I32 128";
    let header = parse_safetensors_header(&file(&tensors(gptq), &[("gptq_bits", "8")])).unwrap();
    {
        let config = header.gptq_config.unwrap();
        assert_eq!((config.bits, config.group_size), (8, 64));
        let found = header.find_gptq_companions("X.qweight").unwrap();
        assert_eq!((&*found.scales.name, &*found.qzeros.name), ("X.scales", "X.qzeros"));
        assert_eq!(found.g_idx.unwrap().role, TensorRole::GroupIndex);
        assert_eq!(header.zeropoint_tensors().count() + header.group_index_tensors().count(), 2);
    }
    let awq = "X.qweight I32 128,8; X.scales F16 2,64; X.qzeros I32 2,8";
    let header = parse_safetensors_header(&file(&tensors(awq), &[])).unwrap();
    {
        let config = header.awq_config.unwrap();
        assert_eq!((config.bits, config.group_size), (4, 64));
        assert!(header.find_awq_companions("X.qweight").is_some());
    }
    let state = br#"{"blocksize":64,"shape":[10,15]}"#.to_vec();
    let mut bnb = tensors(
        "X.weight U8 75,1; X.weight.absmax U8 3; X.weight.quant_map F32 16; X.weight.nested_absmax F32 1; \
         X.weight.nested_quant_map F32 256; Y.weight I8 2,3; Y.SCB F32 2",
    );
    bnb.push(raw("X.weight.quant_state.bitsandbytes__nf4", "U8", &[state.len()], state));
    let header = parse_safetensors_header(&file(&bnb, &[])).unwrap();
    {
        let config = header.bnb_config.unwrap();
        assert_eq!((config.block_size, config.double_quant), (64, true));
        let found = header.find_bnb4_companions("X.weight").unwrap();
        assert!(
            found.nested_absmax.is_some()
                && found.nested_quant_map.is_some()
                && found.quant_state.is_some()
        );
        assert_eq!(header.find_bnb_int8_scb("Y.weight").unwrap().name, "Y.SCB");
        assert_eq!(
            (header.quant_map_tensors().count(), header.nested_scale_tensors().count()),
            (2, 1)
        );
    }
}
