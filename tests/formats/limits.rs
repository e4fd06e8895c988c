//! `ParseLimits`: each limit for each container, at the smallest value that suffices and one below
//! it, for parsing and for decoding. By default only the permanent caps apply.

use anamnesis::{AnamnesisError, ParseLimits, Result, TargetDtype, parse_bytes_with_limits};

use crate::common::{file, raw};

/// The limit that a result exceeds; empty for a success.
fn exceeded<T>(result: Result<T>) -> &'static str {
    match result {
        Ok(_) => "",
        Err(AnamnesisError::LimitExceeded { limit, .. }) => limit,
        Err(error) => panic!("{error}"),
    }
}

/// A limit: its name in errors, and the function that sets it.
type Axis = (&'static str, fn(u64) -> ParseLimits);

const SINGLE: Axis =
    ("max_single_alloc_bytes", |n| ParseLimits::unbounded().with_max_single_alloc(n));

const TOTAL: Axis = ("max_total_bytes", |n| ParseLimits::unbounded().with_max_total_bytes(n));

const ITEMS: Axis = ("max_item_count", |n| ParseLimits::unbounded().with_max_item_count(n));

#[cfg(all(feature = "npz", feature = "pth"))]
const DECOMPRESSED: Axis =
    ("max_decompressed_bytes", |n| ParseLimits::unbounded().with_max_decompressed_bytes(n));

#[cfg(all(feature = "npz", feature = "pth"))]
const RATIO: Axis =
    ("max_decompression_ratio", |n| ParseLimits::unbounded().with_max_decompression_ratio(n));

/// The smallest limit under which `attempt` succeeds; one below it, the error must name the limit.
fn least(context: &str, (name, with): Axis, attempt: impl Fn(&ParseLimits) -> Result<()>) -> u64 {
    assert_eq!(exceeded(attempt(&with(u64::MAX))), "", "{context} {name}");
    let (mut low, mut high) = (0, 1 << 40);
    while low < high {
        let middle = (low + high) / 2;
        match exceeded(attempt(&with(middle))) {
            "" => high = middle,
            limit => {
                assert_eq!(limit, name, "{context} at {middle}");
                low = middle + 1;
            }
        }
    }
    low
}

fn parsing(bytes: &[u8]) -> impl Fn(&ParseLimits) -> Result<()> + use<'_> {
    |limits| parse_bytes_with_limits(bytes.to_vec(), limits).map(drop)
}

fn model() -> Vec<u8> {
    let tensors = [
        raw("a.weight", "F8_E4M3", &[4, 8], vec![0x38; 32]),
        raw("a.weight_scale", "F32", &[], 1f32.to_le_bytes().to_vec()),
        raw("b", "U8", &[10], vec![0; 10]),
    ];
    file(&tensors, &[])
}

#[test]
fn safetensors() {
    let bytes = model();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(least("safetensors", SINGLE, parsing(&bytes)), header);
    assert_eq!(least("safetensors", TOTAL, parsing(&bytes)), header);
    assert_eq!(least("safetensors", ITEMS, parsing(&bytes)), 3);
    let from_reader = |l: &ParseLimits| {
        anamnesis::parse_safetensors_header_from_reader_with_limits(&bytes[..], l).map(drop)
    };
    assert_eq!(least("safetensors", SINGLE, from_reader), header);
    let of_slice =
        |l: &ParseLimits| anamnesis::parse_safetensors_header_with_limits(&bytes, l).map(drop);
    assert_eq!(least("safetensors", ITEMS, of_slice), 3);
    let dir = crate::common::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), &bytes).unwrap();
    let of_file = |l: &ParseLimits| {
        anamnesis::parse_with_limits(dir.path().join("model.safetensors"), l).map(drop)
    };
    assert_eq!(least("safetensors", ITEMS, of_file), 3);
    // The files of a directory count together.
    let of_directory = |l: &ParseLimits| anamnesis::parse_with_limits(dir.path(), l).map(drop);
    assert_eq!(least("safetensors", TOTAL, of_directory), header);
    // So do its config and its index.
    let config = b"{\"quantization_config\": {}}";
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    assert_eq!(least("a config", TOTAL, of_directory), header + config.len() as u64);
    assert_eq!(least("a config", TOTAL, of_file), header + config.len() as u64);
    let map = ["a.weight", "a.weight_scale", "b"].map(|name| (name, "model.safetensors"));
    let index =
        serde_json::json!({ "weight_map": std::collections::BTreeMap::from(map) }).to_string();
    std::fs::write(dir.path().join("model.safetensors.index.json"), &index).unwrap();
    assert_eq!(
        least("an index", TOTAL, of_directory),
        header + (config.len() + index.len()) as u64
    );
    assert_eq!(least("an index", SINGLE, of_directory), header.max(index.len() as u64));
}

