"""Saved graphs (kiln.v1.Graph), encoded by hand so that no protobuf package is needed."""

FLOAT32 = 9
ROLE_USER = 1


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    return message(field, value.encode())


def tensor_type(sizes: list[int]) -> bytes:
    """A ValueType: contiguous float32."""
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return message(1, number(1, FLOAT32), *(message(2, number(1, n)) for n in sizes),
                   *(message(3, number(1, n)) for n in strides))


def value(index: int) -> bytes:
    return number(1, index)


def integer(n: int) -> bytes:
    return number(2, n)


def boolean(on: bool) -> bytes:
    return number(4, int(on))


def node(name: str, op: str, args: list[bytes], sizes: list[int], location: str = "") -> bytes:
    return message(6, text(1, name), text(2, op), *(message(3, a) for a in args),
                   message(5, tensor_type(sizes)), text(6, location))


def graph(name: str, inputs: list[list[int]], nodes: list[bytes], output: int) -> bytes:
    parts = [number(1, 1), text(2, name)]
    for i, sizes in enumerate(inputs):
        parts.append(message(4, text(1, f"input_{i}"), number(2, ROLE_USER), message(3, tensor_type(sizes))))
    return b"".join(parts + nodes + [message(7, number(1, output))])


def attention_like(name: str, size: int, mark: str = "") -> bytes:
    """softmax(relu(x @ w + x)) + x: a product and a reduction, with something to fuse into each.
    Every name ends in `mark`."""
    square = [size, size]
    return graph(name, [square, square], [
        node(f"scores{mark}", "aten.mm.default", [value(0), value(1)], square, f"model.py:1{mark}"),
        node(f"shifted{mark}", "aten.add.Tensor", [value(2), value(0)], square),
        node(f"positive{mark}", "aten.relu.default", [value(3)], square),
        node(f"weights{mark}", "aten._softmax.default", [value(4), integer(-1), boolean(False)], square),
        node(f"mixed{mark}", "aten.add.Tensor", [value(5), value(0)], square),
    ], 6)


def unknown_operator(name: str, op: str) -> bytes:
    return graph(name, [[4]], [node("n", op, [value(0)], [4])], 1)
