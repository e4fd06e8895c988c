//! LoRA for image models: where their modules are, and what is refused.

use std::collections::BTreeMap;

use super::*;

/// The model `base` with the adapter `adapter`, and the notes about it.
fn merged_with_notes(base: &Path, adapter: &Path, out: &Path) -> (ParsedModel, Vec<String>) {
    let adapter = Adapter::open(adapter).unwrap();
    let options = options(TargetDtype::F32, vec![adapter]);
    let report = parse(base).unwrap().convert(out, options).unwrap();
    (parse(out).unwrap(), report.notes)
}

/// The bytes of all tensors, counted: names differ.
fn contents(models: &[&ParsedModel]) -> BTreeMap<Vec<u8>, usize> {
    let mut contents = BTreeMap::new();
    for t in models.iter().flat_map(|model| model.tensors()) {
        *contents.entry(t.bytes().unwrap().into_owned()).or_default() += 1;
    }
    contents
}

/// A file with all parts under their authors' names gets what the parts get one by one, and what a
/// part does not have is left out with a note.
#[test]
fn parts_are_found_below_prefixes() {
    let root = crate::common::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let merge =
        |base: &str| merged_with_notes(&adapter_data(base), &adapter_data("kohya"), &at(base));
    let (all, notes) = merge("checkpoint");
    assert!(!notes.iter().any(|note| note.contains("left out")), "{notes:?}");
    let (unet, notes) = merge("unet");
    assert!(
        notes
            .iter()
            .any(|note| note.contains("10 modules of `lora_te`")),
        "{notes:?}"
    );
    let (text, notes) = merge("text_encoder");
    assert!(notes.iter().any(|note| note.contains("of `lora_unet`")), "{notes:?}");
    assert!(contents(&[&all]) == contents(&[&unet, &text]));
}

/// transformers 5 stores a text encoder without `text_model.`.
#[test]
fn text_encoders_have_two_kinds_of_names() {
    let root = crate::common::tempdir().unwrap();
    let model = parse(adapter_data("text_encoder")).unwrap();
    let tensors = model.tensors().map(|t| {
        let name = t.name().trim_start_matches("text_model.");
        raw(name, "F32", t.shape(), t.bytes().unwrap().into_owned())
    });
    let base = root.path().join("base.safetensors");
    std::fs::write(&base, file(&tensors.collect::<Vec<_>>(), &[])).unwrap();
    let (got, _) = merged_with_notes(&base, &adapter_data("kohya"), &root.path().join("out"));
    let want = expected("text_encoder", "kohya");
    for t in want.tensors() {
        let got = values(&got, t.name().trim_start_matches("text_model."));
        let differs = |(want, got): (&f32, &f32)| ulps(*want, *got) > 1;
        assert!(!values(&want, t.name()).iter().zip(&got).any(differs), "{}", t.name());
    }
}

