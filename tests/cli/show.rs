//! `amn show`.

use serde_json::Value;

use crate::amn;
use crate::common::{data, f32s, file, raw};

const WEIGHT: &str = "layers.0.attention.wq.weight";

fn at(name: &str) -> String {
    data().join(name).to_string_lossy().into_owned()
}

fn show(path: &str, arguments: &[&str]) -> String {
    let output = amn(&[&["show", path], arguments].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{path}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(path: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&show(path, &[arguments, &["--json"]].concat())).unwrap()
}

fn code(path: &str, arguments: &[&str]) -> Option<i32> {
    amn(&[&["show", path], arguments].concat()).status.code()
}

/// Decoded values of torch (`expected-f32.safetensors`), statistics of NumPy 2.4 over them in F64:
/// `min`, `max`, `mean`, `std`, `(a == 0).sum()` and `np.histogram(a, 4)`.
#[test]
fn statistics_are_numpys() {
    let tensor = &json(&at("demo/model-fp8.safetensors"), &[WEIGHT, "--bins", "4"])["tensors"][0];
    let near = |field: &str, expected: f64| {
        let found = tensor[field].as_f64().unwrap();
        assert!((found - expected).abs() <= expected.abs() * 1e-12, "{field}: {found}");
    };
    near("min", -0.199_157_714_843_75);
    near("max", 0.199_157_714_843_75);
    near("mean", -2.501_051_864_101_100_4e-5);
    near("std", 0.009_255_291_420_690_755);
    assert_eq!(tensor["zeros"], 2);
    assert_eq!(tensor["values"], 65536);
    assert_eq!(tensor["dtype"], "F32");
    assert_eq!(tensor["histogram"]["counts"], serde_json::json!([15, 32755, 32754, 12]));
    // The number of threads changes no bit.
    let of = |threads| show(&at("demo/model-fp8.safetensors"), &[WEIGHT, "--json", "-j", threads]);
    assert_eq!(of("1"), of("5"));
}

/// What is not finite is counted, and is in no other number.
#[test]
fn values_that_are_not_finite() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    let values = [1.0, 2.0, 4.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, -3.5];
    let tensors = [
        raw("x", "F32", &[9], f32s(&values)),
        raw("nothing", "F32", &[0, 4], vec![]),
        raw("alike", "F32", &[3], f32s(&[2.0; 3])),
        raw("lost", "F32", &[], f32s(&[f32::NAN])),
        raw("wide", "F64", &[2], [f64::MIN, f64::MAX].map(f64::to_le_bytes).concat()),
    ];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let path = path.to_str().unwrap();
    let x = &json(path, &["x[:5]"])["tensors"][0];
    assert_eq!(x["min"], -3.5);
    assert_eq!(x["max"], 4.0);
    assert!((x["mean"].as_f64().unwrap() - 0.583_333_333_333_333_4).abs() < 1e-15);
    assert!((x["std"].as_f64().unwrap() - 2.280_655_363_900_668).abs() < 1e-14);
    assert_eq!([&x["zeros"], &x["nan"], &x["infinite"]], [2, 1, 2]);
    assert_eq!(
        x["slice"],
        serde_json::json!({"shape": [5], "values": [1.0, 2.0, 4.0, null, null]})
    );
    let text = show(path, &["nothing"]);
    assert!(
        text.contains("min -  max -  mean -  std -\n") && text.contains("0 x 4 of [0, 4]\n"),
        "{text}"
    );
    let text = show(path, &["lost"]);
    assert!(text.contains("\n         NaN\n1 x 1 of []\n"), "{text}");
    assert!(show(path, &["alike"]).contains("           2 .. 2                       3 █"));
    // The range of F64 has no finite width.
    let wide = &json(path, &["wide", "--bins", "2"])["tensors"][0];
    assert_eq!(wide["histogram"]["counts"], serde_json::json!([1, 1]));
}

#[test]
fn values_and_slices() {
    let path = at("demo/model-fp8.safetensors");
    let expected = std::fs::read(at("demo/expected-f32.safetensors")).unwrap();
    let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
    let bytes = expected.tensor(WEIGHT).unwrap().data().to_vec();
    let values: Vec<f32> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let csv = show(&path, &["--csv", &format!("{WEIGHT}[3:5, -2:]")]);
    let at = |row: usize, col: usize| values[row * 256 + col];
    let rows = format!("{},{}\n{},{}\n", at(3, 254), at(3, 255), at(4, 254), at(4, 255));
    assert_eq!(csv, rows);
    assert_eq!(csv, show(&path, &["--csv", WEIGHT, "--slice", "3:5, -2:"]));
    let all = show(&path, &["--csv", WEIGHT]);
    let parsed: Vec<f32> = all
        .trim()
        .split([',', '\n'])
        .map(|x| x.parse().unwrap())
        .collect();
    assert!(
        parsed
            .iter()
            .zip(&values)
            .all(|(a, b)| a.to_bits() == b.to_bits())
    );
    assert_eq!(parsed.len(), values.len());
    let text = show(&path, &[WEIGHT, "--bins", "0"]);
    assert_eq!(text.lines().count(), 4 + 6 + 1);
    assert!(text.ends_with("6 x 8 of [256, 256]\n"), "{text}");
    for wrong in ["[256]", "[0,0,0]"] {
        assert_eq!(code(&path, &[WEIGHT, "--slice", wrong]), Some(2));
    }
    assert_eq!(code(&path, &[WEIGHT, "--slice", "x"]), Some(2));
    assert_eq!(code(&path, &["nothing"]), Some(2));
}

