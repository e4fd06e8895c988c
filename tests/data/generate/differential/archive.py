"""ZIP archives as lists of members whose every field can be set, and mutations of them."""

import copy
import struct
import zlib

from common import choose, edit_bytes, number

FIELDS = ["signature", "version", "flags", "method", "time", "date", "crc", "stored_len", "len", "name_len", "extra_len"]


class Member:
    """A member: fields that are `None` are written as they really are. `central` has those of the directory that differ."""

    def __init__(self, name, content, deflated=False):
        self.name, self.content, self.deflated = name, content, deflated
        self.local, self.central = {}, {}
        self.local_name = self.local_extra = None
        self.extra, self.comment, self.descriptor, self.gap, self.stored = b"", b"", None, b"", None

    def data(self):
        if self.stored is not None:
            return self.stored
        if not self.deflated:
            return self.content
        squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
        return squeeze.compress(self.content) + squeeze.flush()


class Archive:
    def __init__(self, members):
        self.members, self.directory = members, None
        self.end, self.end64, self.locator = {}, None, {}
        self.prefix = self.suffix = self.comment = self.gap = b""

    def file(self):
        out, places = bytearray(self.prefix), {}
        for member in self.members:
            data = member.data()
            out += member.gap
            places[id(member)] = len(out)
            fields = real_fields(member, data)
            if member.descriptor is not None:
                fields.update(flags=fields["flags"] | 8)
                if member.descriptor != "sizes":
                    fields.update(crc=0, stored_len=0, len=0)
            name = member.name if member.local_name is None else member.local_name
            extra = member.extra if member.local_extra is None else member.local_extra
            fields.update(name_len=len(name), extra_len=len(extra))
            fields.update(member.local)
            out += struct.pack("<IHHHHHIIIHH", *masked(fields)) + name + extra + data
            if member.descriptor is not None:
                crc, size = struct.pack("<I", zlib.crc32(member.content)), struct.pack("<II", len(data), len(member.content))
                if member.descriptor == "long":
                    size = struct.pack("<QQ", len(data), len(member.content))
                out += (b"" if member.descriptor == "bare" else b"PK\7\x08") + crc + size
        out += self.gap
        start, listed = len(out), self.members if self.directory is None else self.directory
        for member in listed:
            out += entry(member, places.get(id(member), 0))
        self.finish(out, start, len(listed))
        return bytes(out)

    def finish(self, out, start, count):
        size = len(out) - start
        if self.end64 is not None:
            place = len(out)
            f = {"signature": 0x06064b50, "size": 44, "made": 45, "needed": 45, "disk": 0, "start_disk": 0, "here": count, "all": count,
                 "len": size, "offset": start, **self.end64}
            out += struct.pack("<IQHHIIQQQQ", f["signature"], f["size"] & (1 << 64) - 1, f["made"] & 0xffff, f["needed"] & 0xffff,
                               *(f[k] & 0xffffffff for k in ["disk", "start_disk"]), *(f[k] & (1 << 64) - 1 for k in ["here", "all", "len", "offset"]))
            f = {"signature": 0x07064b50, "disk": 0, "place": place, "disks": 1, **self.locator}
            out += struct.pack("<IIQI", f["signature"], f["disk"] & 0xffffffff, f["place"] & (1 << 64) - 1, f["disks"] & 0xffffffff)
        f = {"signature": 0x06054b50, "disk": 0, "start_disk": 0, "here": count, "all": count, "len": size, "offset": start,
             "comment_len": len(self.comment), **self.end}
        out += struct.pack("<IHHHHIIH", f["signature"], *(f[k] & 0xffff for k in ["disk", "start_disk", "here", "all"]),
                           f["len"] & 0xffffffff, f["offset"] & 0xffffffff, f["comment_len"] & 0xffff) + self.comment + self.suffix


def real_fields(member, data):
    return {"signature": 0x04034b50, "version": 20, "flags": 0, "method": 8 if member.deflated else 0, "time": 0, "date": 33,
            "crc": zlib.crc32(member.content), "stored_len": len(data), "len": len(member.content)}


def masked(fields):
    wide = {"signature", "crc", "stored_len", "len"}
    return [fields[f] & (0xffffffff if f in wide else 0xffff) for f in FIELDS]