/// The error of merging `adapter` with these metadata into a base of two matrices, once more below
/// `twin.`; empty if there is none.
fn refusal(adapter: &[(&str, &[usize])], metadata: &[(&str, &str)]) -> String {
    let root = crate::common::tempdir().unwrap();
    let tensor = |(name, shape): &(&str, &[usize])| {
        raw(name, "F32", shape, f32s(&vec![0.5; shape.iter().product()]))
    };
    let base: &[(&str, &[usize])] = &[
        ("blocks.0.to_q.weight", &[3, 2]),
        ("blocks.0.to_k.weight", &[3, 2]),
        ("blocks.0.conv.weight", &[3, 2, 1, 1]),
        ("blocks.0.norm.weight", &[3]),
        ("one.layer.weight", &[3, 2]),
        ("two.layer.weight", &[3, 2]),
    ];
    let base: Vec<Raw> = base.iter().map(tensor).collect();
    let base_path = root.path().join("base.safetensors");
    std::fs::write(&base_path, file(&base, &[])).unwrap();
    let path = root.path().join("adapter.safetensors");
    let tensors: Vec<Raw> = adapter.iter().map(tensor).collect();
    std::fs::write(&path, file(&tensors, metadata)).unwrap();
    let out = root.path().join("out.safetensors");
    let run = || {
        let adapter = Adapter::open(&path)?;
        parse(&base_path)?.convert(&out, options(TargetDtype::F32, vec![adapter]))
    };
    match run() {
        Ok(_) => String::new(),
        Err(error) => {
            assert!(!out.exists());
            error.to_string()
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    const DOWN: (&str, &[usize]) = ("lora_unet_blocks_0_to_q.lora_down.weight", &[1, 2]);
    const UP: (&str, &[usize]) = ("lora_unet_blocks_0_to_q.lora_up.weight", &[3, 1]);
    assert_eq!(refusal(&[DOWN, UP], &[]), "");
    let flat: &[(&str, &[usize])] =
        &[("blocks.0.conv.lora_A.weight", &[1, 2]), ("blocks.0.conv.lora_B.weight", &[3, 1])];
    assert_eq!(refusal(flat, &[]), "");
    let bent: &[(&str, &[usize])] = &[
        ("unet.blocks.0.to_k.lora.down.weight", &[1, 2, 1, 1]),
        ("unet.blocks.0.to_k.lora.up.weight", &[3, 1, 1, 1]),
        ("unet.blocks.0.norm.diff", &[3]),
    ];
    assert_eq!(refusal(bent, &[]), "");
    assert_eq!(refusal(&[("lora_unet_blocks_0_to_k.diff", &[3, 2])], &[]), "");
    let with = |more: (&'static str, &'static [usize])| refusal(&[DOWN, UP, more], &[]);
    for (got, what) in [
        (refusal(&[UP], &[]), "one of the two factors"),
        (refusal(&[DOWN, ("lora_unet_blocks_0_to_q.lora_up.weight", &[4, 1])], &[]), "is [3, 2]"),
        (with(("lora_unet_blocks_1_to_q.lora_down.weight", &[1, 2])), "no module `blocks_1_to_q`"),
        (with(("lora_unet_blocks_0_to_q.hada_w1_a", &[1, 2])), "several kinds"),
        (with(("lora_unet_blocks_0_to_q.dora_scale", &[3])), "neither [3, 1…] nor [1, 2, 1…]"),
        (with(("lora_unet_blocks_0_to_q.dora_scale", &[2, 1])), "neither [3, 1…]"),
        (with(("lora_unet_blocks_0_to_k.dora_scale", &[3, 1])), "one of the two factors"),
        (with(("lora_unet_blocks_0_to_q.lora_mid.weight", &[1, 1, 3, 3])), "is [3, 2]"),
        (with(("lora_unet_blocks_0_to_q.lora_mid.weight", &[2, 1, 3, 3])), "no factors of a conv"),
        (with(("lora_unet_blocks_0_to_q.oft_blocks", &[3, 2, 2])), "it is of OFT"),
        (with(("lora_unet_blocks_0_to_q.alpha", &[2])), "no finite number"),
        (with(("lora_unet_blocks_0_to_q", &[2])), "none of a LoRA"),
        (with(("lora_unet_blocks_0.to_q.lora_up.weight", &[3, 1])), "has its place"),
        (
            with(("lora_unet_blocks_0_norm.diff", &[4])),
            "it is [4], and `blocks.0.norm.weight` is [3]",
        ),
        (with(("lora_unet_blocks_0_to_k.diff", &[2, 3])), "it is [2, 3]"),
        (
            refusal(
                &[("lora_te_x.lora_down.weight", &[1, 2]), ("lora_te_x.lora_up.weight", &[3, 1])],
                &[],
            ),
            "no module of this name",
        ),
        (
            refusal(&[("layer.lora_A.weight", &[1, 2]), ("layer.lora_B.weight", &[3, 1])], &[]),
            "twice, below `one.` and below `two.`",
        ),
        (
            refusal(
                &[
                    DOWN,
                    UP,
                    ("transformer.blocks.0.to_q.lora_A.weight", &[1, 2]),
                    ("transformer.blocks.0.to_q.lora_B.weight", &[3, 1]),
                ],
                &[],
            ),
            "have the same modules in BASE",
        ),
        (refusal(&[("blocks.0.to_q.weight", &[3, 2])], &[]), "an adapter is a directory of PEFT"),
    ] {
        assert!(got.contains(what), "{what}: {got:?}");
    }
}

/// Tensors of LoHa and LoKr that do not fit each other or the base.
#[test]
fn products_of_two_matrices_are_checked() {
    let of = |tensors: &[(&str, &[usize])]| {
        let names = tensors
            .iter()
            .map(|(name, _)| format!("lora_unet_blocks_0_to_q.{name}"));
        let names: Vec<String> = names.collect();
        let shapes = tensors.iter().map(|(_, shape)| *shape);
        let named: Vec<(&str, &[usize])> = names.iter().map(String::as_str).zip(shapes).collect();
        refusal(&named, &[])
    };
    const LOHA: [(&str, &[usize]); 4] = [
        ("hada_w1_a", &[3, 2]),
        ("hada_w1_b", &[2, 2]),
        ("hada_w2_a", &[3, 2]),
        ("hada_w2_b", &[2, 2]),
    ];
    let loha = |at: usize, shape| {
        let mut tensors = LOHA;
        tensors[at].1 = shape;
        of(&tensors)
    };
    let lokr = |w1: &[usize], w2: &[usize]| of(&[("lokr_w1", w1), ("lokr_w2", w2)]);
    assert_eq!(of(&LOHA), "");
    assert_eq!(lokr(&[3, 1], &[1, 2]), "");
    assert_eq!(lokr(&[1, 2], &[3, 1, 1, 1]), "");
    assert_eq!(of(&[("lokr_w1", &[1, 1]), ("lokr_w2_a", &[3, 7]), ("lokr_w2_b", &[7, 2])]), "");
    for (got, what) in [
        (of(&LOHA[..3]), "one of the factors"),
        (of(&LOHA[..2]), "the other matrix"),
        (loha(0, &[3, 3]), "no factors of a matrix"),
        (loha(0, &[3]), "no factor of a matrix"),
        (loha(1, &[2, 3]), "it makes [3, 3], and `lora_unet_blocks_0_to_q.hada_w2_a` [3, 2]"),
        (loha(1, &[2]), "no factors of a matrix"),
        (loha(3, &[0, 2]), "it has no values"),
        (
            of(&[LOHA[0], LOHA[1], ("hada_w2_a", &[3, 1]), ("hada_w2_b", &[1, 2])]),
            "nothing tells the scale",
        ),
        (of(&[LOHA[0], LOHA[1], LOHA[2], LOHA[3], ("lokr_w1", &[1, 1])]), "has its place"),
        (lokr(&[3, 2], &[1, 2]), "it makes [3, 4], and `blocks.0.to_q` is [3, 2]"),
        (lokr(&[3, 1, 2], &[1, 2]), "it is no matrix"),
        (lokr(&[3], &[1, 2]), "it is no matrix"),
        (lokr(&[3, 1], &[2]), "it is no matrix"),
        (of(&[("lokr_w1", &[3, 2])]), "the other matrix"),
        (of(&[("lokr_w1", &[3, 1]), ("lokr_w2_a", &[1, 1])]), "one of the factors"),
        (
            of(&[("lokr_w1", &[3, 1]), ("lokr_w1_a", &[3, 1]), ("lokr_w2", &[1, 2])]),
            "and factors of it, too",
        ),
        (
            of(&[
                ("lokr_w1", &[3, 1]),
                ("lokr_w2_a", &[1, 1]),
                ("lokr_w2_b", &[1, 2]),
                ("lokr_t2", &[1, 2, 1, 1]),
            ]),
            "no factors of a convolution",
        ),
        (
            of(&[("lokr_w1", &[3, 1]), ("lokr_w2", &[1, 2]), ("lora_mid.weight", &[1, 1])]),
            "several kinds",
        ),
    ] {
        assert!(got.contains(what), "{what}: {got:?}");
    }
}

/// Lengths of LyCORIS are merged with weight 1 alone, where the module's rows lie together.
#[test]
fn lengths_are_merged_as_they_were_trained() {
    let root = crate::common::tempdir().unwrap();
    let adapter = open("lycoris-dora").with_weight(0.5);
    let out = root.path().join("out");
    let error = parse(base("base-layers"))
        .unwrap()
        .convert(&out, options(TargetDtype::F32, vec![adapter]))
        .unwrap_err();
    assert!(error.to_string().contains("merged with weight 1"), "{error}");
    let lengths =
        raw("lycoris_transformer_blocks_0_attn_to_q.dora_scale", "F32", &[16, 1], f32s(&[1.0; 16]));
    let tensors = parse(adapter_data("flux-lokr")).unwrap();
    let tensors = tensors
        .tensors()
        .map(|t| raw(t.name(), "F32", t.shape(), t.bytes().unwrap().into_owned()))
        .chain([lengths]);
    let path = root.path().join("adapter.safetensors");
    std::fs::write(&path, file(&tensors.collect::<Vec<_>>(), &[])).unwrap();
    for (base, is_whole) in [("flux", true), ("flux-original", false)] {
        let adapter = Adapter::open(&path).unwrap();
        let run = parse(adapter_data(base))
            .unwrap()
            .convert(root.path().join(base), options(TargetDtype::F32, vec![adapter]));
        match run {
            Ok(_) => assert!(is_whole),
            Err(error) => {
                assert!(!is_whole && error.to_string().contains("lie elsewhere"), "{error}");
            }
        }
    }
}

/// The adapter `adapter` under the names of `base`, which is a part of a pipeline of this class, or
/// under those that kohya's scripts have for it.
fn renamed(
    root: &Path,
    base: &str,
    class: Option<&str>,
    adapter: &Path,
    kohya_names: bool,
) -> anamnesis::Result<ParsedModel> {
    let part = root.join("part");
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir(&part).unwrap();
    std::fs::copy(adapter_data(base), part.join("diffusion_pytorch_model.safetensors")).unwrap();
    if let Some(class) = class {
        std::fs::write(part.join("config.json"), json!({"_class_name": class}).to_string())
            .unwrap();
    }
    let mut options = ConvertOptions::new(anamnesis::ConvertTarget::Safetensors);
    (options.base, options.single_file) = (Some(part), true);
    options.kohya_names = kohya_names;
    let out = root.join("renamed.safetensors");
    let _ = std::fs::remove_file(&out);
    parse(adapter)?.convert(&out, options)?;
    parse(out)
}

/// What has the names of a base is merged into it with the same values, and loads in diffusers
/// (`generate/check_adapters_image.py`).
#[test]
fn names_follow_a_base() {
    const FLUX: Option<&str> = Some("FluxTransformer2DModel");
    const UNET: Option<&str> = Some("UNet2DConditionModel");
    let root = crate::common::tempdir().unwrap();
    for (base, class, adapter, begin) in [
        ("unet", UNET, "kohya", "unet."),
        ("unet", UNET, "processors", "unet."),
        ("unet", UNET, "kohya", "lora_unet_"),
        ("flux", FLUX, "flux-kohya", "transformer."),
        ("flux", FLUX, "metadata", "transformer."),
        ("flux", FLUX, "flux-all", "transformer."),
        ("flux", FLUX, "flux-kohya", "lora_unet_"),
        ("flux", FLUX, "metadata", "lora_unet_"),
        ("flux", FLUX, "flux-all", "lora_unet_"),
        ("flux-original", None, "flux-kohya", "diffusion_model."),
        ("flux-original", None, "metadata", "diffusion_model."),
        ("flux-original", None, "flux-all", "diffusion_model."),
        ("flux-original", None, "flux-all", "lora_unet_"),
        ("checkpoint", None, "kohya", "lora_"),
    ] {
        let is_kohya = begin.starts_with("lora_");
        let made = renamed(root.path(), base, class, &adapter_data(adapter), is_kohya).unwrap();
        assert!(!made.metadata().contains_key("lora_adapter_metadata"), "{adapter}");
        let ends = match is_kohya {
            true => &[".lora_down.weight", ".lora_up.weight", ".alpha"][..],
            false => &[".lora_A.weight", ".lora_B.weight"],
        };
        for t in made.tensors() {
            assert!(t.name().starts_with(begin), "{}", t.name());
            assert!(ends.iter().any(|end| t.name().ends_with(end)), "{}", t.name());
        }
        let (out, path) = (root.path().join("out"), root.path().join("renamed.safetensors"));
        let (got, _) = merged_with_notes(&adapter_data(base), &path, &out);
        if base == "checkpoint" {
            let (want, _) = merged_with_notes(&adapter_data(base), &adapter_data(adapter), &out);
            assert!(contents(&[&got]) == contents(&[&want]));
            continue;
        }
        let want = expected(base, adapter);
        for t in want.tensors() {
            let (want, got) = (values(&want, t.name()), values(&got, t.name()));
            let most = want.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            // Scales that are no powers of two round a factor.
            let limit = if adapter == "metadata" {
                2e-7 * most
            } else {
                0.0
            };
            let differs =
                |(want, got): (&f32, &f32)| ulps(*want, *got) > 1 && (want - got).abs() > limit;
            assert!(!want.iter().zip(&got).any(differs), "{base} {adapter} {}", t.name());
        }
    }
}

/// Names and bytes are those of diffusers' converter.
#[test]
fn names_are_those_of_diffusers() {
    let root = crate::common::tempdir().unwrap();
    let class = Some("FluxTransformer2DModel");
    let got = renamed(root.path(), "flux", class, &adapter_data("flux-kohya"), false).unwrap();
    let want = parse(adapter_data("converted-flux-kohya")).unwrap();
    assert_eq!(got.tensors().len(), want.tensors().len());
    for t in want.tensors() {
        let same = got
            .tensor(t.name())
            .unwrap_or_else(|| panic!("{}", t.name()));
        assert_eq!((t.dtype(), t.shape()), (same.dtype(), same.shape()), "{}", t.name());
        assert!(t.bytes().unwrap() == same.bytes().unwrap(), "{}", t.name());
    }
}

#[test]
fn other_names_have_limits() {
    let root = crate::common::tempdir().unwrap();
    for (base, class, adapter, what) in [
        ("checkpoint", None, "kohya", "no part of its diffusion model"),
        ("unet", None, "kohya", "the config.json that belongs beside it"),
        ("unet", Some("AutoencoderKL"), "kohya", "`AutoencoderKL`"),
        ("unet", Some("UNet2DConditionModel"), "norms", "products of two factors"),
        ("flux", Some("FluxTransformer2DModel"), "flux-lokr", "products of two factors"),
        ("flux", Some("FluxTransformer2DModel"), "kohya", "no module of this name"),
    ] {
        let error = renamed(root.path(), base, class, &adapter_data(adapter), false).unwrap_err();
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
    let class = Some("SD3Transformer2DModel");
    let error = renamed(root.path(), "flux", class, &adapter_data("flux-all"), true).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("as its authors do; give their file"),
        "{error}"
    );
    let mut options = ConvertOptions::new(anamnesis::ConvertTarget::Safetensors);
    options.kohya_names = true;
    let out = root.path().join("out.safetensors");
    let error = parse(adapter_data("kohya"))
        .unwrap()
        .convert(&out, options)
        .unwrap_err();
    assert!(error.to_string().contains("--kohya-names"), "{error}");
}

/// Settings beside an adapter of PEFT say its scales; diffusers writes alphas as integers.
#[test]
fn scales_come_along() {
    const A: (&str, &[usize]) = ("base_model.model.blocks.0.to_q.lora_A.weight", &[3, 4]);
    const B: (&str, &[usize]) = ("base_model.model.blocks.0.to_q.lora_B.weight", &[4, 3]);
    let root = crate::common::tempdir().unwrap();
    let (base, adapter) = (root.path().join("base"), root.path().join("adapter"));
    std::fs::create_dir(&base).unwrap();
    std::fs::create_dir(&adapter).unwrap();
    let tensor = |(name, shape): (&str, &[usize])| {
        raw(name, "F32", shape, f32s(&vec![1.0; shape.iter().product()]))
    };
    let weight = [tensor(("blocks.0.to_q.weight", &[4, 4]))];
    std::fs::write(base.join("model.safetensors"), file(&weight, &[])).unwrap();
    let path = adapter.join("adapter_model.safetensors");
    std::fs::write(&path, file(&[tensor(A), tensor(B)], &[])).unwrap();
    let config = json!({"peft_type": "LORA", "r": 3, "lora_alpha": 6});
    std::fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
    for (input, kohya_names) in [(&path, false), (&path, true), (&adapter, false), (&adapter, true)]
    {
        let mut options = ConvertOptions::new(anamnesis::ConvertTarget::Safetensors);
        (options.base, options.single_file) = (Some(base.clone()), true);
        options.kohya_names = kohya_names;
        let out = root.path().join("out.safetensors");
        let _ = std::fs::remove_file(&out);
        parse(input).unwrap().convert(&out, options).unwrap();
        let got = parse_bytes(std::fs::read(&out).unwrap()).unwrap();
        match kohya_names {
            true => {
                assert_eq!(values(&got, "lora_unet_blocks_0_to_q.lora_down.weight"), [1.0; 12]);
                assert_eq!(values(&got, "lora_unet_blocks_0_to_q.alpha"), [6.0]);
            }
            false => {
                let a = values(&got, "diffusion_model.blocks.0.to_q.lora_A.weight");
                let b = values(&got, "diffusion_model.blocks.0.to_q.lora_B.weight");
                assert_eq!((a[0] * b[0], a.len()), (2.0, 12));
            }
        }
    }
    let wrong = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 6});
    std::fs::write(adapter.join("adapter_config.json"), wrong.to_string()).unwrap();
    let mut options = ConvertOptions::new(anamnesis::ConvertTarget::Safetensors);
    (options.base, options.single_file) = (Some(base.clone()), true);
    let error = parse(&path)
        .unwrap()
        .convert(root.path().join("wrong.safetensors"), options)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("its rank is 3, and 4 in `adapter_config.json`"),
        "{error}"
    );

    let base = [raw("to_q.weight", "F32", &[2, 2], f32s(&[0.0; 4]))];
    let adapter = [
        raw("lora_unet_to_q.lora_down.weight", "F32", &[1, 2], f32s(&[1.0, 2.0])),
        raw("lora_unet_to_q.lora_up.weight", "F32", &[2, 1], f32s(&[1.0, 0.5])),
        raw("lora_unet_to_q.alpha", "I64", &[], 4_i64.to_le_bytes().to_vec()),
    ];
    let class = Some("UNet2DConditionModel");
    let got = named_for((&base, class), &adapter, true).unwrap();
    assert_eq!(values(&got, "lora_unet_to_q.alpha"), [4.0]);
}

