"""The texts of `--set` as values: `N=8`, or `N=2..8` for each of several."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from ringsched.diagnostics import Collector, Diagnostic
from ringsched.expr import LIMIT

Settings = dict[str, range]

MOST_SIZES = 1000

_SETTING = re.compile(r"\s*([^\s=]+)\s*=\s*(.*?)\s*")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def parse_settings(texts: Sequence[str], *, ranges: bool) -> Settings:
    """The values of each parameter. Raises RS112 for a text that is no setting, RS205, RS109 for a name set twice."""
    found = Collector()
    settings: Settings = {}
    for text in texts:
        match = _SETTING.fullmatch(text)
        if match is None:
            help = f"write --set {text}=8" if re.fullmatch(r"\w+", text) else "write --set N=8"
            found.add(_fault(f"`--set {text}` is not of the form NAME=VALUE", help))
            continue
        name, value = match[1], match[2]
        if name in settings:
            help = f"give {name} once" + (f", or a range: --set {name}=2..8" if ranges else "")
            found.add(Diagnostic(code="RS109", message=f"`--set` gives {name} twice", help=help))
            continue
        values = _values(name, value, ranges, found)
        if values is not None:
            settings[name] = values
    sizes = math.prod(map(len, settings.values()))
    if sizes > MOST_SIZES:
        name = max(settings, key=lambda each: len(settings[each]))
        message = f"`--set` asks for {sizes:,} sizes, and at most {MOST_SIZES:,} are checked at a time"
        help = f"take fewer: --set {name}={settings[name].start}..{settings[name].start + 30}"
        found.add(_fault(message, help))
    found.check()
    return settings


def _values(name: str, text: str, ranges: bool, found: Collector) -> range | None:
    first, dots, last = (part.strip() for part in text.partition(".."))
    ends = [first, last] if dots else [first]
    wrong = [end for end in ends if _INTEGER.fullmatch(end) is None]
    if wrong:
        what = f"`{wrong[0]}` is not an integer" if wrong[0] else "there is no value"
        found.add(_fault(f"`--set {name}={text}`: {what}", f"write --set {name}=8"))
        return None
    large = [end for end in ends if abs(int(end)) >= LIMIT]
    if large:
        message = f"`--set {name}={text}`: {large[0]} does not fit 63 bits"
        found.add(Diagnostic(code="RS205", message=message, help="use a smaller value"))
        return None
    if not dots:
        return range(int(first), int(first) + 1)
    if not ranges:
        help = f"write --set {name}={last}; `ringsched verify` takes ranges"
        found.add(_fault(f"`--set {name}={text}`: one value is wanted here, not a range", help))
        return None
    if int(last) < int(first):
        found.add(_fault(f"`--set {name}={text}`: the range is empty", f"write --set {name}={last}..{first}"))
        return None
    return range(int(first), int(last) + 1)


def _fault(message: str, help: str) -> Diagnostic:
    return Diagnostic(code="RS112", message=message, help=help)


def single(settings: Settings) -> dict[str, int]:
    """The values where each parameter has one."""
    return {name: values.start for name, values in settings.items()}


def each(settings: Settings) -> Iterator[dict[str, int]]:
    """All combinations, the smallest first."""
    for values in itertools.product(*settings.values()):
        yield dict(zip(settings, values, strict=True))


def has_range(settings: Settings) -> bool:
    return any(len(values) > 1 for values in settings.values())


def parameters_text(parameters: Mapping[str, int], settings: Settings | None = None) -> str:
    """`N = 4, C = 2`, and `N = 2 … 8` for a range."""
    parts = []
    for name, value in parameters.items():
        values = (settings or {}).get(name, range(value, value + 1))
        parts.append(f"{name} = {values[0]}" + (f" … {values[-1]}" if len(values) > 1 else ""))
    return ", ".join(parts)


def parameters_json(parameters: Mapping[str, int], settings: Settings) -> dict[str, int | str]:
    """Each parameter's value, or its range as `2..8`."""
    shown: dict[str, int | str] = dict(parameters)
    for name, values in settings.items():
        if name in shown and len(values) > 1:
            shown[name] = f"{values[0]}..{values[-1]}"
    return shown
