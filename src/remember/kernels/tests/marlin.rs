//! Tiles of Marlin against one code after the other, at every level.

use crate::remember::kernels::marlin::{
    MarlinTiles, OutputOrder, SparsePlaces, TILE_BYTES, TILE_INPUTS, TILE_OUTPUTS, TileOrder,
};
use crate::simd::Level;

/// What nothing is written to.
const UNTOUCHED: u8 = 0xa5;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 151 + i / 7) as u8).collect()
}

/// The code of an input of an output, of a tile of Marlin or marlin-24.
fn code(tile: &[u8], order: TileOrder, is_sparse: bool, [output, input]: [usize; 2]) -> u8 {
    // The line of four lanes, the word of each and which of its two outputs.
    let (line, word, second) = match is_sparse {
        false => (output % 8, output / 16, output / 8 % 2),
        true => (output / 8, output % 4, output / 4 % 2),
    };
    // The lane and which of its four inputs.
    let (lane, at) = match order {
        TileOrder::Halves => (input % 8 / 2, input / 8 * 2 + input % 2),
        TileOrder::HalvesOfBytes | TileOrder::UpperHalvesOfBytes => (input / 4, input % 4),
    };
    let first = 4 * (16 * line + 4 * lane + word);
    let nibble = match order {
        TileOrder::Halves | TileOrder::HalvesOfBytes => [[0, 4, 1, 5], [2, 6, 3, 7]][second][at],
        TileOrder::UpperHalvesOfBytes => [[1, 3, 5, 7], [0, 2, 4, 6]][second][at],
    };
    let code = tile[first + nibble / 2] >> (nibble % 2 * 4) & 15;
    match order {
        TileOrder::UpperHalvesOfBytes => code << 4,
        _ => code,
    }
}

#[test]
fn tiles_are_unpacked() {
    let orders = [TileOrder::Halves, TileOrder::HalvesOfBytes, TileOrder::UpperHalvesOfBytes];
    for (order, is_sparse) in orders.into_iter().flat_map(|o| [(o, false), (o, true)]) {
        // An even and an odd number of tiles, with columns beside them.
        for (depths, outputs, left) in [(1, 64, 0), (2, 128, 16), (5, 64, 3)] {
            let pitch = outputs / TILE_OUTPUTS * TILE_BYTES;
            let stored = bytes(depths * pitch);
            let width = left + depths * TILE_INPUTS + 7;
            for level in Level::available() {
                let mut rows = vec![UNTOUCHED; outputs * width];
                let tiles = MarlinTiles {
                    order,
                    outputs: match is_sparse {
                        true => OutputOrder::SPARSE,
                        false => OutputOrder::DENSE,
                    },
                    tiles: &stored,
                    pitch,
                    rows: &mut rows,
                    width,
                    left,
                };
                tiles.unpack(level);
                for (i, &got) in rows.iter().enumerate() {
                    let (output, input) = (i / width, (i % width).wrapping_sub(left));
                    let depth = input / TILE_INPUTS;
                    let want = if depth < depths {
                        let tile = depth * pitch + output / TILE_OUTPUTS * TILE_BYTES;
                        let at = [output % TILE_OUTPUTS, input % TILE_INPUTS];
                        code(&stored[tile..], order, is_sparse, at)
                    } else {
                        UNTOUCHED
                    };
                    assert_eq!(got, want, "{order:?} {level:?}, {output} × {input}");
                }
            }
        }
    }
}

/// The index of the number that has the places of half of the inputs of an output
/// (compressed-tensors `_calculate_meta_reordering_scatter_offsets`).
fn index(output: usize, half: usize) -> usize {
    let row = output % 2 * 2 + output % 8 / 4 + output % 4 / 2 * 32 + output / 8 * 4;
    match (row % 2, half) {
        (0, 1) => (row + 1) * 2,
        (1, 0) => (row - 1) * 2 + 1,
        _ => row * 2 + half,
    }
}

/// Two different places in order, another for each nibble.
fn ordered_places(len: usize) -> Vec<u8> {
    const NIBBLES: [u8; 6] = [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110];
    (0..len)
        .map(|i| NIBBLES[i % 6] | NIBBLES[(i / 5 + i) % 6] << 4)
        .collect()
}

#[test]
fn codes_are_put_at_their_places() {
    const INPUTS: usize = 2 * TILE_INPUTS;
    let (depths, outputs, zero, left) = (3, 2 * TILE_OUTPUTS, 8, 5);
    let (stored, width) = (depths * TILE_INPUTS, left + depths * INPUTS + 3);
    let codes = bytes(outputs * stored);
    let size = 4 * outputs;
    let places = ordered_places(depths * size);
    for level in Level::available() {
        let put = |places: &[u8], rows: &mut [u8]| {
            let placed = SparsePlaces {
                codes: &codes,
                stored,
                places,
                zero,
                rows,
                width,
                left,
                are_ordered: true,
            };
            placed.put(level)
        };
        let mut rows = vec![UNTOUCHED; outputs * width];
        assert!(put(&places, &mut rows));
        for (output, row) in rows.chunks_exact(width).enumerate() {
            let mut want = vec![UNTOUCHED; width];
            want[left..left + depths * INPUTS].fill(zero);
            for (i, &code) in codes[output * stored..][..stored].iter().enumerate() {
                let (depth, i) = (i / TILE_INPUTS, i % TILE_INPUTS);
                let (tile, half) = (output / TILE_OUTPUTS * 4 * TILE_OUTPUTS, i / 8);
                let number = depth * size + tile + 2 * index(output % TILE_OUTPUTS, half);
                let nibble = places[number + i % 8 / 4] >> (i % 4 / 2 * 4);
                let place = usize::from(nibble >> (i % 2 * 2) & 3);
                want[left + depth * INPUTS + i / 2 * 4 + place] = code;
            }
            assert_eq!(row, want, "{level:?}, {output}");
        }
        // Two codes at one place, and two in no order: the first nibble and the last.
        for (at, kept, nibble) in [(0, 0xf0, 0b0101), (depths * size - 1, 0x0f, 0b0001_0000)] {
            let mut places = places.clone();
            places[at] = places[at] & kept | nibble;
            assert!(!put(&places, &mut rows), "{level:?}");
        }
    }
}
