"""The source of a page: each line with the types of its values and cotangents beside it."""

from __future__ import annotations

import io
import itertools
import keyword
import re
import textwrap
import tokenize
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from shtypes.analysis.explain.document import Line, type_text
from shtypes.analysis.explain.source import Excerpt, lines_of_file
from shtypes.traced.entry import Entry

_NUMBER: Final = re.compile(r"_\d+(?![a-zA-Z0-9])|\[\d+\]")
#: What one line shows of values that differ in nothing but their names.
_NAMES: Final = 3


def anchor(file: str, line: int, files: Sequence[str]) -> str:
    """The name that a source line has on the page."""
    return f"L{files.index(file)}-{line}" if file in files else ""


def source_html(spans: Sequence[Excerpt], lines: Iterable[Line], *, fold: bool = True) -> str:
    """The functions that the lines are in; folded, values of a line that differ in nothing but names stand together."""
    files = list(dict.fromkeys(span.file for span in spans))
    by_place: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        by_place.setdefault((line.place.file, line.place.line), []).append(line)
    tips = itertools.count(1)
    values = {place: list(_values(own, tips, fold=fold)) for place, own in by_place.items()}
    sends = {place for place, own in by_place.items() if any(line.collectives for line in own)}
    return "".join(_span(span, values, sends, files) for span in spans)


def _span(
    span: Excerpt,
    values: Mapping[tuple[str, int], Sequence[str]],
    sends: Container[tuple[str, int]],
    files: Sequence[str],
) -> str:
    texts = _highlighted(lines_of_file(span.file, span.start, span.end))
    name = span.file.replace("\\", "/").rsplit("/", 1)[-1]
    rows = []
    for number, text in enumerate(texts, span.start):
        own = values.get((span.file, number), ())
        kind = (" typed" if own else "") + (" sends" if (span.file, number) in sends else "")
        rows.append(
            f'<div class="row{kind}" id="{anchor(span.file, number, files)}"><span class="at mono">{number}</span>'
            f'<code class="src">{text or " "}</code><div class="types mono">{"".join(own)}</div></div>'
        )
    title = f"<h3><span class=mono>{escape(name)}</span>, <span class=mono>{escape(span.name)}</span></h3>"
    return f'<section class="file" aria-label="{escape(span.name)}">{title}{"".join(rows)}</section>'


def _values(lines: Sequence[Line], tips: Iterator[int], *, fold: bool) -> Iterator[str]:
    """The values of one source line; those of an unrolled loop together."""
    if not fold:
        yield from (_value([line], tips) for line in lines)
        return
    alike: dict[tuple[object, ...], list[Line]] = {}
    for line in lines:
        sent = tuple((str(e), e.bytes, e.times) for e in line.collectives)
        key = (_NUMBER.sub("", line.name), line.direction, type_text(line.type), line.op, sent, line.not_covered)
        alike.setdefault(key, []).append(line)
    for group in alike.values():
        yield _value(group, tips)


def _value(group: Sequence[Line], tips: Iterator[int]) -> str:
    line = group[0]
    names = ", ".join(escape(member.name) for member in group[:_NAMES])
    many = f' <span class="many">and {len(group) - _NAMES} more</span>' if len(group) > _NAMES else ""
    made = f'<span class="op"> = {escape(" ".join((line.op, *line.operands)))}</span>' if line.op else ""
    tags = '<span class="tag">cast</span>' if line.cast else ""
    tags += "" if line.op else '<span class="tag">in the body</span>'
    tags += '<span class="tag">computed again</span>' if line.direction == "recomputed" else ""
    entries = [entry for member in group for entry in member.collectives]
    unknown = _tip("not covered", escape(line.not_covered), tips) if line.not_covered else ""
    cast = " cast" if line.cast else ""
    return (
        f'<span class="v {line.direction}{cast}"><span class="name">{names}</span>{many}: '
        f'<span class="type">{escape(type_text(line.type))}</span>{made}{tags}{_comm(entries, tips)}{unknown}</span>'
    )


def _comm(entries: Sequence[Entry], tips: Iterator[int]) -> str:
    """What is sent, and on hover or focus the ledger's entries."""
    if not entries:
        return ""
    first = entries[0]
    text = str(first) + (f" ×{len(entries)}" if len(entries) > 1 else "")
    more = f"<p>and {len(entries) - _NAMES} more like these</p>" if len(entries) > _NAMES else ""
    return _tip(text, "".join(map(_entry, entries[:_NAMES])) + more, tips)


def _tip(text: str, inside: str, tips: Iterator[int]) -> str:
    """A mark that shows more when it is pointed at or focused."""
    name = f"tip-{next(tips)}"
    button = f'<button type="button" aria-describedby="{name}">{escape(text)}</button>'
    return f' <span class="comm">{button}<span class="tip" role="tooltip" id="{name}">{inside}</span></span>'


def _entry(entry: Entry) -> str:
    times = "as often as the loop runs" if entry.times is None else str(entry.times)
    branches = ", ".join(f"branch {b.index} of {b.count}" for b in entry.branches)
    rows = {
        "collective": entry.collective,
        "direction": entry.direction + (f", {branches}" if branches else ""),
        "sends": f"{entry.bytes:,} B/device, {entry.dtype}",
        "times": times,
        "from": str(entry.src),
        "to": str(entry.dst),
        "by": "a cast that a typing rule inserted" if entry.inserted else "a reshard that the program writes",
    }
    if not entry.launches:
        rows["note"] = "one device along the axis: nothing runs"
    return "<dl>" + "".join(f"<dt>{key}</dt><dd>{escape(text)}</dd>" for key, text in rows.items()) + "</dl>"


# colours of the source


def _highlighted(lines: Sequence[str]) -> list[str]:
    """The lines as HTML, with keywords, strings, numbers and comments marked."""
    text = textwrap.dedent("\n".join(lines))
    plain = text.split("\n")
    marks: list[list[tuple[int, int, str]]] = [[] for _ in plain]
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            kind = _kind(token)
            for number in range(token.start[0], token.end[0] + 1) if kind else ():
                start = token.start[1] if number == token.start[0] else 0
                end = token.end[1] if number == token.end[0] else len(plain[number - 1])
                marks[number - 1].append((start, end, kind))
    except (tokenize.TokenError, SyntaxError, IndexError):
        pass  # a part of a file need not be Python on its own
    return [_marked(line, found) for line, found in zip(plain, marks, strict=True)]


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        return "k"
    if tokenize.tok_name[token.type].startswith(("STRING", "FSTRING", "TSTRING")):
        return "s"
    return {tokenize.COMMENT: "c", tokenize.NUMBER: "d"}.get(token.type, "")


def _marked(line: str, marks: Sequence[tuple[int, int, str]]) -> str:
    parts, at = [], 0
    for start, end, kind in sorted(marks):
        if start >= at:
            parts += [escape(line[at:start]), f'<span class="{kind}">{escape(line[start:end])}</span>']
            at = end
    return "".join([*parts, escape(line[at:])])
