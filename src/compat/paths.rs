//! The public modules whose names the crate's own rooms have as well.

pub mod model {
    //! The one model, and the functions that parse it.

    pub use crate::containers::model::{ParsedModel, Tensor};
    pub use crate::dtype::TargetDtype;
    pub use crate::{
        parse, parse_bytes, parse_bytes_with_limits, parse_from_reader,
        parse_from_reader_with_limits, parse_with_limits,
    };
}

pub mod parse {
    //! Reading containers: each by its own functions and types, or [`parse`](crate::parse()) for
    //! all.

    #[cfg(feature = "npz")]
    pub use self::npz::*;
    #[cfg(feature = "ollama")]
    pub use self::ollama::*;
    #[cfg(feature = "pth")]
    pub use self::pth::*;
    pub use self::safetensors::*;
    #[cfg(feature = "gguf")]
    pub use self::{gguf::*, gguf_write::*};
    pub use crate::containers::parse::{
        detect_format, detect_format_from_reader, parse, parse_bytes, parse_bytes_with_limits,
        parse_from_reader, parse_from_reader_with_limits, parse_with_limits,
    };

    pub mod safetensors {
        //! Headers of safetensors files, and what belongs to a quantized weight.

        pub use crate::compat::safetensors::{
            AwqCompanions, AwqConfig, Bnb4Companions, BnbConfig, GptqCompanions, GptqConfig,
            SafetensorsHeader, TensorEntry, parse_safetensors_header,
            parse_safetensors_header_from_reader, parse_safetensors_header_from_reader_with_limits,
            parse_safetensors_header_with_limits,
        };
        pub use crate::{Dtype, QuantScheme, TensorRole};
    }

    #[cfg(feature = "gguf")]
    pub mod gguf {
        //! GGUF files: headers, metadata, tensors.

        pub use crate::compat::gguf::{
            GgufFrontMatter, GgufInspectInfo, GgufTensor, GgufTensorInfo, ParsedGguf,
            inspect_gguf_from_reader, inspect_gguf_from_reader_with_limits, parse_gguf,
            parse_gguf_bytes, parse_gguf_bytes_with_limits, parse_gguf_front_matter_from_reader,
            parse_gguf_front_matter_from_reader_with_limits, parse_gguf_with_limits,
        };
        pub use crate::containers::model::gguf::{
            Gguf, GgufMetadata, GgufMetadataArray, GgufMetadataValue,
        };
        pub use crate::containers::parse::gguf::{
            GgufEdit, parse_gguf_edit, parse_gguf_edits_json, parse_gguf_kv_arg,
            parse_gguf_metadata_json,
        };
        pub use crate::dtype::Dtype as GgufType;
    }

    #[cfg(feature = "gguf")]
    pub mod gguf_write {
        //! Writing GGUF files of plain tensors.

        pub use crate::compat::gguf::{GgufWriteTensor, write_gguf, write_gguf_to_writer};
    }

    #[cfg(feature = "ollama")]
    pub mod ollama {
        //! Models that Ollama has downloaded.

        pub use crate::containers::parse::ollama::resolve_ollama_model;
    }

    #[cfg(feature = "npz")]
    pub mod npz {
        //! NPZ archives.

        pub use crate::compat::npz::{
            NpzDtype, NpzInspectInfo, NpzTensor, NpzTensorInfo, inspect_npz,
            inspect_npz_from_reader, inspect_npz_from_reader_with_limits, inspect_npz_with_limits,
            npz_to_safetensors, npz_to_safetensors_bytes, parse_npz, parse_npz_bytes,
            parse_npz_bytes_with_limits, parse_npz_with_limits,
        };
    }

    #[cfg(feature = "pth")]
    pub mod pth {
        //! PyTorch checkpoints.

        pub use crate::compat::pth::{
            ParsedPth, PthDtype, PthFrontMatter, PthInspectInfo, PthTensor, PthTensorInfo,
            inspect_pth_from_reader, inspect_pth_from_reader_with_limits, parse_pth,
            parse_pth_bytes, parse_pth_bytes_with_limits, parse_pth_front_matter_from_reader,
            parse_pth_front_matter_from_reader_with_limits, parse_pth_with_limits,
            pth_to_safetensors, pth_to_safetensors_bytes,
        };
        pub use crate::containers::parse::pth::{
            GradedGlobal, PickleGlobal, PickleRisk, PickleScan, pickle_globals,
            pickle_globals_with_limits, scan_pickles,
        };
    }
}

pub mod remember {
    //! Decoding single tensors from slices: a module for each kind of weights.

    #[cfg(feature = "gguf")]
    pub use self::gguf::*;
    #[cfg(feature = "npz")]
    pub use self::npz::*;
    #[cfg(feature = "pth")]
    pub use self::pth::*;
    pub use self::{awq::*, bnb::*, fp8::*, gptq::*};

    pub mod fp8 {
        //! FP8 (E4M3) with scales for blocks, rows or whole tensors.

        pub use crate::compat::dequantize::{
            dequantize_fp8_to_bf16, dequantize_per_channel_fp8_to_bf16,
            dequantize_per_tensor_fp8_to_bf16,
        };
    }

    pub mod gptq {
        //! GPTQ.

        pub use crate::compat::dequantize::dequantize_gptq_to_bf16;
    }

    pub mod awq {
        //! AWQ.

        pub use crate::compat::dequantize::dequantize_awq_to_bf16;
    }

    pub mod bnb {
        //! BitsAndBytes: NF4, FP4 and INT8.

        pub use crate::compat::dequantize::{
            dequantize_bnb_int8_to_bf16, dequantize_bnb4_double_quant_to_bf16,
            dequantize_bnb4_to_bf16,
        };
    }

    #[cfg(feature = "gguf")]
    pub mod gguf {
        //! Block types of ggml.

        pub use crate::compat::dequantize::{
            dequantize_gguf_blocks_to_bf16, dequantize_gguf_to_bf16,
        };
    }

    #[cfg(feature = "npz")]
    pub mod npz {
        //! Arrays of NPZ archives, as safetensors files.

        pub use crate::compat::npz::{npz_to_safetensors, npz_to_safetensors_bytes};
    }

    #[cfg(feature = "pth")]
    pub mod pth {
        //! Tensors of PyTorch checkpoints, as safetensors files.

        pub use crate::compat::pth::{pth_to_safetensors, pth_to_safetensors_bytes};
    }
}

pub mod lethe {
    //! Encoding single tensors into slices, and checks for encoders.

    #[cfg(feature = "bnb")]
    pub use self::bnb::*;
    pub use crate::compat::round_trip;

    #[cfg(feature = "bnb")]
    pub mod bnb {
        //! BitsAndBytes: single tensors, and files of NF4.

        pub use crate::compat::bnb_file::{
            BnbNf4WriteStats, BnbWriteInput, NF4_BLOCK_SIZE, classify_inputs, is_eligible_for_nf4,
            write_bnb_nf4_safetensors, write_bnb_nf4_safetensors_bytes,
        };
        pub use crate::compat::encode::{
            encode_bnb_int8, encode_bnb_int8_compute_scb, encode_bnb4, encode_bnb4_compute_absmax,
            encode_bnb4_double_quant,
        };
        pub use crate::kernels::lethe::bnb::{FP4_CODEBOOK, NF4_CODEBOOK};
    }
}
