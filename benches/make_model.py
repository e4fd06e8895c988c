"""Writes a synthetic quantized model for whole-program timings: N tensors of 4096 x 4096, or of another shape.

python3 benches/make_model.py SCHEME[:ROWSxCOLS] OUT [N [M]]  SCHEME: fp8-block fp8-tensor gptq4 gptq4-act (and of 2, 3 and 8
                                                  bits) awq nf4 nf4-dq int8 nvfp4
                                                  int4 mlx4 gpt-oss
                                                  or a type of GGUF: Q4_0 Q8_0 Q4_K Q6_K IQ2_XS IQ3_S ...

With M, OUT is a directory of M shards of N tensors each, under an index; with N = 1 a shard has the scales of the weight
before it.

Codes are random, scales are random and small; the same call writes the same bytes. Needs nothing but Python.
"""
import json, os, random, struct, sys

# Outputs and inputs of a weight.
ROWS = COLS = 4096
random_bytes = random.Random(0).randbytes


def scales(n, fmt, size):
    rng = random.Random(n)
    few = b"".join(struct.pack(fmt, rng.uniform(1e-4, 1e-2)) for _ in range(1024))
    return (few * (n // 1024 + 1))[: n * size]


def tensors(scheme, i):
    p = f"model.layers.{i}.mlp.up_proj."
    if scheme == "fp8-block":
        yield p + "weight", "F8_E4M3", [ROWS, COLS], fp8_codes()
        yield p + "weight_scale_inv", "F32", [ROWS // 128, COLS // 128], scales(ROWS * COLS // 16384, "<f", 4)
    elif scheme == "fp8-tensor":
        yield p + "weight", "F8_E4M3", [ROWS, COLS], fp8_codes()
        yield p + "weight_scale", "F32", [], scales(1, "<f", 4)
    elif scheme.startswith("gptq"):
        bits = int(scheme[4])
        yield p + "qweight", "I32", [COLS * bits // 32, ROWS], random_bytes(ROWS * COLS * bits // 8)
        yield p + "qzeros", "I32", [COLS // 128, ROWS * bits // 32], b"\x77" * (COLS // 128 * ROWS * bits // 8)
        yield p + "scales", "F16", [COLS // 128, ROWS], scales(ROWS * COLS // 128, "<e", 2)
        order = list(range(COLS))
        if scheme.endswith("-act"):
            random.Random(i).shuffle(order)
        yield p + "g_idx", "I32", [COLS], struct.pack(f"<{COLS}i", *(k // 128 for k in order))
    elif scheme == "awq":
        yield p + "qweight", "I32", [COLS, ROWS // 8], random_bytes(ROWS * COLS // 2)
        yield p + "qzeros", "I32", [COLS // 128, ROWS // 8], random_bytes(COLS // 128 * ROWS // 2)
        yield p + "scales", "F16", [COLS // 128, ROWS], scales(ROWS * COLS // 128, "<e", 2)
    elif scheme in ("nf4", "nf4-dq"):
        codebook = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [ROWS, COLS]}
        blocks = ROWS * COLS // 64
        yield p + "weight", "U8", [ROWS * COLS // 2, 1], random_bytes(ROWS * COLS // 2)
        if scheme == "nf4":
            yield p + "weight.absmax", "F32", [blocks], scales(blocks, "<f", 4)
        else:
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.01}
            yield p + "weight.absmax", "U8", [blocks], random_bytes(blocks)
            yield p + "weight.nested_absmax", "F32", [blocks // 256], scales(blocks // 256, "<f", 4)
            yield p + "weight.nested_quant_map", "F32", [256], struct.pack("<256f", *(v / 128 - 1 for v in range(256)))
        yield p + "weight.quant_map", "F32", [16], struct.pack("<16f", *codebook)
        text = json.dumps(state).encode()
        yield p + "weight.quant_state.bitsandbytes__nf4", "U8", [len(text)], text
    elif scheme == "int8":
        yield p + "weight", "I8", [ROWS, COLS], random_bytes(ROWS * COLS)
        yield p + "SCB", "F32", [ROWS], scales(ROWS, "<f", 4)
    elif scheme == "nvfp4":
        yield p + "weight", "U8", [ROWS, COLS // 2], random_bytes(ROWS * COLS // 2)
        yield p + "weight_scale", "F8_E4M3", [ROWS, COLS // 16], fp8_codes()[: ROWS * COLS // 16]
        yield p + "weight_scale_2", "F32", [], scales(1, "<f", 4)
    elif scheme == "int4":
        yield p + "weight_packed", "I32", [ROWS, COLS // 8], random_bytes(ROWS * COLS // 2)
        yield p + "weight_scale", "BF16", [ROWS, COLS // 128], scales(ROWS * COLS // 128, "<f", 4)[2 : 2 + ROWS * COLS // 64]
        yield p + "weight_shape", "I64", [2], struct.pack("<2q", ROWS, COLS)
    elif scheme == "mlx4":
        yield p + "weight", "U32", [ROWS, COLS // 8], random_bytes(ROWS * COLS // 2)
        yield p + "scales", "F16", [ROWS, COLS // 64], scales(ROWS * COLS // 64, "<e", 2)
        yield p + "biases", "F16", [ROWS, COLS // 64], scales(ROWS * COLS // 64, "<e", 2)
    elif scheme == "gpt-oss":
        p = f"model.layers.{i}.mlp.experts.down_proj"
        yield p + "_blocks", "U8", [1, ROWS, COLS // 32, 16], random_bytes(ROWS * COLS // 2)
        yield p + "_scales", "U8", [1, ROWS, COLS // 32], bytes(120 + b % 8 for b in random_bytes(ROWS * COLS // 32))
    else:
        sys.exit(__doc__)


def fp8_codes():
    return random_bytes(ROWS * COLS).replace(b"\x7f", b"\x7e").replace(b"\xff", b"\xfe")


# GGUF types: number, values and bytes of a block, and where it has f16 scales.
GGML = {
    "Q4_0": (2, 32, 18, [0]), "Q4_1": (3, 32, 20, [0, 2]), "Q5_0": (6, 32, 22, [0]), "Q5_1": (7, 32, 24, [0, 2]),
    "Q8_0": (8, 32, 34, [0]), "Q2_K": (10, 256, 84, [80, 82]), "Q3_K": (11, 256, 110, [108]),
    "Q4_K": (12, 256, 144, [0, 2]), "Q5_K": (13, 256, 176, [0, 2]), "Q6_K": (14, 256, 210, [208]),
    "IQ2_XXS": (16, 256, 66, [0]), "IQ2_XS": (17, 256, 74, [0]), "IQ3_XXS": (18, 256, 98, [0]),
    "IQ1_S": (19, 256, 50, [0]), "IQ4_NL": (20, 32, 18, [0]), "IQ3_S": (21, 256, 110, [0]), "IQ2_S": (22, 256, 82, [0]),
    "IQ4_XS": (23, 256, 136, [0]), "IQ1_M": (29, 256, 56, []), "TQ1_0": (34, 256, 54, [52]),
    "TQ2_0": (35, 256, 66, [64]), "MXFP4": (39, 32, 17, []), "NVFP4": (40, 64, 36, []), "Q1_0": (41, 128, 18, [0]),
    "Q2_0": (42, 64, 18, [0]),
}

# Types of ik_llama.cpp: number, values and bytes of a block, and bytes before each row, which begin with its scale. Without
# them, a block begins with an f16 scale.
IK = {
    "Q6_0": (133, 32, 26, 0), "IQ1_BN": (134, 64, 13, 2), "IQ2_BN": (135, 64, 16, 4), "IQ2_K": (137, 256, 76, 0),
    "IQ3_K": (138, 256, 110, 0), "IQ4_K": (139, 256, 144, 0), "IQ5_K": (140, 256, 176, 0), "IQ6_K": (141, 256, 212, 0),
    "IQ4_KS": (144, 256, 136, 4), "IQ2_KS": (145, 256, 70, 2), "IQ4_KSS": (146, 256, 128, 4), "Q8_KV": (151, 32, 32, 8),
    "IQ5_KS": (152, 256, 168, 4), "IQ2_KT": (153, 256, 68, 4), "IQ3_KT": (154, 256, 100, 4), "IQ4_KT": (155, 256, 128, 4),
    "IQ3_KS": (156, 256, 102, 2), "IQ2_KL": (157, 256, 86, 2), "IQ1_KT": (158, 256, 56, 4),
}


def gguf(kind, out, count):
    if kind in IK:
        number, block, size, header = IK[kind]
        scale_at = [] if header else [0]
    else:
        (number, block, size, scale_at), header = GGML[kind], 0
    n = ROWS * COLS // block
    piece = bytearray(random_bytes(n * size + ROWS * header))
    scale = struct.pack("<e" if header == 2 else "<f", 0.004)
    for at in range(0, len(piece) if header else 0, len(piece) // ROWS):
        piece[at : at + len(scale)] = scale
    for at in scale_at:
        few = scales(n, "<e", 2)
        piece[at::size], piece[at + 1 :: size] = few[0::2], few[1::2]
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    header = b"GGUF" + struct.pack("<IQQ", 3, count, 1) + text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for i in range(count):
        header += text(f"blk.{i}.ffn_up.weight") + struct.pack("<IQQIQ", 2, COLS, ROWS, number, i * len(piece))
    with open(out, "wb") as file:
        file.write(header + b"\0" * (-len(header) % 32))
        for i in range(count):
            file.write(piece)


def main():
    global ROWS, COLS
    scheme, _, shape = sys.argv[1].partition(":")
    out = sys.argv[2]
    if shape:
        ROWS, COLS = map(int, shape.split("x"))
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 24
    if scheme in GGML or scheme in IK:
        return gguf(scheme, out, count)
    if len(sys.argv) > 4:
        return directory(scheme, out, count, int(sys.argv[4]))
    write(out, (t for i in range(count) for t in tensors(scheme, i)))


def directory(scheme, out, count, shards):
    """Weights and their scales lie in different shards."""
    os.makedirs(out)
    index, late, size = {}, [], 0
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        here = [t for i in range(count) for t in tensors(scheme, shard * count + i)]
        now = [t for t in here if len(t[3]) > 1 << 20] + late
        late = [t for t in here if len(t[3]) <= 1 << 20]
        if shard == shards - 1:
            now, late = now + late, []
        write(os.path.join(out, name), now)
        index |= {t[0]: name for t in now}
        size += sum(len(t[3]) for t in now)
    with open(os.path.join(out, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": size}, "weight_map": index}, file)
    with open(os.path.join(out, "config.json"), "w") as file:
        config = {"quant_method": "fp8", "weight_block_size": [128, 128]} if scheme == "fp8-block" else {}
        json.dump({"model_type": "llama", "quantization_config": config}, file)


def write(out, tensors):
    header, at = {}, 0
    with open(out + ".data", "wb") as data:
        for name, dtype, shape, content in tensors:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
            at += data.write(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as file, open(out + ".data", "rb") as data:
        file.write(struct.pack("<Q", len(text)) + text)
        while chunk := data.read(1 << 24):
            file.write(chunk)
    os.remove(out + ".data")


main()
