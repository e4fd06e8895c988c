//! llama.cpp's file types: the names of mixtures, each with the ggml type that most tensors get.
//!
//! Source: llama.cpp 0.6.0 `include/llama.h` (`llama_ftype`), `src/llama-quant.cpp`
//! (`llama_ftype_get_default_type`) and `tools/quantize/quantize.cpp` (`QUANT_OPTIONS`, the names).

use crate::Dtype;
use crate::lethe::ForgetScheme;

/// A file type of llama.cpp, or a ggml type that has no file type, for all tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileType {
    /// Name as `llama-quantize` or ggml spells it.
    pub name: &'static str,
    /// Number in `general.file_type`, if it has one.
    pub number: Option<u32>,
    /// Type of the tensors that no rule applies to.
    pub dtype: Dtype,
}

/// Makes the table, and of each row a constant of [`ForgetScheme`].
macro_rules! file_types {
    ($($name:ident $number:literal $dtype:ident;)*) => {
        impl FileType {
            $(const $name: Self = Self {
                name: stringify!($name),
                number: Some($number),
                dtype: Dtype::$dtype,
            };)*
        }

        /// Every file type that tensors can be quantized to.
        const FILE_TYPES: &[FileType] = &[$(FileType::$name),*];

        /// llama.cpp's file types, in GGUF.
        impl ForgetScheme {
            $(
                #[doc = concat!("`gguf:", stringify!($name), "`, in any case.")]
                pub const $name: Self = Self::of_file_type(FileType::$name);
            )*
        }
    };
}

file_types! {
    // Numbers are those of `llama_ftype`. Gaps are types that llama.cpp removed or only reads
    // (`READ_ONLY`).
    F32 0 F32;
    F16 1 F16;
    Q4_0 2 Q4_0;
    Q4_1 3 Q4_1;
    Q8_0 7 Q8_0;
    Q5_0 8 Q5_0;
    Q5_1 9 Q5_1;
    Q2_K 10 Q2_K;
    Q3_K_S 11 Q3_K;
    Q3_K_M 12 Q3_K;
    Q3_K_L 13 Q3_K;
    Q4_K_S 14 Q4_K;
    Q4_K_M 15 Q4_K;
    Q5_K_S 16 Q5_K;
    Q5_K_M 17 Q5_K;
    Q6_K 18 Q6_K;
    IQ2_XXS 19 IQ2_XXS;
    IQ2_XS 20 IQ2_XS;
    Q2_K_S 21 Q2_K;
    IQ3_XS 22 IQ3_S;
    IQ3_XXS 23 IQ3_XXS;
    IQ1_S 24 IQ1_S;
    IQ4_NL 25 IQ4_NL;
    IQ3_S 26 IQ3_S;
    IQ3_M 27 IQ3_S;
    IQ2_S 28 IQ2_XS;
    IQ2_M 29 IQ2_S;
    IQ4_XS 30 IQ4_XS;
    IQ1_M 31 IQ1_M;
    BF16 32 BF16;
    TQ1_0 36 TQ1_0;
    TQ2_0 37 TQ2_0;
    MXFP4_MOE 38 MXFP4;
    Q1_0 40 Q1_0;
    Q2_0 41 Q2_0;
}

/// Other names that `llama-quantize` accepts.
const ALIASES: &[(&str, &str)] = &[("Q3_K", "Q3_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M")];

/// Numbers of file types that llama.cpp reads but does not write.
const READ_ONLY: &[(Dtype, u32)] = &[(Dtype::NVFP4, 39)];

impl FileType {
    /// The file type of this name, in any case. If there is none, the ggml block type of this name,
    /// for all tensors.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let alias = ALIASES
            .iter()
            .find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let name = alias.map_or(name, |(_, of)| of);
        let found = Self::all()
            .iter()
            .find(|file_type| file_type.name.eq_ignore_ascii_case(name));
        found.copied().or_else(|| {
            let mut blocks = Dtype::ALL
                .iter()
                .copied()
                .filter(|dtype| dtype.is_ggml_block() && dtype.fork().is_none());
            let dtype = blocks.find(|dtype| dtype.name().eq_ignore_ascii_case(name))?;
            let number = READ_ONLY
                .iter()
                .find(|(of, _)| *of == dtype)
                .map(|(_, number)| *number);
            Some(Self { name: dtype.name(), number, dtype })
        })
    }

    /// Every file type.
    pub(crate) fn all() -> &'static [Self] {
        FILE_TYPES
    }

    /// Whether llama.cpp's rules give tensors different types.
    pub(crate) fn is_mixture(self) -> bool {
        FILE_TYPES.contains(&self)
    }
}
