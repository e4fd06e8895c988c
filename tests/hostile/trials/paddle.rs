//! Inference models of Paddle that are malformed or hostile.

use super::{edit_count, mutate, recover_everything};
use crate::common::verdict::{Kind, Limit, Parse, Unsupported, verdict};
use crate::common::{Random, data, tempdir};
use crate::trials::Trial;
use crate::trials::message::{bytes, number};

/// A program with a variable of each name and these sizes, and an operator.
fn program(names: &[&str], sizes: &[u64], operator: &[u8]) -> Vec<u8> {
    let sizes: Vec<u8> = sizes.iter().flat_map(|&n| number(2, n)).collect();
    let tensor = bytes(1, [number(1, 5), sizes].concat());
    let kind = bytes(2, [number(1, 7), bytes(3, tensor)].concat());
    let variable = |name: &&str| bytes(3, [bytes(1, *name), kind.clone(), number(3, 1)].concat());
    let variables: Vec<u8> = names.iter().flat_map(variable).collect();
    let start = [number(1, 0), number(2, u64::MAX)].concat();
    bytes(1, [start, variables, operator.to_vec()].concat())
}

/// A parameter of F32 or what `kind` is.
fn parameter(levels: u64, kind: u64, sizes: &[u64], len: usize) -> Vec<u8> {
    let sizes: Vec<u8> = sizes.iter().flat_map(|&n| number(2, n)).collect();
    let about = [number(1, kind), sizes].concat();
    let length = u32::try_from(about.len()).unwrap().to_le_bytes();
    let start = [&[0; 4][..], &levels.to_le_bytes(), &[0; 4], &length].concat();
    [start, about, vec![0; len]].concat()
}

fn json(ops: &str) -> Vec<u8> {
    format!(r#"{{"base_code":{{"magic":"pir"}},"program":{{"regions":[{{"blocks":[{{"ops":[{ops}]}}]}}]}}}}"#).into_bytes()
}

fn op(name: &str, sizes: &str) -> String {
    format!(
        r##"{{"#":"p","A":[0,1,1,"{name}"],"O":{{"%":1,"TT":{{"#":"t","D":[{{}},[{sizes}],"NCHW"]}}}},"OA":[1,0,1]}}"##
    )
}

/// What is wrong, the program, its parameters, the kind of the error, and words of its message.
type Files<'a> = (&'a str, Vec<u8>, Vec<u8>, Kind, &'a [&'a str]);

