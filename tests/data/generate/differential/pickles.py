"""Pickles as lists of opcodes, and mutations of them."""

import pickletools
import struct

from common import NUMBERS, choose, edit_bytes, number

GLOBALS = [b"collections\nOrderedDict", b"torch._utils\n_rebuild_tensor_v2", b"torch._utils\n_rebuild_tensor", b"torch._utils\n_rebuild_tensor_v3",
           b"torch._utils\n_rebuild_parameter", b"torch._utils\n_rebuild_sparse_tensor", b"torch._utils\n_rebuild_meta_tensor_no_storage",
           b"torch\nFloatStorage", b"torch\nHalfStorage", b"torch\nLongStorage", b"torch\nByteStorage", b"torch\nBFloat16Storage", b"torch\nBoolStorage",
           b"torch\nDoubleStorage", b"torch\nIntStorage", b"torch\nShortStorage", b"torch\nCharStorage", b"torch\nComplexFloatStorage",
           b"torch.storage\nUntypedStorage", b"torch.storage\nTypedStorage", b"torch\nSize", b"torch\nfloat32", b"torch\nint16", b"torch\ndevice",
           b"torch\nTensor", b"torch\nFloatTensor", b"torch.nn.parameter\nParameter", b"builtins\nset", b"builtins\nbytearray", b"__builtin__\nset",
           b"collections\nCounter", b"_codecs\nencode", b"torch.cuda\nFloatStorage", b"torch\nQInt8Storage", b"collections\ndict", b"builtins\ncomplex"]

TEXTS = [b"storage", b"cpu", b"cuda:0", b"meta", b"0", b"1", b"2", b"-1", b"00", b"0 ", b"../0", b"a", b"b", b"", b"a.b", b"\xc3\xa4", b"\xed\xa0\x80", b"\xff", b"a\0b",
         b"state_dict", b"little", b"0/", b"A", b"weight", b"tensor", b"data.pkl", b"../version"]

CODES = [b"(", b"0", b"1", b"2", b"N", b"\x88", b"\x89", b"]", b")", b"}", b"\x8f", b"l", b"t", b"d", b"s", b"u", b"a", b"e", b"\x85", b"\x86", b"\x87", b"R", b"b",
         b"Q", b"\x81", b"\x94", b"K\0", b"K\1", b"J\xff\xff\xff\xff", b"\x80\2", b"\x80\4", b"\x80\5", b"\x80\6", b"\x95\0\0\0\0\0\0\0\0", b"\x95\3\0\0\0\0\0\0\0",
         b"q\0", b"q\1", b"h\0", b"h\1", b"r\0\0\0\0", b"j\0\0\0\0", b"p0\n", b"g0\n", b"I01\n", b"I00\n", b"I5\n", b"L5L\n", b"L5\n", b"F1.5\n", b"G" + b"\0" * 8,
         b"\x8a\0", b"\x8a\1\5", b"\x8a\1\xff", b"\x90", b"\x91", b"\x92", b"\x93", b"o", b"U\1a", b"T\1\0\0\0a", b"X\1\0\0\0a", b"\x8c\1a", b"\x8d\1\0\0\0\0\0\0\0a",
         b"B\1\0\0\0a", b"C\1a", b"\x8e\1\0\0\0\0\0\0\0a", b"\x96\1\0\0\0\0\0\0\0a", b"S'a'\n", b"Va\n", b"P0\n", b"\x97", b"\x98", b"\x82\1", b"."]


def opcodes(pickle):
    """The opcodes of one pickle as bytes each, up to its end."""
    places = [(op.name, arg, at) for op, arg, at in pickletools.genops(pickle)]
    ends = [at for _, _, at in places[1:]] + [places[-1][2] + 1]
    return [(name, arg, pickle[at:end]) for (name, arg, at), end in zip(places, ends)]


