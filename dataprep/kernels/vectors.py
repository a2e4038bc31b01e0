"""Unaligned loads, 64-byte vector comparisons and minima as LLVM vectors: one source for AVX2, AVX-512 and NEON.

Each ``masks_*`` function reads ``data[offset : offset + 64]`` and returns 64-bit masks, bit ``i`` for byte ``i``:
callers must own 64 readable bytes past the last one they look at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types as _numba_types
from numba.core import cgutils as _numba_cgutils
from numba.core.registry import cpu_target as _cpu_target

from .jit import intrinsic

__all__ = [
    "COMPRESSES",
    "count_leading_zeros",
    "count_ones",
    "count_trailing_zeros",
    "load32",
    "load64",
    "load_byte",
    "lower_eight",
    "lower_many",
    "mask_high",
    "masks_copy",
    "masks_line",
    "masks_special",
    "masks_utf8",
    "masks_word",
    "unescape_block",
]

types: Any = _numba_types
cgutils: Any = _numba_cgutils
_BYTE = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_BYTE, 64)
Codegen = Callable[[Any, Any, Any, Any], Any]


def _target_features() -> set[str]:
    """What kernels are compiled for: this processor's features unless numba was told otherwise."""
    target: Any = _cpu_target
    return set(target.target_context.codegen().magic_tuple()[2].split(","))


COMPRESSES = _target_features() >= {"+avx512vbmi", "+avx512vbmi2"}
"""Whether ``unescape_block`` compiles: x86 from Ice Lake and Zen 4 on (numba keeps compiled code apart by features)."""


def _constant(value: int) -> Any:
    return ir.Constant(_VECTOR, [value] * 64)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    base = context.make_array(array_type)(context, builder, array).data
    return builder.gep(base, [offset])


def _load(builder: Any, pointer: Any, llvm_type: Any) -> Any:
    value = builder.load(builder.bitcast(pointer, llvm_type.as_pointer()))
    value.align = 1
    return value


def _masks(context: Any, builder: Any, signature: Any, comparisons: list[Any]) -> Any:
    bits = [builder.bitcast(comparison, _I64) for comparison in comparisons]
    return bits[0] if len(bits) == 1 else context.make_tuple(builder, signature.return_type, bits)