/// Settings in the metadata are those of PEFT.
#[test]
fn metadata_are_settings() {
    let pair: &[(&str, &[usize])] = &[
        ("transformer.blocks.0.to_q.lora_A.weight", &[1, 2]),
        ("transformer.blocks.0.to_q.lora_B.weight", &[3, 1]),
    ];
    let with = |settings: &str| refusal(pair, &[("lora_adapter_metadata", settings)]);
    assert_eq!(with(r#"{"transformer.r": 1, "transformer.lora_alpha": 2}"#), "");
    assert_eq!(with(r#"{"unet.r": 9, "unet.lora_alpha": 2}"#), "");
    for (settings, what) in [
        (r#"{"transformer.r": 2, "transformer.lora_alpha": 2}"#, "its rank is 1, and 2"),
        (r#"{"transformer.r": 1}"#, "lora_alpha"),
        (
            r#"{"transformer.r": 1, "transformer.lora_alpha": 2, "transformer.use_dora": true}"#,
            "use_dora",
        ),
        (
            r#"{"transformer.r": 1, "transformer.alpha": 2, "transformer.peft_type": "LOHA"}"#,
            "peft_type",
        ),
        (r#"{"transformer.r": 1, "transformer.lora_alpha": 2, "transformer.new": true}"#, "new"),
        ("{", "lora_adapter_metadata"),
    ] {
        let got = with(settings);
        assert!(got.contains(what), "{settings}: {got:?}");
    }
    let whole: &[(&str, &[usize])] = &[
        ("transformer.blocks.0.to_q.lokr_w1", &[3, 1]),
        ("transformer.blocks.0.to_q.lokr_w2", &[1, 2]),
    ];
    let of_lokr =
        r#"{"transformer.r": 9, "transformer.alpha": 2, "transformer.peft_type": "LOKR"}"#;
    assert_eq!(refusal(whole, &[("lora_adapter_metadata", of_lokr)]), "");
    let alpha: (&str, &[usize]) = ("transformer.blocks.0.to_q.alpha", &[1]);
    let settings = r#"{"transformer.r": 1, "transformer.lora_alpha": 2}"#;
    let got = refusal(&[pair, &[alpha]].concat(), &[("lora_adapter_metadata", settings)]);
    assert!(got.contains("another alpha"), "{got:?}");
}

/// Without one of its tensors an adapter is refused, or a module has no scale of its own: nothing
/// else is lost.
#[test]
fn no_tensor_is_missed() {
    let root = crate::common::tempdir().unwrap();
    let adapter = parse(adapter_data("kohya")).unwrap();
    let tensors: Vec<Raw> = adapter
        .tensors()
        .map(|t| raw(t.name(), "F32", t.shape(), t.bytes().unwrap().into_owned()))
        .collect();
    let base = parse(adapter_data("checkpoint")).unwrap();
    let path = root.path().join("adapter.safetensors");
    for left_out in (0..tensors.len()).step_by(7) {
        let mut some = tensors.clone();
        let name = some.remove(left_out).name;
        std::fs::write(&path, file(&some, &[])).unwrap();
        let options = options(TargetDtype::F32, vec![Adapter::open(&path).unwrap()]);
        let merged = base.plan(options);
        assert_eq!(merged.is_ok(), name.ends_with(".alpha"), "{name}");
    }
}

/// A layer of `modules.jsonl`: its names on all sides, and factors that have one value each.
struct Layer {
    line: serde_json::Value,
}

impl Layer {
    /// All of a model.
    fn of(model: &str) -> Vec<Self> {
        let path = crate::common::data().join("adapters_image/modules.jsonl");
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text
            .lines()
            .map(|line| Self { line: serde_json::from_str(line).unwrap() });
        let layers: Vec<Self> = lines.filter(|layer| layer.text("model") == model).collect();
        assert!(layers.len() > 5, "{model}");
        layers
    }

    fn text(&self, key: &str) -> &str {
        self.line[key].as_str().unwrap_or_default()
    }

    fn number(&self, key: &str) -> Option<f32> {
        self.line[key].as_f64().map(|x| x as f32)
    }

    fn shapes(&self) -> [Vec<usize>; 2] {
        ["a", "b"].map(|key| {
            let shape = self.line[key].as_array().unwrap().iter();
            shape.map(|n| n.as_u64().unwrap() as usize).collect()
        })
    }

    /// The two factors with these values, called `names`.
    fn factors(&self, names: [String; 2], values: [f32; 2]) -> Vec<Raw> {
        let factors = names.into_iter().zip(self.shapes()).zip(values);
        factors
            .map(|((name, shape), value)| {
                raw(&name, "F32", &shape, f32s(&vec![value; shape.iter().product()]))
            })
            .collect()
    }

    fn pair(&self, key: &str) -> Option<[f32; 2]> {
        let values = self.line[key].as_array()?;
        Some([0, 1].map(|at| values[at].as_f64().unwrap() as f32))
    }

    /// The layer in a LoRA of kohya's scripts or, if it has no alpha, of ComfyUI.
    fn of_kohya(&self) -> Vec<Raw> {
        let name = match self.number("alpha") {
            Some(_) => format!("lora_unet_{}", self.text("authors").replace('.', "_")),
            None => format!("diffusion_model.{}", self.text("authors")),
        };
        let names = ["lora_down", "lora_up"].map(|end| format!("{name}.{end}.weight"));
        let mut tensors = self.factors(names, self.pair("values").unwrap());
        let alpha = self.number("alpha");
        tensors
            .extend(alpha.map(|alpha| raw(&format!("{name}.alpha"), "F32", &[], f32s(&[alpha]))));
        tensors
    }

    /// The layer in a LoRA of diffusers, with the values that its converter makes.
    fn of_diffusers(&self, part: &str) -> Vec<Raw> {
        let names =
            ["A", "B"].map(|end| format!("{part}.{}.lora_{end}.weight", self.text("module")));
        let values = self.pair("to").or(self.pair("values")).unwrap();
        self.factors(names, values)
    }

    /// Its weight under the name `key`.
    fn weight(&self, key: &str, begin: &str) -> Raw {
        let [a, b] = self.shapes();
        let shape: Vec<usize> = [b[0]].into_iter().chain(a[1..].iter().copied()).collect();
        let zeros = f32s(&vec![0.0; shape.iter().product()]);
        raw(&format!("{begin}{}.weight", self.text(key)), "F32", &shape, zeros)
    }
}

/// The LoRA `adapter` under the names of the base of `weights`, a part of a pipeline of this class.
fn named_for(
    (weights, class): (&[Raw], Option<&str>),
    adapter: &[Raw],
    kohya_names: bool,
) -> anamnesis::Result<ParsedModel> {
    let root = crate::common::tempdir().unwrap();
    let (part, path) = (root.path().join("part"), root.path().join("adapter.safetensors"));
    std::fs::create_dir(&part).unwrap();
    std::fs::write(part.join("model.safetensors"), file(weights, &[])).unwrap();
    if let Some(class) = class {
        let config = json!({"_class_name": class}).to_string();
        std::fs::write(part.join("config.json"), config).unwrap();
    }
    std::fs::write(&path, file(adapter, &[])).unwrap();
    let mut options = ConvertOptions::new(anamnesis::ConvertTarget::Safetensors);
    (options.base, options.single_file) = (Some(part), true);
    options.kohya_names = kohya_names;
    let out = root.path().join("out.safetensors");
    parse(path)?.convert(&out, options)?;
    parse_bytes(std::fs::read(out).unwrap())
}

/// Names and values of factors as diffusers has them, which it makes of those of kohya's scripts for
/// all layers of SDXL, Qwen-Image and Wan.
#[test]
fn all_layers_have_the_names_of_diffusers() {
    for (model, class, part) in [
        ("sdxl", "UNet2DConditionModel", "unet"),
        ("qwen", "QwenImageTransformer2DModel", "transformer"),
        ("wan", "WanTransformer3DModel", "transformer"),
        ("wan-around", "WanTransformer3DModel", "transformer"),
    ] {
        let layers = Layer::of(model);
        let weights: Vec<Raw> = layers
            .iter()
            .map(|layer| layer.weight("module", ""))
            .collect();
        let adapter: Vec<Raw> = layers.iter().flat_map(Layer::of_kohya).collect();
        let got = named_for((&weights, Some(class)), &adapter, false).unwrap();
        assert_eq!(got.tensors().len(), 2 * layers.len());
        for layer in layers {
            let name = layer.text("module");
            let [a, b] = ["A", "B"].map(|x| {
                let t = got.tensor(&format!("{part}.{name}.lora_{x}.weight"));
                let t = t.unwrap_or_else(|| panic!("{name}"));
                (t.shape().to_vec(), values(&got, t.name()))
            });
            assert_eq!([&a.0, &b.0], layer.shapes().each_ref(), "{name}");
            let product = a.1[0] * b.1[0] * a.0[0] as f32;
            assert_eq!(Some(product), layer.number("product"), "{name}");
            if let Some(to) = layer.pair("to") {
                assert!(
                    a.1.iter().all(|x| *x == to[0]) && b.1.iter().all(|x| *x == to[1]),
                    "{name}"
                );
            }
        }
    }
}

/// The names of kohya's scripts for a LoRA of diffusers, whose scales are in the factors: alphas are
/// ranks.
#[test]
fn all_layers_have_the_names_of_kohya() {
    type KohyaName = fn(&Layer) -> String;
    let of_authors: KohyaName =
        |layer| format!("lora_unet_{}", layer.text("authors").replace('.', "_"));
    let of_diffusers: KohyaName = |layer| layer.text("kohya").to_owned();
    for (model, key, class, part, kohya) in [
        ("sdxl", "module", Some("UNet2DConditionModel"), "unet", of_diffusers),
        ("sdxl", "authors", None, "unet", of_authors),
        ("qwen", "module", Some("QwenImageTransformer2DModel"), "transformer", of_authors),
        ("qwen", "authors", None, "transformer", of_authors),
        ("wan", "module", Some("WanTransformer3DModel"), "transformer", of_authors),
        ("wan", "authors", None, "transformer_2", of_authors),
        ("text_encoder", "module", Some("CLIPTextModel"), "text_encoder", of_diffusers),
        (
            "text_encoder_2",
            "module",
            Some("CLIPTextModelWithProjection"),
            "text_encoder_2",
            of_diffusers,
        ),
    ] {
        let layers = Layer::of(model);
        let begin = if class.is_none() {
            "model.diffusion_model."
        } else {
            ""
        };
        let weights: Vec<Raw> = layers
            .iter()
            .map(|layer| layer.weight(key, begin))
            .collect();
        let adapter: Vec<Raw> = layers
            .iter()
            .flat_map(|layer| layer.of_diffusers(part))
            .collect();
        let got = named_for((&weights, class), &adapter, true).unwrap();
        assert_eq!(got.tensors().len(), 3 * layers.len());
        for layer in layers {
            let name = kohya(&layer);
            let names = ["lora_down", "lora_up"].map(|end| format!("{name}.{end}.weight"));
            let value = layer.pair("to").or(layer.pair("values")).unwrap();
            for want in layer.factors(names, value) {
                let same = got
                    .tensor(&want.name)
                    .unwrap_or_else(|| panic!("{}", want.name));
                assert_eq!((same.shape(), &*same.bytes().unwrap()), (&*want.shape, &*want.bytes));
            }
            let alpha = got.tensor(&format!("{name}.alpha")).unwrap();
            assert!(alpha.shape().is_empty());
            assert_eq!(values(&got, alpha.name()), [layer.shapes()[0][0] as f32], "{name}");
        }
    }
}