def entry(member, place):
    f = {**real_fields(member, member.data()), "signature": 0x02014b50, "made": 20, "name_len": len(member.name), "extra_len": len(member.extra),
         "comment_len": len(member.comment), "disk": 0, "internal": 0, "external": 0o600 << 16, "offset": place}
    if member.descriptor is not None:
        f["flags"] |= 8
    f.update(member.central)
    rest = masked(f)
    return (struct.pack("<IHHHHHHIIIHH", rest[0], f["made"] & 0xffff, *rest[1:]) + struct.pack("<HHHII", f["comment_len"] & 0xffff, f["disk"] & 0xffff,
            f["internal"] & 0xffff, f["external"] & 0xffffffff, f["offset"] & 0xffffffff) + member.name + member.extra + member.comment)


def odd_name(rng, name):
    stem, dot, end = name.rpartition(b".")
    return choose(rng, [name.upper(), name + b"/", b"/" + name, b"./" + name, b"../" + name, name.replace(b"/", b"\\"), name + b"\0", name + b"\0x",
                        b"", name * 2, name + b".npy", stem or name, name.capitalize(), b"x/" + name, name.replace(b"/", b"//"), name + b" ",
                        name.replace(b"a", b"\xc3\xa4"), name.replace(b"a", b"\x84"), b"C:" + name, name[::-1], name.replace(b"a", b"\xe2\x84\xaa"), name[:-1]])


def odd_extra(rng, member):
    n = len(member.content)
    long = struct.pack("<QQQ", n, len(member.data()), number(rng, 64))
    path = lambda name: struct.pack("<HHBI", 0x7075, 5 + len(name), 1, zlib.crc32(member.name)) + name  # noqa: E731
    return choose(rng, [struct.pack("<HH", 1, 16) + long[:16], struct.pack("<HH", 1, 8) + long[:8], struct.pack("<HH", 1, 24) + long,
                        struct.pack("<HH", 1, 0), struct.pack("<HH", 1, 16) + struct.pack("<QQ", number(rng, 64, [n]), number(rng, 64, [n])),
                        (struct.pack("<HH", 1, 16) + long[:16]) * 2, path(b"other.npy"), path(member.name), b"FB" + struct.pack("<H", 6) + b"ZZZZZZ",
                        b"x", b"xy\xff\xff", struct.pack("<HH", 0x9901, 7) + b"\2\0AE\3\0\0", struct.pack("<HH", 0xcafe, 0), b"\0" * 4, b"\0" * 70])


def mutate_member(rng, archive):
    members = archive.members
    i = rng.randrange(len(members))
    m, kind = members[i], rng.randrange(17)
    if kind == 0:
        where = choose(rng, [m.local, m.central])
        field = choose(rng, FIELDS)
        near = [len(m.content), len(m.data()), len(m.name), 8, 0x800]
        where[field] = number(rng, 32, near)
    elif kind == 1:
        value = choose(rng, [0, 1, 2, 4, 6, 8, 0x20, 0x40, 0x800, 0x808, 0x2000, 0x2041, 0xffff])
        for where in choose(rng, [[m.local], [m.central], [m.local, m.central]]):
            where["flags"] = value
    elif kind == 2:
        value = choose(rng, [0, 8, 1, 9, 12, 14, 93, 95, 99])
        for where in choose(rng, [[m.local], [m.central], [m.local, m.central]]):
            where["method"] = value
    elif kind == 3:
        m.deflated = not m.deflated
    elif kind == 4:
        m.name = odd_name(rng, m.name)
    elif kind == 5:
        m.local_name = odd_name(rng, m.name)
    elif kind == 6:
        m.extra = odd_extra(rng, m)
        if rng.random() < 0.5:
            m.local_extra = choose(rng, [b"", odd_extra(rng, m)])
    elif kind == 7:
        m.descriptor = choose(rng, ["bare", "signed", "long", "sizes"])
    elif kind == 8:
        twin = copy.deepcopy(m)
        twin.content = choose(rng, [m.content, m.content[::-1], choose(rng, members).content])
        if rng.random() < 0.5:
            twin.name = odd_name(rng, m.name)
        members.insert(rng.randrange(len(members) + 1), twin)
    elif kind == 9:
        m.name = choose(rng, members).name
    elif kind == 10:
        m.central["offset"] = number(rng, 32, [0, 30, len(m.content)])
    elif kind == 11:
        m.central[choose(rng, ["disk", "made", "internal", "external", "comment_len"])] = number(rng, 32)
    elif kind == 12:
        # Sizes of all ones, with the 64-bit field that belongs to them.
        m.central.update(stored_len=0xffffffff, len=0xffffffff)
        m.extra = struct.pack("<HHQQ", 1, 16, len(m.content), len(m.data()))
        if rng.random() < 0.3:
            m.central["offset"] = 0xffffffff
            m.extra = struct.pack("<HHQQQ", 1, 24, len(m.content), len(m.data()), 0)
    elif kind == 13:
        m.gap = choose(rng, [b"\0" * 16, b"PK\3\4" + b"\0" * 26, b"junk", Archive([copy.deepcopy(m)]).file()])
    elif kind == 14:
        m.comment = choose(rng, [b"note", b"PK\5\6", b"PK\5\6" + b"\0" * 18, b"\0" * 30])
    elif kind == 15:
        m.stored = choose(rng, [m.data() + b"x", m.data()[:-1], b"", m.data() * 2, edit_bytes(rng, m.data())])
        if rng.random() < 0.5:
            for where in [m.local, m.central]:
                where["stored_len"] = len(m.stored)
    else:
        m.content = edit_bytes(rng, m.content)


