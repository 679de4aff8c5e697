"""Matchings of a receiver's links in to the chunks that it takes over them in one step (Kuhn's augmenting paths)."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def match(links: Sequence[int], widths: Sequence[int], offers: Callable[[int], Sequence[int]]) -> dict[int, int]:
    """chunk → link, with as many chunks as can be: each comes once, over a link that offers it.

    offers: what each link could bring, what is wanted most first. `widths[link]`: the most that it brings. Links are
    served in the order given, so earlier ones get what they want most unless a later one would stay idle.
    """
    taken: dict[int, int] = {}
    for link in links:
        for _ in range(widths[link]):
            if not _augment(link, taken, offers, set()):
                break
    return taken


def _augment(link: int, taken: dict[int, int], offers: Callable[[int], Sequence[int]], seen: set[int]) -> bool:
    free = next((chunk for chunk in offers(link) if chunk not in taken), None)
    if free is not None:
        taken[free] = link
        return True
    for chunk in offers(link):
        if chunk not in seen:
            seen.add(chunk)
            if _augment(taken[chunk], taken, offers, seen):
                taken[chunk] = link
                return True
    return False
