//! Cases of the tests of integers in groups: files of `tests/data/generate`, and the method of
//! each.

use safetensors::SafeTensors;
use serde_json::Value;

use crate::lethe::Method;
use crate::lethe::compressed_tensors::CompressedTensors;

/// A file of the generators: the tensor `original`, and what the library stores of it under the
/// name `m`.
pub(super) struct GroupedCase {
    pub name: String,
    pub bytes: Vec<u8>,
    /// Arguments of the method.
    pub encoder: Value,
    /// The config that the library writes.
    pub config: Value,
}

impl GroupedCase {
    /// Reads all cases in a directory of `tests/data`: none in the published package.
    pub(super) fn all(family: &str) -> Vec<Self> {
        let Some(data) = crate::test_utils::test_data() else {
            return Vec::new();
        };
        let mut paths: Vec<_> = std::fs::read_dir(data.join(family))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            let bytes = std::fs::read(path).unwrap();
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
            let metadata = header.metadata().clone().unwrap();
            let json = |key: &str| serde_json::from_str(&metadata[key]).unwrap();
            let (encoder, config) = (json("encoder"), json("config"));
            Self {
                name: path.file_stem().unwrap().to_string_lossy().into_owned(),
                bytes,
                encoder,
                config,
            }
        };
        paths.iter().map(read).collect()
    }

    fn number(&self, key: &str) -> Option<usize> {
        self.encoder[key].as_u64().map(|n| n as usize)
    }

    fn flag(&self, key: &str) -> bool {
        self.encoder[key].as_bool().unwrap_or_default()
    }

    pub(super) fn method(&self) -> Box<dyn Method> {
        let (bits, group) = (self.number("bits").unwrap_or(4), self.number("group"));
        let symmetric = self.flag("symmetric");
        match self.encoder["method"].as_str().unwrap() {
            "compressed-tensors" => Box::new(CompressedTensors {
                bits,
                group,
                symmetric,
                activations: self.flag("activations"),
            }),
            "gptq" => {
                let version_2 = self.flag("version_2");
                Box::new(crate::lethe::gptq::Gptq { bits, group, symmetric, version_2 })
            }
            "awq" => Box::new(crate::lethe::awq::Awq { group: group.unwrap() }),
            "hqq" => Box::new(crate::lethe::hqq::Hqq { bits, group: group.unwrap() }),
            "sdnq" => Box::new(sdnq(self.encoder["dtype"].as_str().unwrap(), group)),
            "mlx" => Box::new(mlx(self.encoder["mode"].as_str().unwrap(), bits, group.unwrap())),
            other => panic!("{other}"),
        }
    }
}

pub(super) fn mlx(mode: &str, bits: usize, group: usize) -> crate::lethe::mlx::Mlx {
    use crate::lethe::kernels::mlx::MlxFloatMode;
    use crate::lethe::mlx::Mlx;
    match mode {
        "mxfp4" => Mlx::Floating(MlxFloatMode::Mxfp4),
        "mxfp8" => Mlx::Floating(MlxFloatMode::Mxfp8),
        "nvfp4" => Mlx::Floating(MlxFloatMode::Nvfp4),
        _ => Mlx::Affine { bits, group },
    }
}

fn sdnq(dtype: &str, group: Option<usize>) -> crate::lethe::sdnq::Sdnq {
    use crate::lethe::sdnq::{Sdnq, SdnqCodes};
    let bits = |prefix: &str| {
        dtype
            .strip_prefix(prefix)
            .and_then(|bits| bits.parse().ok())
    };
    let codes = match (bits("int"), bits("uint")) {
        (Some(bits), _) => SdnqCodes::Int(bits),
        (_, Some(bits)) => SdnqCodes::Uint(bits),
        _ => SdnqCodes::Fp8,
    };
    Sdnq { codes, group }
}