/// A matrix has a map of the means of blocks; a stack of matrices a line for each.
#[test]
fn where_large_values_are() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    // Blocks of two rows and of one or two columns: all alike but one that is twice as large, one
    // that is zero, and one with an infinity.
    let mut matrix = vec![-1.0f32; 32 * 90];
    for row in [30, 31] {
        matrix[row * 90..row * 90 + 1].fill(2.0);
        matrix[row * 90 + 88..row * 90 + 90].fill(0.0);
    }
    matrix[89] = f32::INFINITY;
    let stack: Vec<f32> = (0..3 * 8 * 8)
        .map(|i| (i / 64) as f32 * if i % 2 == 0 { 1.0 } else { -3.0 })
        .collect();
    let tensors = [
        raw("w", "F32", &[32, 90], f32s(&matrix)),
        raw("experts", "F32", &[3, 8, 8], f32s(&stack)),
        raw("kernel", "F32", &[64, 1, 3], f32s(&stack)),
        raw("alike", "F32", &[2, 3], f32s(&[1.0; 6])),
        raw("vector", "F32", &[192], f32s(&stack)),
        raw("empty", "F32", &[0, 8], vec![]),
    ];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let path = path.to_str().unwrap();
    let text = show(path, &["w"]);
    let (_, map) = text.split_once("\n\nmean |x| ").unwrap();
    let lines: Vec<&str> = map.lines().collect();
    assert_eq!(lines[0], "of 16 x 60 blocks, from 0 ' ' to 2 '@'; '!': not finite");
    assert_eq!(lines.len(), 17);
    assert_eq!(lines[1], format!("  |{}!|", "+".repeat(59)));
    assert_eq!(lines[2], format!("  |{}|", "+".repeat(60)));
    assert_eq!(lines[16], format!("  |@{} |", "+".repeat(58)));
    assert!(
        show(path, &["alike"]).ends_with("mean |x| of 2 x 3 blocks, all 1\n  |===|\n  |===|\n")
    );
    // numpy: x.min(), x.max(), x.mean(), np.sqrt((x * x).mean()) of each matrix.
    let text = show(path, &["experts"]);
    let (_, table) = text.split_once("\n\nINDEX ").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows,
        [
            ["0", "0", "0", "0", "0", "0"],
            ["1", "-3", "1", "-1", "2.2361", "0"],
            ["2", "-6", "2", "-2", "4.4721", "0"]
        ]
    );
    for name in ["kernel", "vector", "empty", "w[0]", "experts[1]"] {
        let text = show(path, &[name]);
        assert!(!text.contains("mean |x|") && !text.contains("INDEX"), "{text}");
    }
    assert!(!show(path, &["w", "--bins", "0"]).contains("mean |x|"));
}

#[test]
fn numpy_files() {
    let directory = crate::common::tempdir().unwrap();
    let out = directory
        .path()
        .join("w.npy")
        .to_string_lossy()
        .into_owned();
    let path = at("demo/model-fp8.safetensors");
    assert_eq!(show(&path, &[WEIGHT, "--npy", &out]), "");
    let expected = std::fs::read(at("demo/expected-f32.safetensors")).unwrap();
    let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
    let written = anamnesis::parse(&out).unwrap();
    let array = written.tensors().next().unwrap();
    assert_eq!((array.dtype(), array.shape()), (anamnesis::Dtype::F32, &[256, 256][..]));
    assert_eq!(&*array.bytes().unwrap(), expected.tensor(WEIGHT).unwrap().data());
    // What is there stays, unless it may be replaced; a failure leaves nothing.
    assert_eq!(code(&path, &[WEIGHT, "--npy", &out]), Some(7));
    assert_eq!(code(&path, &[WEIGHT, "--npy", &out, "--slice", "[999]", "-f"]), Some(2));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    show(&path, &[WEIGHT, "--npy", &out, "--slice", "[0, :3]", "-f"]);
    let written = anamnesis::parse(&out).unwrap();
    assert_eq!(written.tensors().next().unwrap().shape(), [3]);
    // NumPy has no BF16: the values are widened. Integers are as they are.
    show(&at("demo/model-fp8.safetensors"), &["--stored", "*_scale", "--npy", &out, "-f"]);
    let written = anamnesis::parse(&out).unwrap();
    assert_eq!(written.tensors().next().unwrap().dtype(), anamnesis::Dtype::F32);
    assert_eq!(code(&at("mlx/tiny_qwen3_moe/model"), &["*", "--npy", &out, "-f"]), Some(2));
}

#[test]
fn several_tensors_are_a_table() {
    let mlx = at("mlx/tiny_qwen3_moe/model");
    let text = show(&mlx, &["*q_norm*", "model.norm.weight"]);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 3);
    assert_eq!(
        rows[0],
        ["NAME", "DTYPE", "SHAPE", "MIN", "MAX", "MEAN", "STD", "ZEROS", "NAN", "INF"]
    );
    assert_eq!(rows[2][..3], ["model.norm.weight", "BF16", "[64]"]);
    // Without a name all tensors of the model, decoded: each expert is one.
    let all = show(&mlx, &["--csv"]);
    let model = anamnesis::parse(&mlx).unwrap();
    let conversion = model.plan(anamnesis::TargetDtype::F32).unwrap();
    assert_eq!(all.lines().count(), 1 + conversion.outputs().len());
    assert!(all.starts_with("name,dtype,shape,values,min,max,mean,std,zeros,nan,infinite\n"));
    assert_eq!(code(&mlx, &["*norm*[0]"]), Some(2));
    // Integers of 64 bits keep their digits.
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    let long = raw("n", "I64", &[1], i64::MAX.to_le_bytes().to_vec());
    std::fs::write(&path, file(&[long], &[])).unwrap();
    assert_eq!(show(path.to_str().unwrap(), &["n", "--csv"]), "9223372036854775807\n");
}
