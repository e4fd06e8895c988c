//! The table of pre-tokenizers: names and flags from llama.cpp's `src/llama-vocab.cpp`, steps as
//! they stand in the tokenizer.json of the models that the names are of.

use super::PreStep::{ByteLevel, Digits, Punctuation, Split};
use super::{PreStep, PreTokenizerClass, PreTokenizerName};

/// English contractions in any case, as llama.cpp's names of the Llama 3 family and its successors
/// have them.
macro_rules! contractions {
    () => {
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

/// The regex of Llama 3 and Qwen 2, with `$digits` for numbers.
macro_rules! llama3 {
    ($digits:literal) => {
        concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// The regex of GPT-4o, which looks at the case of letters, with `$digits` for numbers. `$suffix`
/// is what may follow a word.
macro_rules! gpt4o {
    ($suffix:expr, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $suffix,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// Words and punctuation of DeepSeek V3, with `$ends` for line ends after punctuation.
macro_rules! deepseek3 {
    ($ends:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"##,
            $ends,
            r"|\s+(?!\S)|\s+"
        )
    };
}

const GPT2: PreStep<'static> =
    Split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+");
const LLAMA3: PreStep<'static> = Split(llama3!(r"\p{N}{1,3}"));
const QWEN2: PreStep<'static> = Split(llama3!(r"\p{N}"));
const GPT4O: PreStep<'static> = Split(gpt4o!(concat!(contractions!(), "?"), r"\p{N}{1,3}"));
const BLOOM: PreStep<'static> = Split(r" ?[^(\s|[.,!?…。，、।۔،])]+");
const UP_TO_THREE_DIGITS: PreStep<'static> = Split(r"\p{N}{1,3}");
const CHINESE_AND_JAPANESE: PreStep<'static> = Split("[一-龥぀-ゟ゠-ヿ]+");
const CHINESE_AND_KOREAN: PreStep<'static> = Split("[一-龥ࠀ-一가-퟿]+");
const LINE_END: PreStep<'static> = Split(r"[\r\n]");
const SINGLE_DIGITS: PreStep<'static> = Digits { individual: true };
/// Bytes as characters, without splitting.
const BYTES: PreStep<'static> = ByteLevel { use_regex: false };
/// GPT-2's regex, then bytes as characters.
const BYTES_OF_GPT2: PreStep<'static> = ByteLevel { use_regex: true };

/// Letters of scripts that have case, as DeepSeek LLM lists them.
const DEEPSEEK_LETTERS: PreStep<'static> = Split(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
);

/// A name without flags.
const fn name(name: &'static str) -> PreTokenizerName {
    PreTokenizerName {
        name,
        ignore_merges: false,
        add_bos: false,
        nfc: false,
        architectures: &[],
        token: "",
    }
}

impl PreTokenizerName {
    const fn of(self, architectures: &'static [&'static str]) -> Self {
        Self { architectures, ..self }
    }

    const fn ignoring_merges(self) -> Self {
        Self { ignore_merges: true, ..self }
    }

    const fn with_bos(self) -> Self {
        Self { add_bos: true, ..self }
    }

    const fn with_nfc(self) -> Self {
        Self { nfc: true, ..self }
    }

    const fn with_token(self, token: &'static str) -> Self {
        Self { token, ..self }
    }
}

/// A class of names that share the steps in `forms`.
const fn class(
    forms: &'static [&'static [PreStep<'static>]],
    names: &'static [PreTokenizerName],
) -> PreTokenizerClass {
    PreTokenizerClass { forms, merges_are_complete: false, names }
}

/// A class of vocabularies that were made from tiktoken's ranks, with every pair that leads to a
/// token.
const fn tiktoken(
    forms: &'static [&'static [PreStep<'static>]],
    names: &'static [PreTokenizerName],
) -> PreTokenizerClass {
    PreTokenizerClass { forms, merges_are_complete: true, names }
}

const GLM: &[&str] = &["glm4", "glm4moe", "glm-dsa", "glm5-next", "chatglm"];

/// All names that llama.cpp knows, each once.
pub(crate) static CLASSES: &[PreTokenizerClass] = &[
    class(
        &[&[LLAMA3, BYTES]],
        &[
            name("llama-bpe").ignoring_merges().with_bos(),
            name("llama3").ignoring_merges().with_bos(),
            name("llama-v3").ignoring_merges().with_bos(),
            name("lfm2")
                .ignoring_merges()
                .with_bos()
                .of(&["lfm2", "lfm2moe"]),
            name("falcon3").ignoring_merges().with_bos(),
            name("falcon-h1")
                .ignoring_merges()
                .with_bos()
                .of(&["falcon-h1"]),
            name("pixtral").ignoring_merges().with_bos(),
            name("midm-2.0").ignoring_merges().with_bos(),
            name("jina-v5-nano")
                .ignoring_merges()
                .with_bos()
                .of(&["eurobert"]),
            name("glm4").ignoring_merges().of(GLM).with_token("[gMASK]"),
            name("glm5").ignoring_merges(),
            // The tokenizers of Phi 4, OLMo 2 and Granite 4 have the name, too.
            name("dbrx"),
            name("smaug-bpe"),
            name("chatglm-bpe").of(GLM).with_token("[gMASK]"),
        ],
    ),
    class(
        &[&[QWEN2, BYTES]],
        &[
            name("qwen2").with_nfc(),
            name("deepseek-r1-qwen").with_nfc(),
            name("kormo"),
            name("f2llmv2").with_nfc(),
            name("megrez").with_nfc(),
            name("stablelm2").of(&["stablelm"]),
            name("hunyuan").of(&["hunyuan-moe"]),
            name("solar-open").of(&["glm4moe"]),
            name("grok-2").of(&["grok"]),
        ],
    ),
    class(
        &[&[
            Split(concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            )),
            BYTES,
        ]],
        &[name("qwen35").with_nfc()],
    ),
    tiktoken(
        &[&[GPT4O, BYTES]],
        &[
            name("gpt-4o"),
            name("llama4").of(&["llama4"]),
            name("kanana2"),
            name("talkie").of(&["talkie"]),
            name("minimax-m2").of(&["minimax-m2"]),
            name("granite-embed-multi-97m")
                .ignoring_merges()
                .of(&["modern-bert"]),
        ],
    ),
    class(
        &[&[Split(r"\d{1,3}(?=(?:\d{3})*\b)"), GPT4O, BYTES]],
        &[name("tiny_aya"), name("cohere2moe").of(&["cohere2moe"])],
    ),
    tiktoken(
        &[&[Split(gpt4o!("", r"\p{N}")), BYTES]],
        &[name("tekken").ignoring_merges().with_bos()],
    ),
    class(
        &[&[
            UP_TO_THREE_DIGITS,
            CHINESE_AND_JAPANESE,
            Split(deepseek3!(r"[\r\n]*|\s*[\r\n]+")),
            BYTES,
        ]],
        &[
            name("deepseek-v3"),
            name("hunyuan-dense").of(&["hunyuan-dense"]),
            name("hy_v4").of(&["hy_v4"]),
            name("joyai-llm"),
        ],
    ),
    class(
        &[&[
            UP_TO_THREE_DIGITS,
            CHINESE_AND_JAPANESE,
            Split(deepseek3!(r"|[\r\n]")),
            Split(r"\p{N}"),
            BYTES,
        ]],
        &[name("spark2_5")],
    ),
    class(
        &[
            &[
                LINE_END,
                DEEPSEEK_LETTERS,
                Split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
                Split(r"\s+$"),
                CHINESE_AND_KOREAN,
                SINGLE_DIGITS,
                BYTES,
            ],
            &[
                LINE_END,
                DEEPSEEK_LETTERS,
                Split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
                Split(r"\s+$"),
                CHINESE_AND_KOREAN,
                Digits { individual: false },
                BYTES,
            ],
        ],
        &[name("deepseek-llm")],
    ),
    class(
        &[&[
            LINE_END,
            Split(r"\s?\p{L}+"),
            Split(r"\s?\p{P}+"),
            CHINESE_AND_KOREAN,
            SINGLE_DIGITS,
            BYTES,
        ]],
        &[name("deepseek-coder")],
    ),
    class(
        &[&[BYTES_OF_GPT2], &[GPT2, BYTES]],
        &[
            name("gpt-2"),
            name("phi-2").of(&["phi2"]),
            name("mpt").of(&["mpt"]),
            name("olmo").of(&["olmo", "olmoe"]),
            name("jais").of(&["jais"]),
            name("exaone4").of(&["exaone4"]),
            name("modern-bert").of(&["modern-bert"]),
            name("roberta-bpe").of(&["bert"]),
            name("jina-v2-de").of(&["jina-bert-v2"]),
            name("jina-v2-es"),
            name("jina-v2-code"),
            name("jina-v1-en"),
            name("jina-es"),
            name("jina-de"),
            name("gigachat"),
            name("a.x-4.0"),
            name("mellum"),
            name("trillion"),
            name("granite-docling"),
        ],
    ),
    class(
        &[&[SINGLE_DIGITS, BYTES_OF_GPT2]],
        &[
            name("starcoder"),
            name("refact").of(&["refact", "granite", "granitemoe", "granitehybrid"]),
            name("command-r").with_nfc().of(&["command-r", "cohere2"]),
            name("smollm").of(&["llama"]),
            name("codeshell").of(&["codeshell"]),
            name("exaone").of(&["exaone"]),
            name("minerva-7b"),
            name("mellum2").of(&["mellum"]),
        ],
    ),
    class(
        &[&[Punctuation, BYTES_OF_GPT2, Digits { individual: false }, Split("[0-9][0-9][0-9]")]],
        &[name("falcon")],
    ),
    class(&[&[BLOOM, BYTES]], &[name("bloom"), name("poro-chat"), name("gpt3-finnish")]),
    class(&[&[SINGLE_DIGITS, BLOOM, BYTES], &[BLOOM, SINGLE_DIGITS, BYTES]], &[name("viking")]),
    class(
        &[&[
            Split(
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
            ),
            BYTES,
        ]],
        &[
            name("bailingmoe"),
            name("bailingmoe2").of(&["bailingmoe2"]),
            name("llada-moe").of(&["llada-moe"]),
        ],
    ),
    class(
        &[&[
            Split(concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
            )),
            BYTES,
        ]],
        &[name("seed-coder")],
    ),
    class(&[&[Split(r"\p{N}+"), Split(r"(?=(\d{3})+(?!\d))"), BYTES]], &[name("superbpe")]),
    class(
        &[&[
            Split(concat!(
                r"[\p{Han}]+",
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
                contractions!(),
                r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
                contractions!(),
                r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            )),
            BYTES,
        ]],
        &[name("kimi-k2")],
    ),
    class(&[&[Split(r"[^\n]+|[\n]+"), QWEN2, BYTES]], &[name("laguna")]),
    class(
        &[&[
            Split(concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
            )),
            BYTES,
        ]],
        &[name("exaone-moe")],
    ),
    class(
        &[&[UP_TO_THREE_DIGITS, Split(llama3!(r"\p{N}+")), BYTES]],
        &[name("minicpm5").ignoring_merges()],
    ),
    class(
        &[&[
            Split("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"),
            Split(gpt4o!(concat!(contractions!(), "?"), r"\p{N}")),
            BYTES,
        ]],
        &[name("youtu").ignoring_merges()],
    ),
    class(
        &[&[
            Split(concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
                r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)",
                r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
            )),
            BYTES,
        ]],
        &[name("jais-2")],
    ),
    class(
        &[&[
            Split(
                r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
            BYTES,
        ]],
        &[name("ufakzeka")],
    ),
    // Known by name alone: llama.cpp has code of its own for them, or they work on text instead of
    // bytes.
    class(
        &[],
        &[
            name("default"),
            name("gemma4"),
            name("granite-embed-multi-311m"),
            name("mmbert"),
            name("sarvam-moe"),
            name("whitespace"),
            name("chameleon").with_bos(),
            name("afmoe"),
        ],
    ),
];