/// Each call that decodes has the whole limit for itself, and is refused before it begins.
#[test]
#[cfg_attr(not(feature = "remember"), ignore = "it decodes")]
fn decoding() {
    let bytes = model();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let recovered = 64 + 10;
    assert!(header > recovered);
    let bounded = |l: &ParseLimits| parse_bytes_with_limits(bytes.clone(), l);
    let model = bounded(&TOTAL.1(header)).unwrap();
    assert_eq!(model.inspect().dequantized_size, recovered);
    for _ in 0..3 {
        model.remember_to_bytes(TargetDtype::BF16).unwrap();
    }
    let large = raw("large", "U8", &[100_000], vec![0; 100_000]);
    let bytes = file(&[large], &[]);
    let dir = crate::common::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    type Make<'a> = &'a dyn Fn(&anamnesis::ParsedModel) -> Result<()>;
    let makes: [Make<'_>; 4] = [
        &|model| model.remember_to_bytes(TargetDtype::BF16).map(drop),
        &|model| {
            model
                .for_each_tensor(TargetDtype::BF16, |_, _, _, _| panic!("it is too late"))
                .map(drop)
        },
        &|model| {
            model
                .remember_to_writer(std::io::sink(), TargetDtype::BF16)
                .map(drop)
        },
        &|model| model.remember(&out, TargetDtype::BF16).map(drop),
    ];
    for make in makes {
        let model = parse_bytes_with_limits(bytes.clone(), &TOTAL.1(99_999)).unwrap();
        assert_eq!(exceeded(make(&model)), "max_total_bytes");
        assert!(!out.exists());
    }
    // Streaming needs memory for one tensor at a time.
    let single = |l: &ParseLimits| {
        parse_bytes_with_limits(bytes.clone(), l)?
            .for_each_tensor(TargetDtype::BF16, |_, _, _, _| Ok(()))
            .map(drop)
    };
    assert_eq!(least("a tensor", SINGLE, single), 100_000);
}

#[cfg(feature = "gguf")]
#[test]
fn gguf() {
    let words: Vec<u8> = ["x", "yy", "zzz"]
        .iter()
        .flat_map(|word| crate::common::gguf::string(word))
        .collect();
    let words = [&8u32.to_le_bytes()[..], &3u64.to_le_bytes(), &words].concat();
    let gguf = crate::common::gguf::Gguf::default()
        .text("general.architecture", &"long ".repeat(100))
        .key("words", 9, &words);
    let bytes = gguf
        .tensor("a", 0, &[4], &[0; 16])
        .tensor("b", 8, &[32], &[0; 34])
        .file();
    assert_eq!(least("gguf", ITEMS, parsing(&bytes)), 4);
    assert_eq!(least("gguf", SINGLE, parsing(&bytes)), 500);
    let total = least("gguf", TOTAL, parsing(&bytes));
    assert!((600..bytes.len() as u64).contains(&total), "{total}");
    // In-memory output counts as well.
    let dir = crate::common::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let view = |l: &ParseLimits| anamnesis::parse_gguf_with_limits(&path, l).map(drop);
    assert!(least("gguf", TOTAL, view) > total);
}

#[cfg(all(feature = "npz", feature = "pth"))]
#[test]
fn archives() {
    use crate::common::pickle;
    use crate::common::zip::{Member, Zip, dict, npy};

    let array = npy(&dict("'|u1'", "False", "(10000,)"), &[0; 10_000]);
    let bytes =
        Zip::of(&[Member::stored("a.npy", &array), Member::deflated("b.npy", &array)]).file();
    assert_eq!(least("npz", ITEMS, parsing(&bytes)), 2);
    assert!((100..400).contains(&least("npz", SINGLE, parsing(&bytes))));
    let ratio = least("npz", RATIO, parsing(&bytes));
    assert!((50..1032).contains(&ratio), "{ratio}");
    assert_eq!(
        least("npz, stored", RATIO, parsing(&Zip::of(&[Member::stored("a.npy", &array)]).file())),
        0
    );
    let dir = crate::common::tempdir().unwrap();
    let path = dir.path().join("a.npz");
    std::fs::write(&path, &bytes).unwrap();
    let arrays = |l: &ParseLimits| anamnesis::parse_npz_with_limits(&path, l).map(drop);
    assert_eq!(least("npz arrays", SINGLE, arrays), 10_000);
    assert_eq!(least("npz arrays", TOTAL, arrays), 20_000);

    let bytes = pickle::one(&pickle::good());
    assert_eq!(least("pth", ITEMS, parsing(&bytes)), 2);
    let content = pickle::dict(&pickle::good()).len() as u64 + 2;
    assert_eq!(least("pth", SINGLE, parsing(&bytes)), content);
    // The values of a pickle take more memory than its bytes.
    assert!(least("pth", TOTAL, parsing(&bytes)) > 2 * content);
    std::fs::write(&path, &bytes).unwrap();
    let pth = |l: &ParseLimits| {
        anamnesis::parse_pth_with_limits(&path, l)?
            .tensors()
            .map(drop)
    };
    assert_eq!(least("pth", ITEMS, pth), 2);
    let member =
        Member::deflated("m/data.pkl", &[b"\x80\x02", &pickle::dict(&pickle::good())[..]].concat());
    let deflated = Zip::of(&[member, Member::stored("m/data/0", &[0; 24])]).file();
    assert!(least("pth, deflated", RATIO, parsing(&deflated)) >= 1);

    let key = [b"(", &pickle::text("0")[..], b"l"].concat();
    let stream = pickle::stream(&pickle::dict(&pickle::good()), &key, &[(6, 24)]);
    assert_eq!(least("stream", ITEMS, parsing(&stream)), 1);
    assert!(least("stream", TOTAL, parsing(&stream)) > stream.len() as u64);
}

