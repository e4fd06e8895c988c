//! Failures of jobs that other jobs wait for.

use safetensors::Dtype::F32;
use safetensors::tensor::TensorView;

use crate::{ConvertOptions, ForgetScheme, RememberOptions, TargetDtype};

const SIZE: usize = 768;

/// Two matrices of several tiles. The last value of the first and the first of the second cannot be
/// encoded.
fn model() -> crate::ParsedModel {
    let values = |bad: usize| -> Vec<u8> {
        let value = |i: usize| if i == bad { f32::NAN } else { i as f32 };
        (0..SIZE * SIZE)
            .flat_map(|i| value(i).to_le_bytes())
            .collect()
    };
    let data = [values(SIZE * SIZE - 1), values(0)];
    let views = ["a.weight", "b.weight"]
        .into_iter()
        .zip(&data)
        .map(|(name, data)| (name, TensorView::new(F32, vec![SIZE, SIZE], data).unwrap()));
    crate::parse_bytes(safetensors::serialize(views, None).unwrap()).unwrap()
}

#[test]
fn a_survey_that_fails_is_the_same_error_at_any_thread_count() {
    let model = model();
    for threads in [1, 2, 3, 8] {
        let scheme: ForgetScheme = "fp8-tensor".parse().unwrap();
        let mut options = ConvertOptions::from(scheme);
        options.single_file = true;
        options.run = RememberOptions::new(TargetDtype::F32).with_threads(threads);
        let error = model
            .plan(options)
            .unwrap()
            .to_bytes()
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`a.weight`, row 767, column 767: NaN"),
            "{threads} threads: {error}"
        );
    }
}