def integer(rng, n):
    """An opcode that pushes an integer."""
    forms = [lambda: b"I%d\n" % n, lambda: b"L%dL\n" % n, lambda: b"L%d\n" % n, lambda: b"I+%d\n" % abs(n), lambda: b"I0%d\n" % abs(n), lambda: b"I %d \n" % n,
             lambda: b"I%d_0\n" % n, lambda: b"I0x%x\n" % abs(n), lambda: b"\x88" if n & 1 else b"\x89", lambda: b"F%d\n" % n, lambda: b"G" + struct.pack(">d", n)]
    size = (n.bit_length() + 8) // 8
    forms += [lambda: b"\x8a" + bytes([size]) + n.to_bytes(size, "little", signed=True), lambda: b"\x8a" + bytes([size + 1]) + n.to_bytes(size + 1, "little", signed=True),
              lambda: b"\x8b" + struct.pack("<I", size) + n.to_bytes(size, "little", signed=True)]
    if 0 <= n < 256:
        forms += [lambda: b"K" + bytes([n])] * 3
    if 0 <= n < 65536:
        forms += [lambda: b"M" + struct.pack("<H", n)] * 3
    if -(1 << 31) <= n < 1 << 31:
        forms += [lambda: b"J" + struct.pack("<i", n)] * 3
    return choose(rng, forms)()


def text(rng, content):
    """An opcode that pushes a text."""
    n = len(content)
    forms = [b"X" + struct.pack("<I", n) + content] * 4 + [b"\x8d" + struct.pack("<Q", n) + content, b"V" + content + b"\n", b"S'" + content + b"'\n", b"C" + bytes([n & 255]) + content]
    if n < 256:
        forms += [b"\x8c" + bytes([n]) + content] * 2 + [b"U" + bytes([n]) + content] * 2
    return choose(rng, forms)


def mutate_one(rng, ops):
    i = rng.randrange(len(ops))
    name, arg, code = ops[i]
    kind = rng.randrange(12)
    if kind < 5:
        # An argument: of the kind that this opcode has.
        if name.startswith(("BININT", "LONG", "INT")) and isinstance(arg, int):
            n = choose(rng, [0, 1, 2, 3, 4, 6, 8, 12, -1, arg, arg + 1, arg - 1, arg * 2, choose(rng, NUMBERS), -choose(rng, NUMBERS)])
            ops[i] = name, n, integer(rng, n)
        elif "UNICODE" in name or "STRING" in name:
            content = choose(rng, [*TEXTS, str(arg).encode("utf8", "replace"), str(arg).encode("utf8", "replace")])
            ops[i] = name, arg, text(rng, content)
        elif name == "GLOBAL":
            ops[i] = name, arg, b"c" + choose(rng, GLOBALS) + b"\n"
        elif "GET" in name or "PUT" in name:
            n = max(0, arg + choose(rng, [-2, -1, 0, 1, 2]))
            put = "PUT" in name
            ops[i] = name, n, choose(rng, [b"qh"[1 - put:][:1] + bytes([n & 255]), b"rj"[1 - put:][:1] + struct.pack("<I", n), b"pg"[1 - put:][:1] + b"%d\n" % n,
                                           b"rj"[1 - put:][:1] + struct.pack("<I", number(rng, 32)), b"pg"[1 - put:][:1] + b"0%d\n" % n, b"\x94"])
        else:
            ops[i] = name, arg, choose(rng, CODES)
    elif kind == 5:
        del ops[i]
    elif kind == 6:
        ops.insert(i, choose(rng, ops))
    elif kind == 7:
        ops.insert(i, ("new", None, choose(rng, CODES)))
    elif kind == 8:
        j = rng.randrange(len(ops))
        ops[i], ops[j] = ops[j], ops[i]
    elif kind == 9:
        j = min(len(ops), i + rng.randrange(1, 12))
        at = rng.randrange(len(ops))
        ops[at:at] = ops[i:j]
    elif kind == 10:
        ops[i] = name, arg, edit_bytes(rng, code)
    else:
        # Something computed and dropped again.
        ops.insert(i, ("new", None, choose(rng, CODES[4:12]) + choose(rng, [b"0", b"20", b"q\1230", b"\x940"])))


def mutant(rng, ops):
    ops = list(ops)
    for _ in range(choose(rng, [1, 1, 1, 2, 2, 3])):
        if ops:
            mutate_one(rng, ops)
    return b"".join(code for _, _, code in ops)
