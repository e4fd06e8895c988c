//! LoRA for image models as directories of PEFT, which `generate/check_adapters_image.py` loads.

use serde_json::Value;

use super::*;

/// The adapter `adapter` for the tensors `base` of a model of this class, in the directory `out`.
fn to_peft(
    root: &Path,
    (base, class): (&Path, Option<&str>),
    adapter: &Path,
    change: impl FnOnce(&mut ConvertOptions),
) -> anamnesis::Result<(PathBuf, Value, Vec<String>)> {
    let (part, out) = (root.join("part"), root.join("peft"));
    for path in [&part, &out] {
        let _ = std::fs::remove_dir_all(path);
    }
    std::fs::create_dir(&part).unwrap();
    std::fs::copy(base, part.join("diffusion_pytorch_model.safetensors")).unwrap();
    if let Some(class) = class {
        std::fs::write(part.join("config.json"), json!({"_class_name": class}).to_string())
            .unwrap();
    }
    let mut options = ConvertOptions::new(anamnesis::ConvertTarget::Safetensors);
    options.base = Some(part);
    change(&mut options);
    let report = parse(adapter)?.convert(&out, options)?;
    let mut names: Vec<String> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["adapter_config.json", "adapter_model.safetensors"]);
    let config = std::fs::read(out.join("adapter_config.json")).unwrap();
    Ok((out, serde_json::from_slice(&config).unwrap(), report.notes))
}

const UNET: Option<&str> = Some("UNet2DConditionModel");
const FLUX: Option<&str> = Some("FluxTransformer2DModel");

/// The weights with the adapter are those with the one that it was made of, and a directory that is
/// made of the directory has the same bytes.
#[test]
fn directories_have_the_same_values() {
    let root = crate::common::tempdir().unwrap();
    for (base, class, adapter) in [
        ("unet", UNET, "kohya"),
        ("unet", UNET, "processors"),
        ("unet", UNET, "peft"),
        ("text_encoder", Some("CLIPTextModel"), "kohya"),
        ("flux", FLUX, "flux-kohya"),
        ("flux", FLUX, "metadata"),
        ("flux", FLUX, "flux-all"),
        ("flux-original", None, "flux-kohya"),
        ("flux-original", None, "flux-all"),
    ] {
        let of_base = adapter_data(base);
        let convert =
            |adapter: &Path| to_peft(root.path(), (&of_base, class), adapter, |_| {}).unwrap();
        let (out, config, notes) = convert(&adapter_data(adapter));
        let is_partial = adapter == "kohya";
        assert_eq!(
            notes
                .iter()
                .any(|note| note.contains("part of the pipeline as BASE")),
            is_partial
        );
        let made = parse(&out).unwrap();
        let modules = config["target_modules"].as_array().unwrap();
        assert_eq!(made.tensors().len(), 2 * modules.len());
        for t in made.tensors() {
            assert!(t.name().starts_with("base_model.model."), "{}", t.name());
        }
        let merged = root.path().join("merged");
        let adapters = vec![Adapter::open(&out).unwrap()];
        // PEFT has the names of a model, which the authors' file has below a prefix.
        if base != "flux-original" {
            parse(&of_base)
                .unwrap()
                .convert(&merged, options(TargetDtype::F32, adapters))
                .unwrap();
            let (want, got) = (expected(base, adapter), parse(&merged).unwrap());
            for t in want.tensors() {
                let (want, got) = (values(&want, t.name()), values(&got, t.name()));
                assert!(!want.iter().zip(&got).any(|(a, b)| ulps(*a, *b) > 1), "{}", t.name());
            }
        }
        let first = root.path().join("first");
        let _ = std::fs::remove_dir_all(&first);
        std::fs::rename(&out, &first).unwrap();
        let (out, again, _) = convert(&first);
        assert_eq!(config, again);
        let bytes = |at: &Path| std::fs::read(at.join("adapter_model.safetensors")).unwrap();
        assert!(bytes(&first) == bytes(&out), "{base} {adapter}");
    }
}

