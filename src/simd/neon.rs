//! What kernels have on aarch64 beside the code that LLVM vectorises. Every CPU of the architecture
//! has it.

use super::zip;
use std::arch::aarch64::{
    float32x4_t, uint16x4_t, vandq_u32, vbslq_f32, vceqq_f32, vdupq_n_u32, vorrq_u32,
    vreinterpretq_f32_u32, vreinterpretq_u32_f32,
};
use std::arch::asm;
use std::mem::transmute;

use half::f16;

use crate::element::Element;

/// Rounds `values` into `out`, to nearest even: the bits of `from_f32`.
#[expect(unsafe_code, reason = "instructions of a CPU")]
pub(super) fn halves(values: &[f32], out: &mut [f16]) {
    let (wide, rest) = values.as_chunks::<4>();
    let (halves, last) = out.as_chunks_mut::<4>();
    for (values, halves) in zip(wide.iter(), halves) {
        // SAFETY: every aarch64 has these instructions. Arrays have the size of the vectors, and a
        // half has two bytes. The assembly reads and writes nothing but its operands.
        unsafe {
            let values = transmute::<[f32; 4], float32x4_t>(*values);
            // The instruction keeps a part of the payload of a NaN; here a NaN has its sign alone.
            let sign = vandq_u32(vreinterpretq_u32_f32(values), vdupq_n_u32(1 << 31));
            let nan = vreinterpretq_f32_u32(vorrq_u32(sign, vdupq_n_u32(f32::NAN.to_bits())));
            let values = vbslq_f32(vceqq_f32(values, values), values, nan);
            let rounded: uint16x4_t;
            // The intrinsic needs a type of halves that Rust has not stabilised.
            asm!(
                "fcvtn {rounded:v}.4h, {values:v}.4s",
                rounded = lateout(vreg) rounded,
                values = in(vreg) values,
                options(pure, nomem, nostack, preserves_flags),
            );
            *halves = transmute::<uint16x4_t, [f16; 4]>(rounded);
        }
    }
    Element::store(rest, last);
}
