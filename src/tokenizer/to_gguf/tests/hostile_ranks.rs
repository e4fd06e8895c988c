//! Tables of tiktoken's ranks that are malformed, claim too much, or say too little of how text is
//! cut.

use std::fmt::Write;

use super::hostile::{byte_level, message, of_files};
use super::*;
use crate::test_utils::cpu_time;

/// A table with the tokens `a`, `b`, `ab`.
const TABLE: &str = "YQ== 0\nYg== 1\nYWI= 2\n";

fn kimi(config: &Value, table: &[u8], vocab_size: usize) -> Result<TokenizerKeys> {
    let config = config.to_string();
    let files = [("tokenizer_config.json", config.as_bytes()), ("tiktoken.model", table)];
    of_files(&files, "deepseek2", vocab_size)
}

/// The usual tokenizer_config.json of Kimi K2, with other fields.
fn config(more: Value) -> Value {
    let map = json!(["tokenization_kimi.TikTokenTokenizer", null]);
    let mut all =
        json!({ "tokenizer_class": "TikTokenTokenizer", "auto_map": { "AutoTokenizer": map } });
    let Value::Object(more) = more else {
        unreachable!()
    };
    all.as_object_mut().unwrap().extend(more);
    all
}

fn texts(keys: &TokenizerKeys, name: &str) -> Vec<String> {
    let name = format!("tokenizer.ggml.{name}");
    let value = &keys.keys.iter().find(|(key, _)| *key == name).unwrap().1;
    match value.as_array() {
        Some(GgufMetadataArray::String(texts)) => texts.clone(),
        _ => unreachable!(),
    }
}

#[test]
fn a_table_that_is_wrong_is_refused_with_the_line() {
    let keys = kimi(&config(json!({})), TABLE.as_bytes(), 5).unwrap();
    let tokens = ["a", "b", "ab", "<|reserved_token_3|>", "<|reserved_token_4|>"];
    assert_eq!(texts(&keys, "tokens"), tokens);
    assert_eq!(texts(&keys, "merges"), ["a b"]);
    let last = |line: &str| format!("{TABLE}{line}");
    for (table, part) in [
        (last("YW!= 3"), "tiktoken.model: line 4: it is no token in Base64"),
        (last("YWE 3"), "line 4: it is no token in Base64"),
        (last("= 3"), "line 4: it is no token in Base64"),
        (last("YWE= -3"), "line 4: it is no token in Base64"),
        (last("YWE= 3 4"), "line 4: it is no token in Base64"),
        (last("YWE="), "line 4: it is no token in Base64"),
        (last("\nYWE= 3"), "line 4: it is no token in Base64"),
        (last("YWE= 99999999999999999999"), "line 4: it is no token in Base64"),
        (last("\u{fffd} 3"), "line 4: it is no token in Base64"),
        (last("YWE= 4"), "line 4: the rank is 4, and the next one is 3"),
        (last("YWE= 2"), "line 4: the rank is 2, and the next one is 3"),
        (last("Yg== 3"), "line 4: the token is in line 2, too"),
        (last("YWE= 3\nYmI= 4\nYmE= 5\n"), "line 6: `vocab_size` of config.json is 5"),
        (String::new(), "line 1: it is no token in Base64"),
    ] {
        let error = message(kimi(&config(json!({})), table.as_bytes(), 5));
        assert!(error.contains(part), "{table}: {error}");
    }
    let crlf = TABLE.replace('\n', "\r\n");
    let keys = kimi(&config(json!({})), crlf.as_bytes(), 5).unwrap();
    assert_eq!(texts(&keys, "merges"), ["a b"]);
}

