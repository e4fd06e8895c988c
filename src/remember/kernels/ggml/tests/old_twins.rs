//! Naive decoders of the block types of ggml from before May 2023.

use super::*;

/// The five-bit code of value `i`, whose nibbles begin at byte `at` and whose highest bits before them.
fn five_bits(b: BlockBits<'_>, at: usize, i: usize) -> i32 {
    b.nibble(at, i, 1) + 16 * b.get(at - 4, i, 1)
}

impl DecodeRowTwin for Q4_0_V0 {
    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        (b.nibble(4, i, 1) - 8) as f32 * b.f32_at(0)
    }
}

impl DecodeRowTwin for Q4_1_V0 {
    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        b.nibble(8, i, 1) as f32 * b.f32_at(0) + b.f32_at(4)
    }
}

impl DecodeRowTwin for Q4_2 {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        (b.nibble(2, i, 1) - 8) as f32 * b.f16_at(0)
    }
}

impl DecodeRowTwin for Q4_3 {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        b.nibble(4, i, 1) as f32 * b.f16_at(0) + b.f16_at(2)
    }
}

impl DecodeRowTwin for Q5_0_V0 {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        (five_bits(b, 6, i) - 16) as f32 * b.f16_at(0)
    }
}

impl DecodeRowTwin for Q5_1_V0 {
    const HAS_SCALE: bool = true;

    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        five_bits(b, 8, i) as f32 * b.f16_at(0) + b.f16_at(2)
    }
}

impl DecodeRowTwin for Q8_0_V0 {
    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        b.signed(4 + i) * b.f32_at(0)
    }
}

impl DecodeRowTwin for Q4_0_V1 {
    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        (b.nibble(4, i, 16) - 8) as f32 * b.f32_at(0)
    }
}

impl DecodeRowTwin for Q4_1_V1 {
    fn value(b: BlockBits<'_>, _: f32, i: usize) -> f32 {
        b.nibble(8, i, 16) as f32 * b.f32_at(0) + b.f32_at(4)
    }
}
