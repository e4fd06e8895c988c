//! Against the bytes of MLX.

use crate::forget::grouped::tests::check_all;

#[test]
fn encodings_equal_mlx() {
    check_all("mlx_encode");
}
