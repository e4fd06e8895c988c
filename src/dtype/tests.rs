//! Names, numbers and sizes of dtypes.

use super::*;

#[test]
fn names_and_sizes_are_those_of_safetensors() {
    for &dtype in Dtype::ALL {
        let Some(theirs) = dtype.row().safetensors else {
            continue;
        };
        assert_eq!(dtype.name(), theirs.to_string());
        assert_eq!(dtype.bits(), theirs.bitsize());
        assert_eq!(Dtype::try_from(theirs).unwrap(), dtype);
        assert_eq!(dtype.to_safetensors_dtype().unwrap(), theirs);
    }
}

#[test]
#[cfg(feature = "gguf")]
fn ggml_numbers_are_unique() {
    for id in 0..512 {
        assert!(
            Dtype::ALL
                .iter()
                .filter(|d| d.row().ggml == Some(id))
                .count()
                <= 1
        );
        assert_eq!(Dtype::from_ggml(id).ggml_id(), Some(id));
    }
}

#[test]
fn sub_byte_lengths() {
    assert_eq!(Dtype::F4.byte_len(&[3, 2]), Some(3));
    assert_eq!(Dtype::F4.byte_len(&[3]), None);
    assert_eq!(Dtype::F64.byte_len(&[usize::MAX, 2]), None);
    assert_eq!(Dtype::Q4_K.byte_len(&[3, 512]), Some(6 * 144));
    assert_eq!(Dtype::Q4_K.byte_len(&[512, 3]), None);
}

#[test]
fn rows_with_a_header() {
    assert_eq!(Dtype::IQ4_KS.byte_len(&[2, 3, 512]), Some(6 * (4 + 2 * 136)));
    assert_eq!(Dtype::IQ4_KS.byte_len(&[256]), Some(4 + 136));
    assert_eq!(Dtype::Q8_KV.byte_len(&[5, 32]), Some(5 * (8 + 32)));
    for empty in [&[0, 256][..], &[3, 0], &[0]] {
        assert_eq!(Dtype::IQ4_KS.byte_len(empty), Some(0));
    }
    for refused in [&[][..], &[3, 128], &[256, 3], &[1 << 50, 1 << 9]] {
        assert_eq!(Dtype::IQ4_KS.byte_len(refused), None, "{refused:?}");
    }
    assert_eq!(Dtype::IQ2_K.byte_len(&[3, 256]), Some(3 * 76));
}
