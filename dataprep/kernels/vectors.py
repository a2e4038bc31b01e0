"""Unaligned loads and 64-byte vector comparisons as LLVM vectors: one source for AVX2, AVX-512 and NEON.

Each ``masks_*`` function reads ``data[offset : offset + 64]`` and returns 64-bit masks, bit ``i`` for byte ``i``:
callers must own 64 readable bytes past the last one they look at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types as _numba_types

from .jit import intrinsic

__all__ = [
    "count_ones",
    "count_trailing_zeros",
    "load32",
    "load64",
    "load_byte",
    "masks_copy",
    "masks_line",
    "masks_special",
    "masks_utf8",
    "masks_word",
]

types: Any = _numba_types
_BYTE = ir.IntType(8)
_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_BYTE, 64)
Codegen = Callable[[Any, Any, Any, Any], Any]


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
        return builder.zext(builder.load(pointer), ir.IntType(32))

    return types.uint32(data, types.int64), codegen


@intrinsic
def load32(typingctx: Any, data: Any, offset: Any) -> tuple[Any, Codegen]:
    """Four bytes at ``offset`` as a uint32, first byte lowest."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        return _load(builder, pointer, ir.IntType(32))

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
