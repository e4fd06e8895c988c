//! Archives of `torch.export` that are wrong, made in memory. Those that torch has written are in
//! `archives`.

use anamnesis::{
    AnamnesisError, Container, ErrorKind, PickleRisk, detect_format_from_reader,
    inspect_pth_from_reader, parse_bytes, scan_pickles,
};
use std::io::Cursor;

use crate::common::data;
use crate::common::zip::{Member, Zip};

/// The tensor `w`, six numbers in `weight_0`, and what `change` makes of its description.
fn archive(change: impl Fn(&str) -> String) -> Vec<Member> {
    let sizes = |n: &[u64]| {
        let sizes: Vec<String> = n.iter().map(|n| format!("{{\"as_int\": {n}}}")).collect();
        format!("[{}]", sizes.join(", "))
    };
    let meta = format!(
        "{{\"dtype\": 7, \"sizes\": {}, \"strides\": {}, \"storage_offset\": {{\"as_int\": 0}}, \"layout\": 7}}",
        sizes(&[2, 3]),
        sizes(&[3, 1])
    );
    let payload = format!(
        "{{\"path_name\": \"weight_0\", \"is_param\": true, \"use_pickle\": false, \"tensor_meta\": {meta}}}"
    );
    let config = change(&format!("{{\"config\": {{\"w\": {payload}}}}}"));
    vec![
        Member::stored("m/archive_format", b"pt2"),
        Member::stored("m/archive_version", b"0"),
        Member::stored("m/data/weights/model_weights_config.json", config.as_bytes()),
        Member::stored("m/data/weights/weight_0", &[7; 24]),
        Member::stored("m/data/constants/tensor_0", &[7; 24]),
    ]
}

fn error(members: &[Member]) -> AnamnesisError {
    let file = Zip::of(members).file();
    let front = inspect_pth_from_reader(Cursor::new(file.clone()));
    let error = parse_bytes(file).unwrap_err();
    assert_eq!(front.unwrap_err().to_string(), error.to_string());
    error
}

/// What a description says must fit the file that it names.
#[test]
fn false_descriptions() {
    let replaced = |from: &'static str, to: &'static str| {
        move |text: &str| {
            assert!(text.contains(from), "{text}");
            text.replace(from, to)
        }
    };
    let rows: &[(&str, &str, &str)] = &[
        ("weight_0", "weight_9", "`m/data/weights/weight_9` is not in the archive"),
        ("weight_0", "../constants/tensor_0", "is not in the archive"),
        ("{\"as_int\": 2}", "{\"as_int\": 3}", "lead out of its storage of 24 bytes"),
        ("{\"as_int\": 0}", "{\"as_int\": 1}", "offset 1"),
        ("[{\"as_int\": 3}", "[{\"as_int\": 4}", "lead out of its storage"),
        ("{\"as_int\": 2}", "{\"as_int\": -2}", "invalid value"),
        ("{\"as_int\": 2}", "{\"as_int\": 9223372036854775807}", "overflows"),
        ("{\"as_int\": 2}", "{\"as_expr\": {\"expr_str\": \"s0\"}}", "missing field `as_int`"),
        ("[{\"as_int\": 3}, {\"as_int\": 1}]", "[]", "do not go together"),
        ("\"use_pickle\": false", "\"use_pickle\": 1", "invalid type"),
        ("{\"config\"", "{\"x\": 1, \"config\": {}, \"config\"", "duplicate field `config`"),
        ("}}}", "}", "EOF"),
    ];
    for &(from, to, words) in rows {
        let error = error(&archive(replaced(from, to)));
        assert!(error.to_string().contains(words), "{to}: {error}");
        assert_eq!(error.kind(), ErrorKind::Parse, "{to}: {error}");
        assert!(error.to_string().contains("model_weights_config.json"), "{error}");
    }
    let twice = archive(|text| {
        let payload = text
            .strip_prefix("{\"config\": {")
            .unwrap()
            .strip_suffix("}}")
            .unwrap();
        format!("{{\"config\": {{{payload}, {payload}}}}}")
    });
    assert!(
        error(&twice)
            .to_string()
            .contains("tensor `w` is listed twice")
    );
    // Of one number that is repeated 2^40 times.
    let repeated = archive(|text| {
        text.replace("{\"as_int\": 2}", "{\"as_int\": 1099511627776}")
            .replace("{\"as_int\": 3}, {\"as_int\": 1}]", "{\"as_int\": 0}, {\"as_int\": 1}]")
    });
    assert_eq!(error(&repeated).kind(), ErrorKind::LimitExceeded);
}

/// What is missing, compressed or of another format is called that.
#[test]
fn other_archives() {
    let good = archive(str::to_owned);
    let file = Zip::of(&good).file();
    assert_eq!(detect_format_from_reader(Cursor::new(&file)).unwrap(), Container::Pth);
    assert_eq!(parse_bytes(file).unwrap().tensor("w").unwrap().shape(), [2, 3]);
    let without_weights: Vec<Member> = good[..2].to_vec();
    let more = |member: Member| [without_weights.clone(), vec![member]].concat();
    let mut deflated = good.clone();
    deflated[3] = Member::deflated("m/data/weights/weight_0", &[7; 24]);
    let mut config = good.clone();
    config[2] = Member::deflated("m/data/weights/model_weights_config.json", &good[2].data);
    let mut format = good.clone();
    format[0] = Member::stored("m/archive_format", b"pt3");
    let constant = [
        good.clone(),
        vec![Member::stored("m/data/constants/model_constants_config.json", &good[2].data)],
        vec![Member::stored("m/data/constants/weight_0", &[7; 24])],
    ]
    .concat();
    let rows = [
        (without_weights.clone(), "has no weights"),
        (more(Member::stored("m/data/aotinductor/model/x.so", b"")), "compiled library"),
        (deflated, "compressed archive"),
        (config, "compressed archive"),
        (format, "`archive_format` is not pt2"),
        (constant, "tensor `w`: the archive has it twice"),
        (more(Member::stored("m/data/weights/model.pt", b"PK\x05\x06")), "model.pt"),
        ([good.clone(), vec![Member::stored("m/byteorder", b"middle")]].concat(), "byteorder"),
        (
            [good.clone(), vec![Member::stored("m/data/weights/WEIGHT_0", b"")]].concat(),
            "upper and lower case",
        ),
    ];
    for (members, words) in rows {
        let error = error(&members).to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}

/// Numbers are not what Python runs, and so a file without pickles is safe.
#[test]
fn weights_are_safe() {
    let path = data().join("pt2/module.pt2");
    let scan = scan_pickles(&path, &Default::default()).unwrap();
    assert_eq!((scan.risk, scan.remarks), (PickleRisk::Safe, vec![]));
    assert!(anamnesis::pickle_globals(path).is_err());
}