#[test]
fn qnat() {
    let path = crate::common::data().join("qnat/v1_block128.qnat");
    let bytes = std::fs::read(path).unwrap();
    let tensors = parse_bytes_with_limits(bytes.clone(), &ParseLimits::default())
        .unwrap()
        .tensors()
        .len();
    assert_eq!(least("qnat", ITEMS, parsing(&bytes)), tensors as u64);
    assert!(least("qnat", SINGLE, parsing(&bytes)) < 200);
}

/// A file of some MiB stands for GiB of zeros. What is in proportion to the file is no bomb.
#[cfg(all(feature = "npz", feature = "pth"))]
#[test]
fn decompression_bombs() {
    use crate::common::pickle;
    use crate::common::zip::{Member, Zip, dict, npy};

    const GIB: u64 = 1 << 30;
    let header = |n: u64| npy(&dict("'|u1'", "False", &format!("({n},)")), &[]);
    // Deflate makes 1032 bytes of one at most, so that the length is possible. The directory alone
    // is believed.
    let member = |name: &str, content: Vec<u8>, stored: usize, n: u64| {
        let mut member = Member::deflated(name, &content);
        member.data.resize(stored, 0);
        member.both(|h| {
            h.stored_len = stored as u32;
            h.len = (content.len() as u64 + n) as u32;
        })
    };
    let arrays = |count: usize, stored: usize, n: u64| {
        let one = |i: usize| member(&format!("{i}.npy"), header(n), stored, n);
        Zip::of(&(0..count).map(one).collect::<Vec<_>>()).file()
    };
    let by_default = |bytes: &[u8]| exceeded(parsing(bytes)(&ParseLimits::default()));
    let bomb = arrays(1, 2 << 20, 2 * GIB);
    assert_eq!(by_default(&bomb), "max_decompressed_bytes");
    let text = parsing(&bomb)(&ParseLimits::default()).unwrap_err();
    let text = text.to_string();
    for word in [
        "`0.npy`",
        "2147483",
        "1073741824",
        "--max-decompressed-bytes",
        "with_max_decompressed_bytes",
    ] {
        assert!(text.contains(word), "{text}");
    }
    let exact = least("a bomb", DECOMPRESSED, parsing(&bomb));
    assert_eq!(exact, 2 * GIB + header(2 * GIB).len() as u64);
    // Many members count together.
    assert_eq!(by_default(&arrays(48, 64 << 10, GIB / 32)), "max_decompressed_bytes");
    assert_eq!(by_default(&arrays(20, 64 << 10, GIB / 32)), "");
    // Masks and weights of any size: 4 GiB in 43 MiB.
    assert_eq!(by_default(&arrays(1, 43 << 20, 4 * GIB - 4096)), "");
    assert_eq!(least("masks", DECOMPRESSED, parsing(&arrays(2, 400, 30_000))), 0);

    let checkpoint = |stored: usize, n: u64| {
        let class = pickle::storage("ByteStorage", &pickle::text("0"), n as i64);
        let view = pickle::view(&class, 0, &[n as i64], &[1]);
        let content = [&b"\x80\x02"[..], &pickle::dict(&view)].concat();
        Zip::of(&[Member::stored("m/data.pkl", &content), member("m/data/0", vec![], stored, n)])
            .file()
    };
    assert_eq!(by_default(&checkpoint(2 << 20, 2 * GIB)), "max_decompressed_bytes");
    assert_eq!(by_default(&checkpoint(21 << 20, 2 * GIB)), "");
}

/// Headers with vocabularies of real sizes, up to twice the largest, are within the default limits.
#[cfg(feature = "gguf")]
#[test]
fn real_headers_are_within_the_caps() {
    let array = |n: u64, word: &dyn Fn(u64) -> String| {
        let mut out = [&8u32.to_le_bytes()[..], &n.to_le_bytes()].concat();
        (0..n).for_each(|i| out.extend(crate::common::gguf::string(&word(i))));
        out
    };
    for (tokens, merges) in [(201_088, 446_189), (800_000, 800_000)] {
        let gguf = crate::common::gguf::Gguf::default()
            .key("tokenizer.ggml.tokens", 9, &array(tokens, &|i| format!("token{i}")))
            .key("tokenizer.ggml.merges", 9, &array(merges, &|i| format!("m {i}")));
        let bytes = gguf.tensor("a", 0, &[4], &[0; 16]).file();
        let front =
            anamnesis::parse_gguf_front_matter_from_reader(std::io::Cursor::new(&bytes)).unwrap();
        assert_eq!(
            front.metadata["tokenizer.ggml.merges"]
                .as_array()
                .unwrap()
                .len() as u64,
            merges
        );
        parse_bytes_with_limits(bytes, &ParseLimits::default()).unwrap();
    }
}
