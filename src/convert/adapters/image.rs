//! LoRA for image and video models, in files of kohya's scripts, diffusers and ComfyUI.
//!
//! - `names`: what the names of its tensors say; `scales`: what products are multiplied by.
//! - `renamed`: the same LoRA under other names; `base_names`: how the output calls modules;
//!   `joined`: the factors that modules of the output get.
//! - `places`: where the modules are in a base; `modules`, `ldm_unet`: names of the same modules.

#[cfg(feature = "models")]
mod base_names;
#[cfg(feature = "models")]
mod joined;
mod ldm_unet;
mod modules;
mod names;
mod places;
#[cfg(feature = "models")]
mod renamed;
mod scales;

#[cfg(feature = "models")]
pub(in crate::convert) use self::base_names::LoraNames;
pub(super) use self::names::LoraName;
pub(super) use self::places::place;
#[cfg(feature = "models")]
pub(in crate::convert) use self::renamed::{RenamedLora, renamed as renamed_lora};