#[test]
fn long_lines_and_large_tables_are_bounded() {
    let kind = |table: &[u8], vocab| kimi(&config(json!({})), table, vocab).unwrap_err().kind();
    for line in ["A".repeat(1 << 20), format!("YQ== {}", "0".repeat(1 << 20))] {
        assert_eq!(kind(line.as_bytes(), 5), ErrorKind::LimitExceeded);
    }
    assert_eq!(kind(&vec![b'\n'; 1 << 20], 5), ErrorKind::Parse);
    assert_eq!(kind(TABLE.as_bytes(), MAX_TOKENS + 1), ErrorKind::LimitExceeded);
    // Runs of one byte are the worst: each is made of all those before it.
    let mut table = String::new();
    for rank in 0..1020 {
        let run = base64_of_run(rank + 1);
        writeln!(table, "{run} {rank}").unwrap();
    }
    for (number, filler) in (1020..4000).zip(0u32..) {
        let rest = base64_of(&[&b"a"[..], &filler.to_le_bytes()].concat());
        writeln!(table, "{}{rest} {number}", base64_of_run(999)).unwrap();
    }
    let start = cpu_time();
    assert_eq!(kind(table.as_bytes(), 4000), ErrorKind::LimitExceeded);
    let time = cpu_time() - start;
    assert!(time.as_secs() < 60, "{time:?}");
}

fn base64_of_run(n: usize) -> String {
    base64_of(b"aaa").repeat(n / 3) + &base64_of(&b"aaa"[..n % 3])
}

fn base64_of(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, i| bits << 8 | usize::from(*chunk.get(i).unwrap_or(&0)));
        for i in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * i) & 63] as char;
            out.push(if i > chunk.len() { '=' } else { digit });
        }
    }
    out
}

#[test]
fn a_table_of_an_unknown_class_is_refused() {
    let class = |name: &str| json!({ "tokenizer_class": name });
    let other = json!({ "AutoTokenizer": ["tokenization_other.TikTokenTokenizer", null] });
    let outside = json!({ "AutoTokenizer": "../../x.TikTokenTokenizer" });
    for (config, part) in [
        (json!({}), "tiktoken.model: it is a table of tiktoken's ranks"),
        (class("NemoTokenizer"), "tokenizer NemoTokenizer"),
        (class("TikTokenTokenizer"), "there is no `auto_map`"),
        (config(json!({ "auto_map": other })), "there is no tokenization_other.py"),
        (config(json!({ "auto_map": outside })), "../../x.py"),
    ] {
        let error = message(kimi(&config, TABLE.as_bytes(), 5));
        assert!(error.contains(part), "{error}");
    }
    // Of another architecture the class may be another one.
    let text = config(json!({})).to_string();
    let files = [("tokenizer_config.json", text.as_bytes()), ("tiktoken.model", TABLE.as_bytes())];
    let error = message(of_files(&files, "llama", 5));
    assert!(error.contains("neither how text is cut"), "{error}");
    for file in ["hy.tiktoken", "qwen.tiktoken", "tokenizer.model"] {
        let error = message(of_files(&[(file, TABLE.as_bytes())], "qwen2", 5));
        assert!(error.contains(&format!("{file}: it is a table")), "{error}");
    }
}

