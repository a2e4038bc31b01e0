"""A slow, strict judge of one JSONL line, and a collection of hostile lines with what must become of each.

The judge leans on Python's own codec and ``json`` module, told to be strict; it shares nothing with the scanner.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MAX_DEPTH = 512
Verdict = tuple[str, str | None]


def nesting_of(text: str) -> int:
    """Deepest nesting of brackets outside strings."""
    depth = deepest = 0
    inside = escaped = False
    for character in text:
        if inside:
            inside = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            inside = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def has_surrogate(value: Any) -> bool:
    """Whether any string inside (a list of pairs stands for an object) holds a lone surrogate."""
    if isinstance(value, str):
        return any(0xD800 <= ord(character) < 0xE000 for character in value)
    return isinstance(value, list | tuple) and any(map(has_surrogate, value))


class Pairs(list[Any]):
    """An object as its pairs in order, duplicates included."""


def judge(line: bytes, field: str = "text") -> Verdict:
    """("document", text), ("reject", reason) or ("blank", None) for one line without its newline."""
    if not line.strip(b" \t\r"):
        return "blank", None
    try:
        text = line.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return "reject", "utf8"
    if nesting_of(text) > MAX_DEPTH:
        return "reject", "depth"
    try:
        value = json.loads(text, parse_int=float, object_pairs_hook=Pairs)
    except ValueError:
        return "reject", "syntax"
    if has_surrogate(value):
        return "reject", "surrogate"
    if not isinstance(value, Pairs):
        return "reject", "not-object"
    found = [item for key, item in value if key == field]
    if not found:
        return "reject", "text-missing"
    if not isinstance(found[-1], str):
        return "reject", "text-type"
    if not found[-1].strip(" \t\n\r\v\f"):
        return "reject", "empty"
    return "document", found[-1]


def _documents() -> list[tuple[str, bytes, str]]:
    """(kind, line, text) of lines that are documents whatever they look like."""
    good = "good"
    long_text = "long " * 100_000
    cases: list[tuple[str, str, str]] = [
        ("plain", '{"text": "good"}', good),
        ("other fields around", '{"id": "7", "text": "good", "lang": "en"}', good),
        ("white space everywhere", ' \t{ "id"\t:\t"1" ,\r "text" : "good"\t} \t', good),
        ("carriage return at the end", '{"text":"good"}\r', good),
        ("short escapes", r'{"text":"\"\\\/\b\f\n\r\t"}', '"\\/\b\f\n\r\t'),
        ("escapes of one to three bytes", r'{"text":"\u0041\u00e9\u20AC\uffff"}', "A\xe9\u20ac\uffff"),
        ("an escaped pair", r'{"text":"a\ud83d\ude00b"}', "a\U0001f600b"),
        ("upper and lower hex", r'{"text":"\uABCD\uabcd"}', "\uabcd\uabcd"),
        ("escaped NUL", r'{"text":"a\u0000b"}', "a\0b"),
        ("raw astral", '{"text":"\U0001f600\U0010ffff"}', "\U0001f600\U0010ffff"),
        ("raw DEL, C1, line separators", '{"text":"\x7f\x85\u2028\u2029"}', "\x7f\x85\u2028\u2029"),
        ("noncharacters", '{"text":"\ufffe\uffff\ufdd0"}', "\ufffe\uffff\ufdd0"),
        ("a BOM inside the text", '{"text":"\ufeffgood"}', "\ufeffgood"),
        ("non-ASCII space is text", '{"text":"\u3000"}', "\u3000"),
        ("integer of 5,000 digits", '{"n":' + "9" * 5000 + ',"text":"good"}', good),
        ("1e999", '{"n":1e999,"text":"good"}', good),
        ("a long fraction", '{"n":0.' + "3" * 5000 + 'e-7,"text":"good"}', good),
        ("numbers of all shapes", '{"n":[-0,0,1E+5,1e-5,0.5,-1.25E5,10],"text":"good"}', good),
        ("integer above 2^64", '{"n":18446744073709551616,"text":"good"}', good),
        ("NaN outside text", '{"n":NaN,"text":"good"}', good),
        ("infinities outside text", '{"n":[Infinity,-Infinity,{"a":NaN}],"text":"good"}', good),
        ("nested text before", '{"meta":{"text":"WRONG","a":[{"text":"WRONG"}]},"text":"good"}', good),
        ("nested text after", '{"text":"good","meta":{"text":"WRONG"}}', good),
        ("brackets in strings", '{"m":"}]{[\\"\\\\","text":"good"}', good),
        ("escaped key", '{"te\\u0078t":"good"}', good),
        ("wholly escaped key", '{"\\u0074\\u0065\\u0078\\u0074":"good"}', good),
        ("a longer key with escapes", '{"text\\u0021\\n\\n\\n\\n\\n\\n\\n":1,"text":"good"}', good),
        ("keys that begin alike", '{"tex":"WRONG","texts":"WRONG","text":"good"}', good),
        ("duplicate text, the last wins", '{"text":"first","text":"good"}', good),
        ("duplicate text, shorter last", '{"text":"' + "x" * 300 + '","text":"good"}', good),
        ("duplicate text after null", '{"text":null,"text":"good"}', good),
        ("duplicate text, escaped last", '{"text":"first","t\\u0065xt":"good"}', good),
        ("duplicate other key", '{"a":1,"a":2,"text":"good"}', good),
        (
            "another field of any type",
            '{"a":5,"b":{"c":1},"d":null,"e":true,"f":false,"g":[],"h":{},"text":"good"}',
            good,
        ),
        ("empty key", '{"":1,"text":"good"}', good),
        ("depth 100", '{"m":' + "[" * 99 + "]" * 99 + ',"text":"good"}', good),
        ("depth 512", '{"m":' + "[" * 511 + "]" * 511 + ',"text":"good"}', good),
        ("depth 512 of objects", '{"m":' + '{"a":' * 511 + "1" + "}" * 511 + ',"text":"good"}', good),
        ("deep, shut, deep again", '{"m":[[[[]]],[[[]]]],"n":{"a":{"b":{}}},"text":"good"}', good),
        ("2,000 keys", "{" + ",".join(f'"k{i}":{i}' for i in range(2000)) + ',"text":"good"}', good),
        ("half a megabyte", '{"text":"' + long_text + '"}', long_text),
        ("looks like a date", '{"text":"2024-01-01T00:00:00"}', "2024-01-01T00:00:00"),
        ("looks like a number", '{"text":"123"}', "123"),
        ("an escaped line break", '{"text":"a\\r\\nb"}\r', "a\r\nb"),
        ("a backslash before the quote", '{"text":"a\\\\"}', "a\\"),
        ("escape at a 64 byte border", '{"text":"' + "x" * 54 + '\\u00e9y"}', "x" * 54 + "\xe9y"),
        ("two bytes at a 64 byte border", '{"text":"' + "x" * 54 + '\xe9y"}', "x" * 54 + "\xe9y"),
        ("three bytes at a 64 byte border", '{"text":"' + "x" * 53 + '\u20acy"}', "x" * 53 + "\u20acy"),
        ("four bytes at a 64 byte border", '{"text":"' + "x" * 52 + '\U0001f600y"}', "x" * 52 + "\U0001f600y"),
    ]
    return [(kind, line.encode(), text) for kind, line, text in cases]


def _rejects() -> list[tuple[str, bytes, str]]:
    """(kind, line, reason) of lines that must cost themselves alone."""
    return [
        ("stray continuation", b'{"text":"a\x80b"}', "utf8"),
        ("0xFF", b'{"text":"a\xffb"}', "utf8"),
        ("0xFE", b'{"text":"a\xfeb"}', "utf8"),
        ("0xF8", b'{"text":"a\xf8\x88\x80\x80\x80b"}', "utf8"),
        ("overlong C0 80", b'{"text":"a\xc0\x80b"}', "utf8"),
        ("overlong C1 BF", b'{"text":"a\xc1\xbfb"}', "utf8"),
        ("overlong E0 80 80", b'{"text":"a\xe0\x80\x80b"}', "utf8"),
        ("overlong E0 9F BF", b'{"text":"a\xe0\x9f\xbfb"}', "utf8"),
        ("overlong F0 80", b'{"text":"a\xf0\x80\x80\x80b"}', "utf8"),
        ("overlong F0 8F", b'{"text":"a\xf0\x8f\xbf\xbfb"}', "utf8"),
        ("surrogate ED A0 80", b'{"text":"a\xed\xa0\x80b"}', "utf8"),
        ("surrogate ED BF BF", b'{"text":"a\xed\xbf\xbfb"}', "utf8"),
        ("above U+10FFFF, F4 90", b'{"text":"a\xf4\x90\x80\x80b"}', "utf8"),
        ("above U+10FFFF, F5", b'{"text":"a\xf5\x80\x80\x80b"}', "utf8"),
        ("two of three bytes", b'{"text":"a\xe2\x82"}', "utf8"),
        ("three of four bytes", b'{"text":"a\xf0\x9f\x98"}', "utf8"),
        ("Latin-1", b'{"text":"caf\xe9"}', "utf8"),
        ("bad bytes in another field", b'{"x":"\xff","text":"good"}', "utf8"),
        ("a sequence cut by the newline", b'{"text":"a\xe2', "utf8"),
        ("a sequence cut at a 64 byte border", b'{"text":"' + b"x" * 53 + b'\xe2\x82"}', "utf8"),
        ("lone high surrogate", rb'{"text":"a\ud800b"}', "surrogate"),
        ("lone low surrogate", rb'{"text":"a\udc00b"}', "surrogate"),
        ("two high surrogates", rb'{"text":"\ud800\ud800"}', "surrogate"),
        ("high surrogate at the end", rb'{"text":"a\ud83d"}', "surrogate"),
        ("high surrogate and an escape", rb'{"text":"\ud83d\n"}', "surrogate"),
        ("lone surrogate in another field", rb'{"x":"\ud800","text":"good"}', "surrogate"),
        ("lone surrogate in a key", rb'{"\udfff":1,"text":"good"}', "surrogate"),
        ("lone surrogate deep inside", rb'{"x":[{"y":"\ud800"}],"text":"good"}', "surrogate"),
        ("lone surrogate in a hidden duplicate", rb'{"text":"\ud800","text":"good"}', "surrogate"),
        ("escape x", rb'{"text":"a\x41"}', "syntax"),
        ("escape u12g4", rb'{"text":"a\u12g4"}', "syntax"),
        ("short u escape", rb'{"text":"a\u12"}', "syntax"),
        ("short second half", rb'{"text":"\ud83d\ude0"}', "syntax"),
        ("raw control", b'{"text":"a\x01b"}', "syntax"),
        ("raw tab in a string", b'{"text":"a\tb"}', "syntax"),
        ("raw carriage return in a string", b'{"text":"a\rb"}', "syntax"),
        ("raw NUL in a string", b'{"text":"a\x00b"}', "syntax"),
        ("raw NUL after the record", b'{"text":"good"}\x00', "syntax"),
        ("form feed between tokens", b'{\x0c"text":"good"}', "syntax"),
        ("unterminated string", b'{"text":"goo', "syntax"),
        ("missing brace", b'{"text":"good"', "syntax"),
        ("backslash, then the end", b'{"text":"good\\', "syntax"),
        ("trailing comma", b'{"text":"good",}', "syntax"),
        ("leading comma", b'{,"text":"good"}', "syntax"),
        ("trailing comma in a list", b'{"a":[1,],"text":"good"}', "syntax"),
        ("missing comma", b'{"id":"1" "text":"good"}', "syntax"),
        ("missing comma in a list", b'{"a":[1 2],"text":"good"}', "syntax"),
        ("missing colon", b'{"id" "1","text":"good"}', "syntax"),
        ("missing value", b'{"id":,"text":"good"}', "syntax"),
        ("single quotes", b"{'text':'good'}", "syntax"),
        ("unquoted key", b'{id:"1","text":"good"}', "syntax"),
        ("number as a key", b'{1:2,"text":"good"}', "syntax"),
        ("garbage after the record", b'{"text":"good"} x', "syntax"),
        ("two records", b'{"text":"good"}{"text":"good"}', "syntax"),
        ("two records and a space", b'{"text":"good"} {"text":"good"}', "syntax"),
        ("comment", b'{/* c */"text":"good"}', "syntax"),
        ("nan in small letters", b'{"n":nan,"text":"good"}', "syntax"),
        ("inf", b'{"n":inf,"text":"good"}', "syntax"),
        ("-NaN", b'{"n":-NaN,"text":"good"}', "syntax"),
        ("+Infinity", b'{"n":+Infinity,"text":"good"}', "syntax"),
        ("leading zero", b'{"n":01,"text":"good"}', "syntax"),
        ("1.", b'{"n":1.,"text":"good"}', "syntax"),
        (".5", b'{"n":.5,"text":"good"}', "syntax"),
        ("1e", b'{"n":1e,"text":"good"}', "syntax"),
        ("1e+", b'{"n":1e+,"text":"good"}', "syntax"),
        ("a minus alone", b'{"n":-,"text":"good"}', "syntax"),
        ("+1", b'{"n":+1,"text":"good"}', "syntax"),
        ("0x10", b'{"n":0x10,"text":"good"}', "syntax"),
        ("True", b'{"n":True,"text":"good"}', "syntax"),
        ("nul", b'{"n":nul,"text":"good"}', "syntax"),
        ("nulll", b'{"n":nulll,"text":"good"}', "syntax"),
        ("mismatched brackets", b'{"n":[1},"text":"good"}', "syntax"),
        ("mismatched the other way", b'{"n":{"a":1],"text":"good"}', "syntax"),
        ("a BOM that is not at the start", b'\xef\xbb\xbf{"text":"good"}', "syntax"),
        ("a piece of a pretty-printed record", b"{", "syntax"),
        ("a log line", b"INFO done", "syntax"),
        ("a list, then garbage", b"[1] x", "syntax"),
        ("list", b'["good"]', "not-object"),
        ("string", b'"good"', "not-object"),
        ("number", b"17", "not-object"),
        ("null", b"null", "not-object"),
        ("NaN", b"NaN", "not-object"),
        ("no text", b'{"id":"1"}', "text-missing"),
        ("empty object", b"{ }", "text-missing"),
        ("key in another case", b'{"Text":"good"}', "text-missing"),
        ("text inside another field only", b'{"a":{"text":"good"}}', "text-missing"),
        ("text null", b'{"text":null}', "text-type"),
        ("text number", b'{"text":5}', "text-type"),
        ("text NaN", b'{"text":NaN}', "text-type"),
        ("text true", b'{"text":true}', "text-type"),
        ("text list", b'{"text":["good"]}', "text-type"),
        ("text object", b'{"text":{"text":"good"}}', "text-type"),
        ("duplicate text, the last is null", b'{"text":"good","text":null}', "text-type"),
        ("empty text", b'{"text":""}', "empty"),
        ("text of white space", b'{"text":" \\t\\r\\n\\u000b\\f "}', "empty"),
        ("duplicate text, the last is empty", b'{"text":"good","text":""}', "empty"),
        ("depth 513", b'{"m":' + b"[" * 512 + b"]" * 512 + b',"text":"good"}', "depth"),
        ("depth 513 of objects", b'{"m":' + b'{"a":' * 512 + b"1" + b"}" * 512 + b',"text":"good"}', "depth"),
        ("depth 100,000", b'{"m":' + b"[" * 100_000 + b"]" * 100_000 + b',"text":"good"}', "depth"),
        ("depth 100,000, never shut", b'{"m":' + b"[" * 100_000, "depth"),
    ]


BLANKS = [("nothing", b""), ("blanks", b"  \t "), ("a carriage return", b"\r")]
HOSTILE: list[tuple[str, bytes, Verdict]] = [
    *((kind, line, ("document", text)) for kind, line, text in _documents()),
    *((kind, line, ("reject", reason)) for kind, line, reason in _rejects()),
    *((kind, line, ("blank", None)) for kind, line in BLANKS),
]
"""Every hostile kind: name, line without newline, verdict."""

sys.setrecursionlimit(max(sys.getrecursionlimit(), 20_000))  # the judge's json module recurses to depth 512