def _block(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
    return _load(builder, pointer, _VECTOR)


@intrinsic
def count_trailing_zeros(typingctx: Any, value: Any) -> tuple[Any, Codegen]:
    """Index (int64) of the lowest set bit of a uint64; 64 for zero."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@intrinsic
def count_ones(typingctx: Any, value: Any) -> tuple[Any, Codegen]:
    """Number of set bits of a uint64 (uint64)."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def count_leading_zeros(typingctx: Any, value: Any) -> tuple[Any, Codegen]:
    """Zeros (int64) above the highest set bit of a uint64; 64 for zero."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@intrinsic
def load64(typingctx: Any, data: Any, offset: Any) -> tuple[Any, Codegen]:
    """Eight bytes at ``offset`` as a uint64, first byte lowest."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        return _load(builder, pointer, _I64)

    return types.uint64(data, types.int64), codegen


@intrinsic
def load_byte(typingctx: Any, data: Any, offset: Any) -> tuple[Any, Codegen]:
    """The byte at ``offset`` as a uint32."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.zext(builder.load(pointer), _I32)

    return types.uint32(data, types.int64), codegen


@intrinsic
def load32(typingctx: Any, data: Any, offset: Any) -> tuple[Any, Codegen]:
    """Four bytes at ``offset`` as a uint32, first byte lowest."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        return _load(builder, pointer, _I32)

    return types.uint32(data, types.int64), codegen


@intrinsic
def masks_line(typingctx: Any, data: Any, offset: Any) -> tuple[Any, Codegen]:
    """(newlines, bytes above 127)."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _block(context, builder, signature, arguments)
        newline = builder.icmp_unsigned("==", block, _constant(10))
        high = builder.icmp_signed("<", block, _constant(0))
        return _masks(context, builder, signature, [newline, high])

    return types.UniTuple(types.uint64, 2)(data, types.int64), codegen


def _special(builder: Any, block: Any) -> Any:
    quote = builder.icmp_unsigned("==", block, _constant(0x22))
    backslash = builder.icmp_unsigned("==", block, _constant(0x5C))
    control = builder.icmp_unsigned("<", block, _constant(0x20))
    return builder.or_(builder.or_(quote, backslash), control)


@intrinsic
def mask_high(typingctx: Any, data: Any, offset: Any) -> tuple[Any, Codegen]:
    """Bytes above 127."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _block(context, builder, signature, arguments)
        return _masks(context, builder, signature, [builder.icmp_signed("<", block, _constant(0))])

    return types.uint64(data, types.int64), codegen


@intrinsic
def masks_special(typingctx: Any, data: Any, offset: Any) -> tuple[Any, Codegen]:
    """Bytes that end a plain stretch of a JSON string: quote, backslash, control characters."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _block(context, builder, signature, arguments)
        return _masks(context, builder, signature, [_special(builder, block)])

    return types.uint64(data, types.int64), codegen


@intrinsic
def masks_copy(typingctx: Any, data: Any, offset: Any, target: Any, target_offset: Any) -> tuple[Any, Codegen]:
    """As ``masks_special``, and copies the 64 bytes to ``target[target_offset:]`` whatever they are."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _block(context, builder, signature, arguments)
        pointer = _pointer(context, builder, signature.args[2], arguments[2], arguments[3])
        store = builder.store(block, builder.bitcast(pointer, _VECTOR.as_pointer()))
        store.align = 1
        return _masks(context, builder, signature, [_special(builder, block)])

    return types.uint64(data, types.int64, target, types.int64), codegen


def _simple_escapes() -> list[int]:
    """What a character after a backslash stands for, 0 = it needs more (u) or is not allowed."""
    table = [0] * 128
    for escape, value in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
        table[escape] = value
    return table


def _escape_bits(builder: Any, backslashes: Any, carry: Any) -> tuple[Any, Any]:
    """(backslashes that begin an escape, characters that end one); ``carry`` 1 if the first byte ends one. A run of
    backslashes is told apart by an addition that carries along it (simdjson's method)."""

    def constant(value: int) -> Any:
        return ir.Constant(_I64, value)

    odd = constant(0xAAAAAAAAAAAAAAAA)
    may_begin = builder.and_(backslashes, builder.not_(carry))
    series = builder.sub(builder.or_(builder.shl(may_begin, constant(1)), odd), may_begin)
    ends_and_terminal = builder.xor(series, odd)
    escaped = builder.xor(ends_and_terminal, builder.or_(backslashes, carry))
    return builder.and_(ends_and_terminal, backslashes), escaped


@intrinsic
def unescape_block(typingctx: Any, data: Any, place: Any, target: Any, carry: Any) -> tuple[Any, Codegen]:
    """Copies the 64 bytes of a JSON string at ``data[place[0]:]`` to ``target[place[1]:]`` without their escapes' first
    characters and with what they stand for; all in registers, no branch. Returns (backslashes that begin an escape,
    bytes that need a look: closing quotes, control characters, u and what may not be escaped). ``carry`` 1 if the
    first byte belongs to a backslash before. Needs ``COMPRESSES``."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, carry = arguments[1], arguments[3]
        source = _pointer(context, builder, signature.args[0], arguments[0], builder.extract_value(place, 0))
        sink = _pointer(context, builder, signature.args[2], arguments[2], builder.extract_value(place, 1))
        block = _load(builder, source, _VECTOR)
        bits = ir.VectorType(ir.IntType(1), 64)
        backslashes = builder.bitcast(builder.icmp_unsigned("==", block, _constant(0x5C)), _I64)
        quotes = builder.icmp_unsigned("==", block, _constant(0x22))
        controls = builder.icmp_unsigned("<", block, _constant(0x20))
        begins, escaped = _escape_bits(builder, backslashes, carry)
        lookup = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), "llvm.x86.avx512.vpermi2var.qi.512"
        )
        halves = [ir.Constant(_VECTOR, _simple_escapes()[start : start + 64]) for start in (0, 64)]
        meant = builder.call(lookup, [halves[0], block, halves[1]])
        meant = builder.select(builder.icmp_signed("<", block, _constant(0)), _constant(0), meant)
        unknown = builder.bitcast(builder.icmp_unsigned("==", meant, _constant(0)), _I64)
        block = builder.select(builder.bitcast(escaped, bits), meant, block)
        compress = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, bits]), "llvm.x86.avx512.mask.compress.v64i8"
        )
        kept = builder.call(compress, [block, _constant(0), builder.bitcast(builder.not_(begins), bits)])
        builder.store(kept, builder.bitcast(sink, _VECTOR.as_pointer())).align = 1
        ends = builder.bitcast(builder.or_(quotes, controls), _I64)
        events = builder.or_(builder.and_(ends, builder.not_(escaped)), builder.and_(unknown, escaped))
        return context.make_tuple(builder, signature.return_type, [begins, events])

    return types.UniTuple(types.uint64, 2)(data, place, target, types.uint64), codegen


@intrinsic
def masks_utf8(typingctx: Any, data: Any, offset: Any) -> tuple[Any, Codegen]:
    """UTF-8 byte classes: continuation, >= C0, >= E0, >= F0, never legal, E0, ED, F0, F4, < A0, < 90."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _block(context, builder, signature, arguments)

        def compare(operator: str, value: int) -> Any:
            return builder.icmp_unsigned(operator, block, _constant(value))

        overlong = builder.or_(compare("==", 0xC0), compare("==", 0xC1))
        comparisons = [builder.icmp_signed("<", block, _constant(0xC0 - 256))]
        comparisons += [compare(">=", value) for value in (0xC0, 0xE0, 0xF0)]
        comparisons.append(builder.or_(overlong, compare(">=", 0xF5)))
        comparisons += [compare("==", value) for value in (0xE0, 0xED, 0xF0, 0xF4)]
        comparisons += [compare("<", value) for value in (0xA0, 0x90)]
        return _masks(context, builder, signature, comparisons)

    return types.UniTuple(types.uint64, 11)(data, types.int64), codegen


@intrinsic
def masks_word(typingctx: Any, data: Any, offset: Any) -> tuple[Any, Codegen]:
    """(ASCII letters, digits and underscores, bytes above 127)."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _block(context, builder, signature, arguments)
        folded = builder.or_(block, _constant(0x20))
        letter = builder.icmp_unsigned("<", builder.sub(folded, _constant(0x61)), _constant(26))
        digit = builder.icmp_unsigned("<", builder.sub(block, _constant(0x30)), _constant(10))
        underscore = builder.icmp_unsigned("==", block, _constant(0x5F))
        word = builder.or_(builder.or_(letter, digit), underscore)
        high = builder.icmp_signed("<", block, _constant(0))
        return _masks(context, builder, signature, [word, high])

    return types.UniTuple(types.uint64, 2)(data, types.int64), codegen


def _affine_minima(builder: Any, pointers: list[Any], count: Any, vector: Any, num_vectors: int) -> None:
    """Lower the minima at ``pointers[3]`` by ``factor * value + summand`` of ``count`` values; ``pointers``: of the
    values, of the first factor, summand and minimum."""
    nowhere = ir.Constant(vector, ir.Undefined)
    first_lane = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)

    def place(pointer: Any, v: int) -> Any:
        return builder.gep(pointer, [ir.Constant(_I64, v * vector.count)])

    values, factors, summands, minima = pointers
    a = [_load(builder, place(factors, v), vector) for v in range(num_vectors)]
    b = [_load(builder, place(summands, v), vector) for v in range(num_vectors)]
    least = [cgutils.alloca_once(builder, vector) for _ in range(num_vectors)]
    for v in range(num_vectors):
        builder.store(_load(builder, place(minima, v), vector), least[v])
    with cgutils.for_range(builder, count) as loop:
        value = builder.load(builder.gep(values, [loop.index]))
        value = builder.insert_element(nowhere, value, ir.Constant(_I32, 0))
        value = builder.shuffle_vector(value, nowhere, first_lane)
        for v in range(num_vectors):
            image = builder.add(builder.mul(a[v], value), b[v])
            old = builder.load(least[v])
            builder.store(builder.select(builder.icmp_unsigned("<", image, old), image, old), least[v])
    for v in range(num_vectors):
        store = builder.store(builder.load(least[v]), builder.bitcast(place(minima, v), vector.as_pointer()))
        store.align = 1


def _lowering(lanes: int, num_vectors: int) -> Codegen:
    """Code of ``lower_eight`` and ``lower_many``: ``num_vectors`` vectors of ``lanes`` permutations."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, count, permutations, out, first = arguments
        of_values, _, of_permutations, of_out, _ = signature.args
        pointers = [_pointer(context, builder, of_values, values, ir.Constant(_I64, 0))]
        for at in range(2):
            one = builder.extract_value(permutations, at)
            pointers.append(_pointer(context, builder, of_permutations[at], one, first))
        pointers.append(_pointer(context, builder, of_out, out, first))
        _affine_minima(builder, pointers, count, ir.VectorType(_I32, lanes), num_vectors)
        return context.get_dummy_value()

    return codegen


@intrinsic
def lower_eight(
    typingctx: Any, values: Any, count: Any, permutations: Any, out: Any, first: Any
) -> tuple[Any, Codegen]:
    """Lower ``out[first : first + 8]`` to the least ``a * value + b`` modulo 2^32 of the first ``count`` values, for
    the same elements of ``permutations``, factors and summands. All arrays are uint32."""
    return types.void(values, types.int64, permutations, out, types.int64), _lowering(8, 1)


@intrinsic
def lower_many(typingctx: Any, values: Any, count: Any, permutations: Any, out: Any, first: Any) -> tuple[Any, Codegen]:
    """``lower_eight`` for 32 permutations: more would not fit into 16 registers, fewer would load values more often."""
    return types.void(values, types.int64, permutations, out, types.int64), _lowering(16, 2)
