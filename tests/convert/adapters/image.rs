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

/// The adapter `adapter` under the names of `base`, which is a part of a pipeline of this class.
fn renamed(
    root: &Path,
    base: &str,
    class: Option<&str>,
    adapter: &Path,
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
    let out = root.join("renamed.safetensors");
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
        ("flux", FLUX, "flux-kohya", "transformer."),
        ("flux", FLUX, "metadata", "transformer."),
        ("flux", FLUX, "flux-all", "transformer."),
        ("flux-original", None, "flux-kohya", "diffusion_model."),
    ] {
        let made = renamed(root.path(), base, class, &adapter_data(adapter)).unwrap();
        assert!(!made.metadata().contains_key("lora_adapter_metadata"), "{adapter}");
        for t in made.tensors() {
            let ends = [".lora_A.weight", ".lora_B.weight"];
            assert!(t.name().starts_with(begin), "{}", t.name());
            assert!(ends.iter().any(|end| t.name().ends_with(end)), "{}", t.name());
        }
        let (out, path) = (root.path().join("out"), root.path().join("renamed.safetensors"));
        let (got, _) = merged_with_notes(&adapter_data(base), &path, &out);
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
    let got = renamed(root.path(), "flux", class, &adapter_data("flux-kohya")).unwrap();
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
        ("flux-original", None, "flux-all", "in one matrix with others"),
        ("checkpoint", None, "kohya", "no part of its diffusion model"),
        ("unet", None, "kohya", "the config.json that belongs beside it"),
        ("unet", Some("AutoencoderKL"), "kohya", "`AutoencoderKL`"),
        ("unet", Some("UNet2DConditionModel"), "norms", "products of two factors"),
        ("flux", Some("FluxTransformer2DModel"), "flux-lokr", "products of two factors"),
        ("flux", Some("FluxTransformer2DModel"), "kohya", "no module of this name"),
    ] {
        let error = renamed(root.path(), base, class, &adapter_data(adapter)).unwrap_err();
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
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