/// Factors are as they were, and scales in the settings: of most modules in `r` and `lora_alpha`.
#[test]
fn scales_are_settings() {
    let root = crate::common::tempdir().unwrap();
    let base = (&*adapter_data("unet"), UNET);
    let (out, config, _) = to_peft(root.path(), base, &adapter_data("kohya"), |_| {}).unwrap();
    assert_eq!((&config["r"], &config["lora_alpha"]), (&json!(3), &json!(1.5)));
    assert_eq!((&config["peft_type"], &config["task_type"]), (&json!("LORA"), &Value::Null));
    let ranks = config["rank_pattern"].as_object().unwrap();
    assert_eq!(ranks.len(), config["alpha_pattern"].as_object().unwrap().len());
    assert_eq!(ranks[r"^mid_block\.attentions\.0\.proj_in"], 2);
    let (made, source) = (parse(out).unwrap(), parse(adapter_data("kohya")).unwrap());
    let name = "mid_block.attentions.0.proj_in";
    let a = made.tensor(&format!("base_model.model.{name}.lora_A.weight"));
    let b = source.tensor("lora_unet_mid_block_attentions_0_proj_in.lora_down.weight");
    assert_eq!(a.unwrap().bytes().unwrap(), b.unwrap().bytes().unwrap());
}

/// Tensors of zeros in a file.
fn write(path: &Path, tensors: &[(&str, &[usize])]) {
    let tensor = |(name, shape): &(&str, &[usize])| {
        raw(name, "F32", shape, f32s(&vec![0.5; shape.iter().product()]))
    };
    std::fs::write(path, file(&tensors.iter().map(tensor).collect::<Vec<_>>(), &[])).unwrap();
}

/// A module whose name others end in is found alone, and factors have the shapes of its weight.
#[test]
fn modules_are_found_alone() {
    let root = crate::common::tempdir().unwrap();
    let (base, adapter) = (root.path().join("base.st"), root.path().join("adapter.safetensors"));
    write(
        &base,
        &[
            ("proj.weight", &[3, 2]),
            ("a.proj.weight", &[3, 2, 1, 1]),
            ("b.a.proj.weight", &[3, 2]),
            ("b.proj+.weight", &[3, 2]),
        ],
    );
    write(
        &adapter,
        &[
            ("unet.proj.lora_A.weight", &[1, 2, 1, 1]),
            ("unet.proj.lora_B.weight", &[3, 1, 1, 1]),
            ("unet.b.a.proj.lora_A.weight", &[2, 2]),
            ("unet.b.a.proj.lora_B.weight", &[3, 2]),
            ("unet.b.proj+.lora_A.weight", &[2, 2]),
            ("unet.b.proj+.lora_B.weight", &[3, 2]),
        ],
    );
    let (out, config, _) = to_peft(root.path(), (&base, UNET), &adapter, |_| {}).unwrap();
    assert_eq!(config["target_modules"], json!(["b.a.proj", "b.proj+", "proj"]));
    assert_eq!(config["exclude_modules"], r"a\.proj");
    assert_eq!(config["rank_pattern"], json!({"^proj": 1}));
    let made = parse(&out).unwrap();
    let shape = |name: &str| made.tensor(name).unwrap().shape().to_vec();
    assert_eq!(shape("base_model.model.proj.lora_A.weight"), [1, 2]);
    assert_eq!(shape("base_model.model.proj.lora_B.weight"), [3, 1]);

    write(&base, &[("a.proj.weight", &[3, 2, 1, 1])]);
    write(
        &adapter,
        &[("unet.a.proj.lora_A.weight", &[1, 2]), ("unet.a.proj.lora_B.weight", &[3, 1])],
    );
    let (out, config, _) = to_peft(root.path(), (&base, UNET), &adapter, |_| {}).unwrap();
    assert_eq!(config.get("exclude_modules"), None);
    let made = parse(&out).unwrap();
    let shape = |name: &str| made.tensor(name).unwrap().shape().to_vec();
    assert_eq!(shape("base_model.model.a.proj.lora_A.weight"), [1, 2, 1, 1]);
    assert_eq!(shape("base_model.model.a.proj.lora_B.weight"), [3, 1, 1, 1]);
}

#[test]
fn directories_have_limits() {
    let root = crate::common::tempdir().unwrap();
    let refused = |base: &str, class, adapter: &str, change: fn(&mut ConvertOptions)| {
        let base = adapter_data(base);
        let run = to_peft(root.path(), (&base, class), &adapter_data(adapter), change);
        run.unwrap_err().to_string()
    };
    for (error, what) in [
        (refused("checkpoint", None, "kohya", |_| {}), "no part of its diffusion model"),
        (refused("unet", None, "kohya", |_| {}), "the config.json that belongs beside it"),
        (refused("unet", UNET, "norms", |_| {}), "products of two factors"),
        (refused("flux", FLUX, "flux-lokr", |_| {}), "products of two factors"),
        (refused("unet", UNET, "kohya", |options| options.kohya_names = true), "--kohya-names"),
        (
            refused("unet", UNET, "kohya", |options| options.max_shard_size = Some(1000)),
            "without --max-shard-size",
        ),
    ] {
        assert!(error.contains(what), "{what}: {error}");
    }
}
