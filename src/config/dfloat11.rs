//! [`DFloat11Config`]: `dfloat11_config` of `config.json`, without which nobody knows which weights
//! a module's codes hold.
//!
//! Source: dfloat11 `dfloat11.py` (`load_and_replace_tensors`, `compress_model`).

use serde_json::Value;

use super::QuantConfig;
use super::pattern::{Pattern, PatternList};

/// Most patterns; models have one for each kind of module. Each is tried for each module.
const MAX_PATTERNS: usize = 64;

/// Bytes whose first code's place is stored. dfloat11's kernel (`decode.cu`) knows no other number.
const RUN_BYTES: usize = 8;

/// Most threads of a block of any GPU.
const MAX_THREADS: u64 = 1024;

/// DFloat11's config.
#[derive(Debug, Clone)]
pub(crate) struct DFloat11Config {
    /// Bytes of codes that a block of threads decodes, and whose first element's place is stored.
    pub chunk_bytes: usize,
    /// Paths below a module, of the modules whose weights its codes hold.
    weights: PatternList<Vec<String>>,
}

impl QuantConfig {
    /// Whether a config says which weights the modules of DFloat11 hold.
    pub(crate) fn is_dfloat11(&self) -> bool {
        self.has("pattern_dict")
    }

    /// DFloat11's config.
    ///
    /// # Errors
    /// Why there is none, or what of it is not understood.
    pub(crate) fn dfloat11(&self) -> Result<&DFloat11Config, &str> {
        let read = || {
            let get = |key| self.first(|place| place.get(key));
            DFloat11Config::new(
                get("threads_per_block").map(|(value, _)| value),
                get("bytes_per_thread").map(|(value, _)| value),
                get("pattern_dict").map(|(value, _)| value),
            )
        };
        self.dfloat11
            .get_or_init(read)
            .as_ref()
            .map_err(String::as_str)
    }
}

impl DFloat11Config {
    fn new(
        threads: Option<&Value>,
        bytes: Option<&Value>,
        patterns: Option<&Value>,
    ) -> Result<Self, String> {
        let Some(Value::Object(patterns)) = patterns else {
            return Err("no config has a `dfloat11_config` with a `pattern_dict`, which says which weights it holds".to_owned());
        };
        let threads = threads.and_then(|value| match value.as_array()?.as_slice() {
            [threads] => threads.as_u64(),
            _ => None,
        });
        let threads = threads
            .filter(|threads| (1..=MAX_THREADS).contains(threads))
            .ok_or_else(|| {
                format!("`threads_per_block` of its config is not one number up to {MAX_THREADS}")
            })?;
        if bytes.and_then(Value::as_u64) != Some(RUN_BYTES as u64) {
            return Err(format!("`bytes_per_thread` of its config is not {RUN_BYTES}"));
        }
        if patterns.len() > MAX_PATTERNS {
            return Err(format!("`pattern_dict` has more than {MAX_PATTERNS} entries"));
        }
        let mut weights = PatternList::default();
        for (pattern, paths) in patterns {
            let wrong = |e: &str| format!("the pattern {pattern} of `pattern_dict`: {e}");
            let path = |path: &Value| path.as_str().map(str::to_owned);
            let paths = paths
                .as_array()
                .and_then(|all| all.iter().map(path).collect());
            let paths = paths.ok_or_else(|| wrong("no list of names"))?;
            // `re.fullmatch`.
            let expression = Pattern::anywhere(&format!("^(?:{pattern})$"));
            if !weights.push(expression.map_err(|e| wrong(&e))?, paths) {
                return Err(wrong("it takes too much memory"));
            }
        }
        Ok(Self { chunk_bytes: threads as usize * RUN_BYTES, weights })
    }

    /// Paths below `module` of the modules whose weights its codes hold, in their order. None if
    /// the weight is its own.
    ///
    /// # Errors
    /// No pattern matches, or patterns say different things.
    pub(crate) fn weights(&self, module: &str) -> Result<&[String], String> {
        let found = self.weights.all(module)?;
        match found.as_slice() {
            [] => Err("no pattern of `pattern_dict` matches it".to_owned()),
            [first, rest @ ..] if rest.iter().all(|other| other == first) => Ok(first),
            _ => Err("several patterns of `pattern_dict` match it".to_owned()),
        }
    }
}