/// The source of the class says what its regex is, and not the class's name.
#[test]
fn a_class_with_another_regex_is_refused() {
    let text = config(json!({})).to_string();
    let convert = |source: &str, pre| {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in [
            ("tokenizer_config.json", text.as_str()),
            ("tiktoken.model", TABLE),
            ("tokenization_kimi.py", source),
        ] {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        to_gguf(&TokenizerRequest {
            texts: &Texts::new(dir.path(), &ParseLimits::default()),
            config: &json!({}),
            vocab_size: 5,
            pre,
            cuts_embedding: false,
            architecture: "deepseek2",
            rules: &TokenizerRules::PLAIN,
        })
    };
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let source = data.join("whole/kimi_k2/hf/tokenization_kimi.py");
    let source = std::fs::read_to_string(source).unwrap();
    assert_eq!(convert(&source, None).unwrap().tokens, 5);
    let commented = source.replace("    PAT_STR", "    # PAT_STR");
    for other in [source.replace(r"\p{N}{1,3}", r"\p{N}"), commented] {
        let error = message(convert(&other, None));
        assert!(error.contains("tokenization_kimi.py lacks"), "{error}");
        let keys = convert(&other, Some("kimi-k2")).unwrap();
        assert_eq!(keys.keys[1].1.as_string(), Some("kimi-k2"));
    }
}

#[test]
fn special_tokens_that_contradict_the_table_are_refused() {
    let token = |text: &str| json!({ "content": text, "special": true });
    let listed = |tokens: Value| config(json!({ "added_tokens_decoder": tokens }));
    let keys =
        kimi(&listed(json!({ "4": token("[EOS]"), "900": token("x") })), TABLE.as_bytes(), 5);
    assert_eq!(texts(&keys.unwrap(), "tokens")[3..], ["<|reserved_token_3|>", "[EOS]"]);
    // What is an ordinary token as well is the special one alone.
    let keys = kimi(&listed(json!({ "4": token("ab") })), TABLE.as_bytes(), 5).unwrap();
    assert_eq!(texts(&keys, "tokens")[2..], ["[PAD2]", "<|reserved_token_3|>", "ab"]);
    for (tokens, vocab_size, part) in [
        (
            json!({ "2": token("[EOS]") }),
            5,
            "`[EOS]` with the id 2, which is a token of tiktoken.model",
        ),
        (json!({ "3": token("x"), "4": token("x") }), 5, "has `x` twice"),
        (
            json!({}),
            260,
            "3 tokens, which are 259 with 256 special ones, and `vocab_size` of config.json is 260",
        ),
        (json!({}), 2, "line 3: `vocab_size` of config.json is 2"),
    ] {
        let error = message(kimi(&listed(tokens), TABLE.as_bytes(), vocab_size));
        assert!(error.contains(part), "{error}");
    }
    let class = json!({ "tokenizer_class": "HYTokenizer", "auto_map": { "AutoTokenizer": ["x/y--tokenization_hy.HYTokenizer", null] } });
    let class = class.to_string();
    let hunyuan = |vocab_size| {
        // Its class counts lines, whatever their numbers.
        let table = TABLE.replace(" 2", " 7");
        let files =
            [("tokenizer_config.json", class.as_bytes()), ("hy.tiktoken", table.as_bytes())];
        of_files(&files, "hunyuan-moe", vocab_size)
    };
    let keys = hunyuan(213).unwrap();
    assert_eq!(texts(&keys, "tokens")[2..6], ["ab", "<|endoftext|>", "<|startoftext|>", "<|bos|>"]);
    assert_eq!(texts(&keys, "tokens")[212], "<|extra_204|>");
    for vocab_size in [212, 214] {
        let error = message(hunyuan(vocab_size));
        assert!(error.contains("213 with 210 special ones"), "{error}");
    }
}

/// tokenizer.json beside the table must have the same tokens.
#[test]
fn a_tokenizer_json_that_disagrees_with_the_table_is_refused() {
    let text =
        config(json!({ "added_tokens_decoder": { "3": { "content": "<s>", "special": true } } }))
            .to_string();
    let convert = |json: &Value| {
        let json = json.to_string();
        let files = [
            ("tokenizer_config.json", text.as_bytes()),
            ("tiktoken.model", TABLE.as_bytes()),
            ("tokenizer.json", json.as_bytes()),
        ];
        of_files(&files, "deepseek2", 5)
    };
    let keys = convert(&byte_level()).unwrap();
    // The converter reads tokenizer.json then.
    assert_eq!(texts(&keys, "tokens")[4], "[PAD4]");
    for (pointer, value, part) in [
        ("/model/vocab", json!({ "b": 0, "a": 1, "ab": 2 }), "disagree about token 0, `a`"),
        ("/model/vocab", json!({ "a": 0, "b": 1 }), "disagree about token 2, `ab`"),
        ("/model/vocab", json!({ "a": 0, "b": 1, "ab": 2, "c": 4 }), "disagree about token 4, `c`"),
        ("/added_tokens/0/content", json!("</s>"), "disagree about token 3, `</s>`"),
    ] {
        let mut changed = byte_level();
        *changed.pointer_mut(pointer).unwrap() = value;
        let error = message(convert(&changed));
        assert!(error.contains(part), "{error}");
    }
}
