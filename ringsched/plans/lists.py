"""List scheduling: tasks that each take one link for one step, some after others → the step of each.

Forward, each link takes of the tasks that are ready the one with the longest way still to go, less its `wait`. Then
the same backwards in time, where the task that was finished last comes first, and forward again, ordered by that: each
pass is given the other's order and mostly ends sooner (Li and Willis, "An iterative scheduling technique for
resource-constrained project scheduling", European Journal of Operational Research 56, 1992).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

Tasks = Sequence[Sequence[int]]  # for each task the tasks that it waits for


def schedule(
    links: Sequence[int], needs: Tasks, widths: Sequence[int], passes: int, waits: Sequence[float] | None = None
) -> list[int]:
    """The step of each task, from 0; `links[t]` is the link that task t takes. At most 2 * passes + 1 passes."""
    followers: list[list[int]] = [[] for _ in links]
    for task, before in enumerate(needs):
        for earlier in before:
            followers[earlier].append(task)
    remaining = _remaining(needs, followers)
    urgency = remaining if waits is None else [left - wait for left, wait in zip(remaining, waits, strict=True)]
    best = current = _pass(links, needs, followers, widths, urgency)
    for _ in range(passes):
        end = max(current, default=0)
        late = _pass(links, followers, needs, widths, current)
        current = _pass(links, needs, followers, widths, late)
        if max(current, default=0) < max(best, default=0):
            best = current
        elif max(current, default=0) == end:
            break
    return best


def _remaining(needs: Tasks, followers: Tasks) -> list[int]:
    """For each task the number of tasks on the longest way from it to the end."""
    remaining = [0] * len(needs)
    open_ = [len(after) for after in followers]
    waiting = [task for task, count in enumerate(open_) if count == 0]
    for task in waiting:
        for earlier in needs[task]:
            remaining[earlier] = max(remaining[earlier], remaining[task] + 1)
            open_[earlier] -= 1
            if open_[earlier] == 0:
                waiting.append(earlier)
    return remaining


def _pass(
    links: Sequence[int], needs: Tasks, followers: Tasks, widths: Sequence[int], priority: Sequence[float]
) -> list[int]:
    """Each link takes in each step the ready tasks of the highest priority, the first of equal ones."""
    steps = [0] * len(links)
    open_ = [len(before) for before in needs]
    queues: dict[int, list[tuple[float, int]]] = {}
    for task, count in enumerate(open_):
        if count == 0:
            queues.setdefault(links[task], []).append((-priority[task], task))
    for queue in queues.values():
        heapify(queue)
    step = 0
    busy = sorted(queues)
    while busy:
        ready = []
        for link in busy:
            for _ in range(min(widths[link], len(queues[link]))):
                task = heappop(queues[link])[1]
                steps[task] = step
                for after in followers[task]:
                    open_[after] -= 1
                    if open_[after] == 0:
                        ready.append(after)
        for task in ready:
            heappush(queues.setdefault(links[task], []), (-priority[task], task))
        busy = [link for link, queue in queues.items() if queue]
        step += 1
    return steps