def mutate(rng, archive):
    """Changes one thing of the archive."""
    kind = rng.randrange(12)
    if kind < 6 and archive.members:
        return mutate_member(rng, archive)
    listed = list(archive.members)
    if kind == 6:
        archive.end[choose(rng, ["signature", "disk", "start_disk", "here", "all", "len", "offset", "comment_len"])] = number(rng, 32, [len(listed), 46])
    elif kind == 7:
        archive.end64 = archive.end64 or {}
        if rng.random() < 0.7:
            field = choose(rng, ["signature", "size", "made", "needed", "disk", "start_disk", "here", "all", "len", "offset"])
            archive.end64[field] = number(rng, 64 if field not in ("signature", "disk", "start_disk") else 32, [len(listed), 44, 46])
        if rng.random() < 0.3:
            archive.locator[choose(rng, ["signature", "disk", "place", "disks"])] = number(rng, 32)
        if rng.random() < 0.4:
            archive.end.update({f: (1 << 32) - 1 for f in choose(rng, [["here", "all", "len", "offset"], ["offset"], ["here"], ["len"], ["disk", "start_disk"]])})
    elif kind == 8:
        archive.prefix = choose(rng, [b"junk", b"\0" * 64, b"MZ" + b"\0" * 62, b"\x93NUMPY", b"PK\3\4", archive.file()])
        if rng.random() < 0.5:
            archive.end["offset"] = len(b"".join([archive.prefix]))
    elif kind == 9:
        archive.suffix = choose(rng, [b"\0", b"\n", b"junk" * 8, archive.file(), Archive(listed[:1]).file(), b"PK\5\6" + b"\0" * 18, b"\0" * 22])
    elif kind == 10:
        archive.comment = choose(rng, [b"a note", b"PK\5\6" + b"\0" * 18, b"PK\5\6" + b"\0" * 20, Archive(listed[-1:]).file(), b"\0" * 65535])
    elif kind == 11 and listed:
        directory = listed if archive.directory is None else list(archive.directory)
        what = rng.randrange(5)
        if what == 0:
            rng.shuffle(directory)
        elif what == 1 and directory:
            directory.pop(rng.randrange(len(directory)))
        elif what == 2 and directory:
            directory.append(choose(rng, directory))
        elif what == 3:
            rng.shuffle(archive.members)
        else:
            archive.gap = choose(rng, [b"\0" * 4, b"PK\1\2", b"PK\6\x08\0\0\0\0"])
        archive.directory = directory if what < 3 else archive.directory


def mutant(rng, archive):
    archive = copy.deepcopy(archive)
    for _ in range(choose(rng, [1, 1, 1, 1, 2, 2, 3])):
        mutate(rng, archive)
    file = archive.file()
    return edit_bytes(rng, file) if rng.random() < 0.06 else file