#[test]
fn pairs() {
    let mut trial = Trial::new();
    let place = tempdir().unwrap();
    let [model, params] = ["m.pdmodel", "m.pdiparams"].map(|name| place.path().join(name));
    let run = |trial: &mut Trial, what, program: &[u8], stored: &[u8]| {
        std::fs::write(&model, program).unwrap();
        std::fs::write(&params, stored).unwrap();
        trial.measure(what, program.len() + stored.len(), || {
            anamnesis::parse(&model).and_then(|model| recover_everything(&model, None))
        })
    };
    let w = || parameter(0, 5, &[2, 2], 16);
    let one = || program(&["w"], &[2, 2], &[]);
    let nested =
        format!(r##"{{"#":"2.if","regions":[{{"blocks":[{{"ops":[{}]}}]}}]}}"##, op("w", "2,-1"));
    for (what, program, stored) in [
        ("a variable", one(), w()),
        ("a variable of two blocks", [one(), one()].concat(), w()),
        ("a size that is not known", program(&["w"], &[u64::MAX, 2], &[]), w()),
        ("JSON", json(&op("w", "2,2")), w()),
        ("a block in an operator", json(&nested), w()),
    ] {
        let error = run(&mut trial, what, &program, &stored).and_then(Result::err);
        error.into_iter().for_each(|error| trial.fail(what, error));
    }
    let many: Vec<String> = (0..200_000).map(|i| i.to_string()).collect();
    let names: Vec<&str> = many.iter().map(String::as_str).collect();
    let decoder = |name: &str, inputs: usize| {
        let inputs = bytes(1, bytes(2, "w").repeat(inputs));
        bytes(4, [inputs, bytes(3, name)].concat())
    };
    let wide = format!(r##"{{"#":"1.dequantize_linear","I":[{}0]}}"##, "0,".repeat(60_000));
    let deep =
        |n: usize| json(&[r##"{"#":"a","regions":[{"blocks":[{"ops":["##.repeat(n)].concat());
    let rows: Vec<Files<'_>> = vec![
        ("another shape", program(&["w"], &[4], &[]), w(), Parse, &["`w`", "[2, 2]", "[4]"]),
        ("no parameters", one(), vec![], Parse, &["0 parameters"]),
        ("no variables", program(&[], &[], &[]), vec![], Parse, &["no tensors"]),
        ("levels", one(), parameter(65, 5, &[2, 2], 16), Limit, &["levels"]),
        ("a level", one(), parameter(1, 5, &[2, 2], 16), Parse, &["`w`"]),
        ("a type", one(), parameter(0, 99, &[2, 2], 16), Unsupported, &["`w`", "99"]),
        ("too short", one(), parameter(0, 5, &[2, 2], 15), Parse, &["`w`", "truncated"]),
        (
            "a size that overflows",
            program(&["w"], &[1 << 40, 1 << 40], &[]),
            parameter(0, 5, &[1 << 40, 1 << 40], 16),
            Parse,
            &["`w`", "overflows"],
        ),
        ("a size below zero", one(), parameter(0, 5, &[2, u64::MAX], 16), Parse, &["size"]),
        ("a version", one(), [&[1], &w()[1..]].concat(), Unsupported, &["version 1"]),
        (
            "65 dimensions",
            program(&["w"], &[1; 65], &[]),
            parameter(0, 5, &[1; 65], 4),
            Limit,
            &["dimensions"],
        ),
        ("200 000 variables", program(&names, &[], &[]), vec![], Parse, &["0 parameters"]),
        (
            "an operator of a long name",
            program(&["w"], &[2, 2], &decoder(&"dequantize".repeat(1000), 1)),
            w(),
            Unsupported,
            &["`w`", "its operator is dequantize"],
        ),
        (
            "products that are decoded",
            program(&["w"], &[2, 2], &decoder("fake_dequantize_max_abs", 0)),
            w(),
            Unsupported,
            &["`w`", "fake_dequantize_max_abs"],
        ),
        (
            "an operator of many inputs",
            program(&["w"], &[2, 2], &decoder("weight_only_linear", 400_000)),
            w(),
            Limit,
            &["MAX_TABLE_BYTES"],
        ),
        ("many inputs in JSON", json(&wide), w(), Parse, &["part of an operator"]),
        ("no JSON", json(""), w(), Parse, &["behind the 0"]),
        ("half of JSON", json("")[..40].to_vec(), w(), Parse, &["malformed"]),
        ("deep JSON", deep(5000), w(), Parse, &["malformed"]),
        ("a name that is none", json(&op("w", "2").replace("\"w\"", "3")), w(), Parse, &["name"]),
        ("a size that is none", json(&op("w", "\"2\"")), w(), Parse, &["shape"]),
    ];
    for (what, program, stored, kind, words) in rows {
        if let Some(result) = run(&mut trial, what, &program, &stored) {
            let wrong = verdict(result, kind, words);
            wrong.into_iter().for_each(|wrong| trial.fail(what, wrong));
        }
    }
    trial.end();
}

/// Models of which a file is changed.
#[test]
fn edits() {
    let mut trial = Trial::new();
    let place = tempdir().unwrap();
    let cases = [
        ("json", "inference.json", "inference.pdiparams"),
        ("pdmodel", "inference.pdmodel", "inference.pdiparams"),
        ("types", "__model__", "__params__"),
        ("quantized_json", "inference.json", "inference.pdiparams"),
    ];
    let cases = cases.map(|(case, program, params)| {
        let file = |name| std::fs::read(data().join("paddle_inference").join(case).join(name));
        [file(program).unwrap(), file(params).unwrap()]
    });
    let [model, params] = ["m.json", "m.pdiparams"].map(|name| place.path().join(name));
    let (mut random, mut good) = (Random(29), 0);
    let count = edit_count([150, 1000, 4000]);
    for i in 0..count {
        let mut files = cases[i % cases.len()].clone();
        mutate(&mut files[(random.next() >> 20) as usize % 2], &mut random);
        std::fs::write(&model, &files[0]).unwrap();
        std::fs::write(&params, &files[1]).unwrap();
        let path = [&model, &params][i / cases.len() % 2];
        let result = trial.measure("an edit", files[0].len() + files[1].len(), || {
            anamnesis::parse(path).and_then(|model| recover_everything(&model, None))
        });
        good += usize::from(matches!(result, Some(Ok(_))));
    }
    trial.count_edits(count, good, 20);
    trial.end();
}
