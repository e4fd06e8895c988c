//! [`HadamardPack`]: which modules of PrismML's MLX models have rotated inputs (`modules` in
//! `config.json`).
//!
//! Source: mlx-lm `models/prism_hadamard_qwen35.py`.

use std::collections::HashMap;

use serde_json::Value;

use super::QuantConfig;

/// Begins the `model_type` of these models.
const MODEL_TYPE: &str = "prism_hadamard";

/// Module of the language model, from whose path those of `modules` lack it.
const LANGUAGE_MODEL: &str = "language_model.";

/// The size of the blocks of inputs that are rotated together, by module; 0: its inputs are not
/// rotated.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct HadamardPack {
    blocks: HashMap<String, usize>,
    /// What is wrong with the list.
    problem: Option<String>,
}

impl HadamardPack {
    /// `None` if `config.json` is of another model.
    pub(super) fn new(root: &Value) -> Option<Self> {
        let model_type = root.get("model_type")?.as_str()?;
        if !model_type.starts_with(MODEL_TYPE) {
            return None;
        }
        let mut pack = Self::default();
        pack.problem = pack.read(root.get("modules")).err();
        Some(pack)
    }

    fn read(&mut self, modules: Option<&Value>) -> Result<(), String> {
        let modules = modules.and_then(Value::as_array);
        let modules = modules.ok_or_else(|| "`modules` is no list".to_owned())?;
        for module in modules {
            let path = module.get("path").and_then(Value::as_str);
            let block = module.get("block").and_then(Value::as_u64);
            let (Some(path), Some(block)) = (path, block) else {
                return Err("a module of `modules` has no `path`, or no `block`".to_owned());
            };
            let block = usize::try_from(block).map_err(|_| format!("{block} is no block"))?;
            if self.blocks.insert(path.to_owned(), block).is_some() {
                return Err(format!("`{path}` is in `modules` twice"));
            }
        }
        Ok(())
    }
}

impl QuantConfig {
    /// How many inputs of `module` are rotated together in a model whose config lists such modules;
    /// 0: none. `None` if it lists none.
    ///
    /// # Errors
    /// The list is not what mlx-lm reads.
    pub(crate) fn hadamard_block(&self, module: &str) -> Result<Option<usize>, String> {
        let Some(pack) = &self.hadamard else {
            return Ok(None);
        };
        if let Some(problem) = &pack.problem {
            return Err(format!("config.json: {problem}"));
        }
        let path = module.strip_prefix(LANGUAGE_MODEL).unwrap_or(module);
        Ok(Some(pack.blocks.get(path).copied().unwrap_or(0)))
    }
}
