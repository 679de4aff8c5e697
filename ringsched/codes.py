"""The catalogue of diagnostics: what `ringsched explain CODE` prints.

Every code that the source can give is here, and every code here can be given. An entry says what was found, why it is
refused, an example that is wrong and the same made right.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    code: str
    title: str
    what: str
    why: str
    wrong: str
    right: str


_ENTRIES: list[Code] = []


def _code(code: str, title: str, what: str, why: str, wrong: str, right: str) -> None:
    _ENTRIES.append(Code(code=code, title=title, what=what, why=why, wrong=wrong.strip("\n"), right=right.strip("\n")))


def explain(code: str) -> str | None:
    """The text for one code (`RS301`, `rs301` or `301`), or None where there is no such code."""
    name = code.strip().upper()
    name = name if name.startswith("RS") else f"RS{name}"
    entry = CATALOGUE.get(name)
    if entry is None:
        return None
    prose = [textwrap.fill(part, 96) for part in (entry.what, f"Why: {entry.why}")]
    parts = [f"{entry.code}: {entry.title}", "", prose[0], "", prose[1]]
    for head, body in (("Wrong:", entry.wrong), ("Right:", entry.right)):
        parts += ["", head, *(f"    {line}".rstrip() for line in body.split("\n"))]
    return "\n".join(parts) + "\n"


# -- RS1xx: the file -------------------------------------------------------------------------------------------------

_code(
    "RS101",
    "the file cannot be read",
    "There is no file of this name, it may not be read, or it is no regular file.",
    "Nothing can be said about a schedule that is not there. Paths are relative to the current directory.",
    "ringsched verify all_gater.yaml",
    "ringsched verify all_gather.yaml",
)

_code(
    "RS102",
    "a directory where a file is wanted",
    "The path names a directory.",
    "ringsched reads single files and never searches a directory for schedules.",
    "ringsched verify schedules/",
    "ringsched verify schedules/*.yaml",
)

_code(
    "RS103",
    "the file is not UTF-8",
    "The bytes at this place are not UTF-8 text.",
    "Columns of messages are counted in characters, so the text has to be known exactly; no encoding is guessed.",
    "a file saved as Latin-1 or UTF-16",
    "iconv -f latin1 -t utf8 old.yaml > new.yaml",
)

_code(
    "RS104",
    "the file is too large",
    "A schedule file has at most 1 MiB and 200,000 values.",
    "A schedule is a short text with loops. A file of this size is mostly something else, and reading it takes long.",
    """
- {send: "chunk[0]", from: 0, to: 1}
- {send: "chunk[0]", from: 1, to: 2}    # … and a million more
""",
    """
- for: s in 0 .. N - 2
  do:
    - send: chunk[0]
      from: s
      to: s + 1
""",
)

_code(
    "RS105",
    "the file is empty",
    "The file holds nothing, or only comments.",
    "An empty file is more often an accident than an empty schedule. A schedule without steps says `steps: []`.",
    "# to be written",
    "ringsched init all_gather > mine.yaml",
)

_code(
    "RS106",
    "a character that does not belong in a schedule",
    "The text holds a control character, a line separator other than a line feed, or a carriage return on its own.",
    "Such characters are invisible, break the count of lines, and can steer a terminal that shows the file.",
    "to: r<U+0007> + 1",
    "to: r + 1",
)

_code(
    "RS107",
    "the file is not YAML",
    "The YAML reader cannot make sense of the text at this place.",
    "Most often a bracket or quote is not closed, lines are not aligned, or an expression has characters "
    "with a meaning of "
    "their own in YAML. Inside [ ] and { } commas and brackets of an expression need quotes; elsewhere "
    "they do not.",
    "collective: {permute: min(r ^ 1, N - 1)}",
    """
collective:
  permute: min(r ^ 1, N - 1)
""",
)

_code(
    "RS108",
    "a tab",
    "The file holds a tab outside a comment.",
    "YAML forbids tabs as indentation, and elsewhere they look like spaces without being any.",
    "steps:\n<TAB>- send: chunk[r]",
    "steps:\n  - send: chunk[r]",
)

_code(
    "RS109",
    "a key is given twice",
    "One mapping holds the same key two times.",
    "One of the two would silently win. Under a list it usually means that a dash is missing.",
    """
- send: chunk[r]
  to: r + 1
  send: chunk[r]
  to: r - 1
""",
    """
- send: chunk[r]
  to: r + 1
- send: chunk[r]
  to: r - 1
""",
)

_code(
    "RS110",
    "an unknown key",
    "The mapping has a key that means nothing here, because it is misspelt or belongs elsewhere.",
    "A misspelt key must not be skipped: without `when:` a transfer happens always.",
    "- send: chunk[r]\n  dest: r + 1",
    "- send: chunk[r]\n  to: r + 1",
)

_code(
    "RS111",
    "a key is missing",
    "A key that is needed here is not given.",
    "There is no default that would be right: a transfer needs to know where it goes, a schedule what it promises.",
    "- send: chunk[r]",
    "- send: chunk[r]\n  to: r + 1",
)

_code(
    "RS112",
    "a value of the wrong type",
    "There is a list where a mapping is wanted, text where an integer is wanted, nothing where something "
    "is wanted, or so.",
    "Types are never converted: `true` is no integer and 4.0 no size. Only true and false are truth "
    "values; yes, no, on and "
    "off are text.",
    "params: {N: four}",
    "params: {N: 4}",
)

_code(
    "RS113",
    "a value that is not one of the choices",
    "The value has the right type, but is not among those allowed, or is too small, too short or too long.",
    "The choices are few, and the message lists them.",
    "- send: chunk[r]\n  to: r + 1\n  op: add",
    "- send: chunk[r]\n  to: r + 1\n  op: reduce",
)

_code(
    "RS114",
    "no kind of step",
    "An item of the steps has none of the keys `send`, `step`, `for`, `use`, `beside`.",
    "These are all the things that a schedule can do. Synchronisation is not among them: the compiler puts it in.",
    "- barrier: all",
    "- send: chunk[r]\n  to: r + 1",
)

_code(
    "RS115",
    "a name that cannot be used",
    "A name is no identifier, is a keyword, or already means something in every schedule: r, x, y, z, chunk, min, max.",
    "Names of schedules, parameters and loop variables become names in the generated kernel.",
    "params: {r: 4}",
    "params: {N: 4}",
)

_code(
    "RS116",
    "anchors, aliases, tags and directives",
    "The file uses a part of YAML that schedules do without: &name, *name, !tag or %directive.",
    "They let a small file stand for a huge one and hide what a line says. Loops and `use:` repeat "
    "things in plain sight.",
    "first: &size 4\nsecond: *size",
    "params: {N: 4}",
)

_code(
    "RS117",
    "several documents in one file",
    "A line `---` starts a second document.",
    "One file holds one schedule, so that a file name is enough to say which.",
    "schedule: one\n# …\n---\nschedule: two",
    "two files, one.yaml and two.yaml",
)

_code(
    "RS118",
    "nested too deep, or too many keys",
    "Lists and mappings lie more than 50 deep in each other, or one mapping has more than 200 keys.",
    "No schedule that a person can read does that.",
    "- for: a in 0 .. 1\n  do:\n    - for: b in 0 .. 1\n      do: …             # and 30 more",
    "- use: inner.yaml",
)

_code(
    "RS120",
    "the used file is missing",
    "`use:` names a file that is not there. A path is relative to the file that it stands in; a bare "
    "name is looked for "
    "there with `.yaml` behind it, and then among the shipped schedules.",
    "A schedule is only right together with the parts that it uses.",
    "- use: reduce_scater",
    "- use: reduce_scatter",
)

_code(
    "RS121",
    "schedules use each other in a circle",
    "Following `use:` from file to file leads back to a file that is being read.",
    "Such a schedule would never end. The message shows the chain.",
    "# in all_reduce.yaml\n- use: all_reduce",
    "# in all_reduce.yaml\n- use: reduce_scatter\n- use: all_gather",
)

_code(
    "RS122",
    "`use:` goes too deep",
    "Files use files more than 16 deep.",
    "Nobody can follow that; it is most likely generated by mistake.",
    "a.yaml uses b.yaml uses c.yaml uses …",
    "a file that uses its parts directly, one after the other",
)

_code(
    "RS131",
    "not XML",
    "The file is not well-formed XML: a tag that is not closed, an attribute without quotes, something behind the end.",
    "Reading on after such a place would mean to guess what was meant.",
    '<step s="0" type="s">',
    '<step s="0" type="s"/>',
)

_code(
    "RS132",
    "XML with a document type",
    "The file declares a document type.",
    "Its entities could make a short text as long as they like, or name other files. No writer of algorithms "
    "needs them.",
    '<!DOCTYPE algo [<!ENTITY a "…">]>',
    "<algo …>",
)

_code(
    "RS133",
    "not an algorithm",
    "An element or attribute is missing without which nothing can be said, or is there twice.",
    "An algorithm says its collective, and for each rank its blocks, each with its steps, all numbered.",
    '<gpu><tb id="0"/><tb id="0"/></gpu>',
    '<gpu id="0"><tb id="0"/><tb id="1"/></gpu>',
)

_code(
    "RS134",
    "an attribute that cannot be read",
    "An attribute has a value that is no integer where one is wanted, or a word that is not known.",
    "A value that is guessed can turn a wrong algorithm into a right one.",
    '<step s="0" type="sned" cnt="one"/>',
    '<step s="0" type="s" cnt="1"/>',
)

_code(
    "RS135",
    "XML that is too large",
    "An imported file has at most 64 MiB, 2,000,000 elements and 16 levels of nesting.",
    "Real algorithms stay far below that, and what is above would not be read in any sensible time.",
    "an algorithm for 4,096 ranks",
    "the same for 64 ranks",
)

# -- RS2xx: names, expressions, topology -----------------------------------------------------------------------------

_code(
    "RS201",
    "not an expression",
    "The text is not complete, or not put together as an expression, a range or a chunk is.",
    "Expressions are those of Python: operators between operands, brackets in pairs. A range is `NAME in "
    "FIRST .. LAST`.",
    "for: s in range(N - 1)",
    "for: s in 0 .. N - 2",
)

_code(
    "RS202",
    "an unknown name",
    "The expression uses a name that is not in scope. In scope are the parameters, the variables of the "
    "loops around, and, "
    "in `send:`, `to:` and `when:`, the rank r (on a mesh or torus its coordinates x, y, z too) and the "
    "variable of `each:`.",
    "A schedule is the same text for every rank; what differs has to come from r. What all ranks must "
    "agree on (sizes, "
    "chunks, `from:`) cannot use r.",
    "chunks: [M]\nparams: {N: 4}",
    "chunks: [N]\nparams: {N: 4}",
)

_code(
    "RS203",
    "not allowed in an expression",
    "The expression uses something other than integers, names, + - * // % ^ <<, comparisons, min(…) and max(…).",
    "Expressions are proven for all ranks and end up in the kernel as index arithmetic. So there is "
    "nothing that is not an "
    "integer, and nothing that could run code. Several conditions are written as a list, all of which "
    "must hold.",
    "when: r > 0 and r < N / 2",
    "when: [r > 0, r < N // 2]",
)

_code(
    "RS204",
    "division by zero",
    "At these values the right-hand side of // or % is zero.",
    "The expression has no value, so there is no transfer to speak of. Guards in `when:` are evaluated "
    "from left to right "
    "and stop at the first that does not hold.",
    "send: chunk[r % (N - 4)]      # N = 4",
    "send: chunk[r % N]",
)

_code(
    "RS205",
    "a value out of range",
    "A number does not fit 63 bits, or a shift is by less than 0 or more than 62.",
    "Indices in a kernel are machine integers, and ringsched must not compute anything else than the device does.",
    "params: {N: 99999999999999999999}",
    "params: {N: 64}",
)

_code(
    "RS206",
    "an index out of range",
    "At these values the index of a chunk lies outside its dimension, or a slice does; negative indices "
    "do not count from "
    "the end.",
    "The kernel would touch memory that belongs to something else. Mostly a `% N` is missing.",
    "chunks: [N]\n# …\n- send: chunk[r - s]",
    "chunks: [N]\n# …\n- send: chunk[(r - s) % N]",
)

_code(
    "RS207",
    "not a neighbour",
    "The transfer goes to a rank that no link of the topology joins to the sender.",
    "A schedule is a plan of links: what goes further occupies the links on its way, and the plan would "
    "not show that. Pass "
    "the chunk on hop by hop, or describe the network that is really there.",
    "topology: {ring: N}\n# …\n- send: chunk[r]\n  to: r + 2",
    "topology: {ring: N}\n# …\n- send: chunk[r]\n  to: r + 1",
)

_code(
    "RS208",
    "off the end of a line or mesh",
    "The transfer goes to a rank beyond the last or before the first one.",
    "A line and a mesh have ends, and nothing wraps around there. On a ring and a torus it does.",
    "topology: {line: N}\n# …\n- send: chunk[0]\n  to: r + 1",
    "topology: {line: N}\n# …\n- send: chunk[0]\n  to: r + 1\n  when: r < N - 1",
)

_code(
    "RS209",
    "a rank sends to itself",
    "At these values sender and receiver are the same rank.",
    "A rank holds its own chunks already; a transfer to itself does nothing but cost time. On a ring of "
    "one rank every "
    "neighbour is the rank itself, so a schedule that allows N = 1 has no steps there.",
    "to: (r + s) % N               # s = 0",
    "for: s in 1 .. N - 1          # and to: …",
)

_code(
    "RS210",
    "a bad topology",
    "A side of the topology is zero, negative or far too large; a side of a mesh or torus is 1; a link joins a rank to "
    "itself or is there twice; the links leave ranks apart; or a twist does not fit the axes.",
    "There have to be ranks to run on, and no machine has more than a few thousand joined in one ring or torus.",
    "ringsched verify all_gather.yaml --set N=0",
    "ringsched verify all_gather.yaml --set N=8",
)

_code(
    "RS211",
    "too many transfers",
    "With these parameters the schedule has more steps or transfers than are worth checking one by one.",
    "The count is known before anything is expanded, so this is said at once instead of after hours. "
    "Usually a bound of a "
    "loop is wrong.",
    "for: s in 0 .. 1000000000",
    "for: s in 0 .. N - 2",
)

_code(
    "RS212",
    "a name that is taken",
    "A loop variable or the variable of `each:` has the name of a parameter or of a loop around it.",
    "In the inner expressions it would not be clear which of the two is meant.",
    "- for: s in 0 .. 1\n  do:\n    - for: s in 0 .. 3\n      do: …",
    "- for: s in 0 .. 1\n  do:\n    - for: t in 0 .. 3\n      do: …",
)

_code(
    "RS213",
    "no such parameter",
    "`--set` or `with:` gives a value to a parameter that the schedule does not have.",
    "A value that nobody reads is a misspelt name or belongs to another schedule.",
    "ringsched verify all_gather.yaml --set n=8",
    "ringsched verify all_gather.yaml --set N=8",
)

_code(
    "RS214",
    "wrong number of coordinates or indices",
    "A rank is one expression, or on a mesh or torus a list with one for each coordinate; a chunk has at "
    "most one index for "
    "each dimension of `chunks:`, and `on:` leaves as many dimensions whole as the used schedule has.",
    "Otherwise it is open which coordinate or dimension is meant.",
    "topology: {mesh: [X, Y]}\n# …\n  to: [x + 1, y, 0]",
    "topology: {mesh: [X, Y]}\n# …\n  to: [x + 1, y]",
)

_code(
    "RS215",
    "an expression too long or too deep",
    "An expression has more than 2,000 characters or is nested more than 64 deep.",
    "No index needs that, and reading it would take unbounded time and memory.",
    "to: ((((…(r)…))))",
    "to: r + 1",
)

_code(
    "RS216",
    "a used schedule does not fit",
    "The schedule named by `use:` is for other ranks, another topology or other chunks than here; or, as a link of a "
    "chain, it does not take what the link before it gives.",
    "Its ranks are the ranks of the outer schedule, and its chunks those that `on:` leaves whole, in order.",
    "params: {N: 4, M: 8}\n# …\n- use: all_gather\n  with: {N: M}",
    "params: {N: 4}\n# …\n- use: all_gather",
)

_code(
    "RS217",
    "a multiply that does not go with the collective",
    "`multiply: on arrival` is for a schedule that gathers, or with `collective: none` keeps what it has, `multiply: "
    "before sending` for one that sums; a `compute:` "
    "belongs to the file that is compiled, not to one that it uses.",
    "A shard can be multiplied once it has landed, and a sum's term before it leaves. Elsewhere nothing would be "
    "hidden behind anything.",
    "collective: reduce_scatter\ncompute: {multiply: on arrival}",
    "collective: reduce_scatter\ncompute: {multiply: before sending}",
)

_code(
    "RS218",
    "nothing to overlap",
    "`overlap` is given for a schedule that multiplies nothing, or for a chain.",
    "It says whether the products of a schedule with `compute:` stand in between its transfers. The links of a chain "
    "are joined for their overlap.",
    "ringsched compile all_gather --overlap none",
    "ringsched compile all_gather_matmul --overlap none",
)

_code(
    "RS219",
    "a wish that cannot be met",
    "`lowering:` of a link asks for something that the compiler cannot do in a chain: its weights lie in HBM, one "
    "layer of each in VMEM, and so do its activations. The other wishes of a link are met.",
    "A wish that is passed over in silence would be taken for granted.",
    "chain:\n  - use: gathering.yaml  # has lowering: {memory: hbm}",
    "chain:\n  - use: gathering.yaml  # has lowering: {slots: 2}",
)

_code(
    "RS220",
    "steps that cannot be made",
    "`synth:` makes steps for chunks that are numbered by the coordinates of their owners, with at most one more "
    "dimension, the parts of a shard. On rings and tori they are constructed; elsewhere they are searched for, which "
    "takes too long for many ranks.",
    "For other chunks there are no such steps.",
    "topology: {torus: [X, Y]}\nchunks: [X * Y]\nsteps:\n  - synth: all_gather",
    "topology: {torus: [X, Y]}\nchunks: [X, Y]\nsteps:\n  - synth: all_gather",
)

_code(
    "RS240",
    "not a topology",
    "`--topology` names no kind of topology, or sides or links of none: a side of 1, a link of a rank to itself, "
    "or ranks that no links join to the others.",
    "A schedule is made for links that are there, and ranks that cannot reach each other have none.",
    "ringsched synth --collective all_gather --topology tours:4x1",
    "ringsched synth --collective all_gather --topology torus:4x8",
)

_code(
    "RS241",
    "a schedule too large to be made",
    "The schedule that is asked for has more transfers than a search copes with, or its file would be over 1 MiB.",
    "A synthesised schedule is a list of single transfers, and for hundreds of ranks nobody can read or compile it. "
    "Constructions in closed form, such as the shipped ones, have no such limit.",
    "ringsched synth --collective all_to_all --topology mesh:16x16",
    "ringsched synth --collective all_to_all --topology mesh:4x8",
)

# -- RS3xx: data flow ------------------------------------------------------------------------------------------------

_code(
    "RS301",
    "a chunk is sent before it is held",
    "At this step the sender does not hold the chunk: it does not own it and nobody has sent it yet. "
    "What arrives within a "
    "step can be sent from the next step on.",
    "The kernel would send whatever lies in the buffer.",
    "- for: s in 0 .. N - 2        # all_gather\n  do:\n    - send: chunk[(r - s - 1) % N]\n      to: r + 1",
    "- for: s in 0 .. N - 2\n  do:\n    - send: chunk[(r - s) % N]\n      to: r + 1",
)

_code(
    "RS302",
    "a chunk is missing at the end",
    "After the last step a rank does not hold a chunk that the collective promises it.",
    "The result would have a hole. Often a loop is one round short.",
    "- for: s in 0 .. N - 3        # all_gather on a ring",
    "- for: s in 0 .. N - 2",
)

_code(
    "RS303",
    "a contribution is counted twice",
    "A `reduce` adds a chunk that already contains a rank's term to one that contains it too.",
    "The sum would be too large. A chunk that was sent on as part of a sum must not be added a second time.",
    "- for: s in 0 .. N - 1        # reduce_scatter, one round too many",
    "- for: s in 0 .. N - 2",
)

_code(
    "RS304",
    "a contribution is lost",
    "A `copy` overwrites a partial sum that holds terms which no other place will deliver.",
    "The sum would be too small. Partial sums are added with `op: reduce`.",
    "- send: chunk[(r - s - 1) % N]\n  to: r + 1",
    "- send: chunk[(r - s - 1) % N]\n  to: r + 1\n  op: reduce",
)

_code(
    "RS305",
    "written twice in one step",
    "Two transfers of one step write the same chunk at the same rank, or one writes what another one of "
    "the rank sends.",
    "Transfers of a step are concurrent, so either may come first. Put them into steps of their own.",
    "- step:\n    - send: chunk[0]\n      to: r + 1\n    - send: chunk[0]\n      to: r - 1",
    "- send: chunk[0]\n  to: r + 1\n- send: chunk[0]\n  to: r - 1",
)

_code(
    "RS306",
    "the right sum at the wrong rank",
    "A chunk is complete in the end, but at another rank than its owner.",
    "The owner of chunk c of a reduce-scatter is rank c. All values are there, but the caller would get "
    "them in the wrong order.",
    "- send: chunk[(r - s) % N]      # ends with chunk r + 1 at rank r\n  to: r + 1\n  op: reduce",
    "- send: chunk[(r - s - 1) % N]  # ends with chunk r at rank r\n  to: r + 1\n  op: reduce",
)

_code(
    "RS307",
    "chunks do not fit the ranks",
    "The chunk space cannot be shared out among the ranks as the collective asks: its first dimension "
    "(or dimensions) must "
    "be as large as the number of ranks.",
    "Who owns a chunk at the start and at the end follows from its index; there is no owner for a chunk too many.",
    "collective: all_gather\ntopology: {ring: N}\nchunks: [N + 1]",
    "collective: all_gather\ntopology: {ring: N}\nchunks: [N]",
)

_code(
    "RS308",
    "a bad root or permutation",
    "The root is not one of the ranks, or the expression of `permute:` does not send each rank to a rank of its own.",
    "With two ranks going to one place, or to none, there is no result that would be right.",
    "collective: {permute: r // 2}",
    "collective: {permute: (r + 1) % N}",
)

# -- RS4xx: memory ---------------------------------------------------------------------------------------------------

_code(
    "RS401",
    "a race",
    "Two accesses to the same memory, at least one a write, of which neither is sure to end before the other begins.",
    "On some run the result is wrong. A remote write comes whenever the sender gets there, which may be "
    "several steps ahead. "
    "More slots, or a credit that tells the sender that a slot is free, keep the two apart.",
    "lowering: {slots: 1}      # reduce_scatter: the next chunk can land before the last one is added",
    "lowering: {slots: 2}      # or no wish at all: the compiler finds the number",
)

_code(
    "RS402",
    "remote access before entry",
    "A write reaches the memory of a device that may not have entered the kernel yet, or has not left the last call.",
    "Before that the memory belongs to something else. The first remote access has to wait for a signal "
    "of the device that it goes to. A kernel without any barrier of its own gets one of all devices from the "
    "compiler, unless it says skip_device_barrier.",
    "lowering: {barrier: none}",
    "lowering: {barrier: writers}",
)

_code(
    "RS403",
    "access under way at exit",
    "A device can leave the kernel while a DMA still reads or writes its memory.",
    "After the kernel the memory is given to something else. Every DMA has to be waited for, by its "
    "sender for the reading "
    "and by its receiver for the writing.",
    "copy.start()      # and the kernel ends",
    "copy.start()\ncopy.wait()",
)

_code(
    "RS404",
    "used before its DMA is waited for",
    "Memory is read while a DMA may still be writing it, and no wait lies between.",
    "A start returns at once and the data comes later; only a wait on the receive semaphore tells that it is there.",
    """
copy.start()
o_ref[...] = buffer[...]
copy.wait()
""",
    """
copy.start()
copy.wait()
o_ref[...] = buffer[...]
""",
)

_code(
    "RS405",
    "two DMAs in flight on one semaphore",
    "There is a wait, but another DMA that counts on the same semaphore can satisfy it.",
    "A semaphore counts bytes, not DMAs, and two DMAs are not ordered even between the same two devices: "
    "halves of both look like one that is whole.",
    "received = pltpu.SemaphoreType.DMA            # for all steps",
    "received = pltpu.SemaphoreType.DMA((n - 1,))  # received.at[step]",
)

_code(
    "RS406",
    "data lost under a local write",
    "A device writes memory itself, mostly to initialise it, that a neighbour may have sent to already.",
    "The neighbour does not wait for the write. If its data comes first, it is overwritten, and nobody notices.",
    """
meet(left, right)
buffer[...] = jnp.zeros(…)
# … a neighbour sends into buffer
""",
    """
buffer[...] = jnp.zeros(…)
meet(left, right)
""",
)

_code(
    "RS407",
    "the cores of a device race",
    "Two steps of a parallel dimension of the grid, on two cores of one device, access the same memory in HBM, "
    "and at "
    "least one of them writes it.",
    "VMEM and semaphores are a core's own, HBM is not, and nothing orders two cores within a kernel. A block of a "
    "result that both store holds what the later one has left there.",
    """
grid=(2,), dimension_semantics=("parallel",)
out_specs=pl.BlockSpec((8, 128), lambda core: (0, 0))
""",
    """
grid=(2,), dimension_semantics=("parallel",)
out_specs=pl.BlockSpec((8, 128), lambda core: (core, 0))
""",
)

_code(
    "RS431",
    "out of bounds",
    "On this device an index or a slice of an audited kernel leaves its dimension.",
    "Nothing checks it at run time: the access or the DMA hits whatever lies next in memory.",
    "o_ref.at[i + 1]                        # i is the last device",
    "o_ref.at[jax.lax.rem(i + 1, n)]",
)

_code(
    "RS432",
    "a DMA between different shapes",
    "Source and target of a DMA differ in shape or in dtype.",
    "A DMA moves bytes as they are. The compiler may refuse it, or one end counts other bytes than are waited for.",
    "make_async_copy(x_ref.at[pl.ds(0, 8)], buffer.at[pl.ds(0, 16)], semaphore)",
    "make_async_copy(x_ref.at[pl.ds(0, 8)], buffer.at[pl.ds(0, 8)], semaphore)",
)

_code(
    "RS433",
    "an operand is written",
    "The kernel, or a DMA of another device, writes into an operand in HBM that is no result at the same time.",
    "The operand is the caller's array, which others may still read: jax takes arrays as immutable.",
    "make_async_copy(buffer, x_ref, semaphore)",
    "pl.pallas_call(kernel, input_output_aliases={0: 0}, …)   # x_ref and o_ref are one",
)

_code(
    "RS434",
    "a result is never written",
    "On no device does anything write into this result of the kernel.",
    "The caller gets whatever was in memory before.",
    "def kernel(x_ref, o_ref, sum_ref): o_ref[...] = x_ref[...]",
    "def kernel(x_ref, o_ref): o_ref[...] = x_ref[...]",
)

_code(
    "RS435",
    "a result is written in part",
    "The grid, or the DMAs, do not cover all of a result; the rest holds whatever was in memory.",
    "A number of tiles that is rounded down leaves the last rows out, and no compiler says so.",
    "grid=(rows // 8,)              # rows = 28",
    "grid=(pl.cdiv(rows, 8),)",
)

# -- RS5xx: synchronisation ------------------------------------------------------------------------------------------

_code(
    "RS501",
    "a deadlock",
    "Every execution stops at the waits that the message names: what they wait for is never signalled, "
    "or only behind a wait "
    "that stops too.",
    "The devices would hang until someone kills the job.",
    "wait(credit); send(); signal(credit, right)       # on every device, credits start at zero",
    "send(); signal(credit, right); wait(credit)",
)

_code(
    "RS502",
    "a semaphore is left over",
    "At the end of the kernel a semaphore is not zero: more was added than taken.",
    "Semaphores must be zero when a kernel ends. What is left is found by the next kernel, whose waits "
    "then return too early.",
    "signal twice, wait for one",
    "signal twice, wait for two",
)

_code(
    "RS503",
    "a signal from outside the kernel",
    "A signal may reach a device that is not in this call of the kernel, or one meant for one call is "
    "taken by the next.",
    "Semaphores are scratch memory like any other: they belong to the kernel only between entry and exit.",
    "signal(neighbour) as the last instruction, with no one sure to be there",
    "a barrier at the start with exactly the ranks that write to each other",
)

_code(
    "RS504",
    "a semaphore that some devices never drain",
    "Units are left on a semaphore of some devices when the kernel ends, while others take all of theirs.",
    "The next kernel starts with semaphores at zero, or hangs and races. Usually a wait stands in a branch "
    "that not all devices go through.",
    """
@pl.when(i > 0)
def _():
    pl.semaphore_wait(ready, 1)
""",
    "pl.semaphore_wait(ready, 1)",
)

_code(
    "RS505",
    "start and wait of different sizes",
    "A semaphore is waited for as often as DMAs count on it, but for another number of bytes.",
    "A wait takes the bytes of its own descriptor off the semaphore. With other bytes than the DMA has, it "
    "returns too early or never.",
    """
push(x_ref, o_ref, …).start()
push(x_ref.at[0], o_ref.at[0], …).wait()
""",
    """
copy = push(x_ref, o_ref, …)
copy.start()
copy.wait()
""",
)

_code(
    "RS506",
    "a loop that never ends",
    "A loop of the kernel, or beside it, comes to a round that leaves everything as it was, and its condition holds.",
    "The device stays in it for ever, and all that wait for the device with it. So it is with the operands tried.",
    "lax.while_loop(lambda t: t >= 0, lambda t: t * 1, x)",
    "lax.while_loop(lambda t: t >= 0, lambda t: t - 1, x)",
)

_code(
    "RS521",
    "collective_id and barrier do not go together",
    "A kernel that takes the barrier semaphore needs a collective_id, and one that has a collective_id has to use it.",
    "The collective_id chooses the barrier semaphore, which kernels with the same number share. The compiler refuses "
    "one without the other.",
    "barrier = pltpu.get_barrier_semaphore()      # and CompilerParams() without collective_id",
    "barrier = pltpu.get_barrier_semaphore()      # and CompilerParams(collective_id=0)",
)

_code(
    "RS522",
    "a LOGICAL device id on a mesh of several axes",
    "Something goes wrong, and the device id is one number that counts all devices of a mesh of several axes.",
    "An index along one axis is no such number: every row of the mesh would talk to the first one. It compiles, and "
    "then races or hangs. A number that does count all devices is in order.",
    'device_id=jax.lax.axis_index("x") + 1, device_id_type=pl.DeviceIdType.LOGICAL',
    'device_id={"x": jax.lax.axis_index("x") + 1}, device_id_type=pl.DeviceIdType.MESH',
)

_code(
    "RS523",
    "no such device",
    "On this device a device id is negative or past the end of its mesh axis.",
    "Device ids do not wrap around. The message goes nowhere, or to a device of another row.",
    'device_id={"x": i - 1}                        # i is 0',
    'device_id={"x": jax.lax.rem(i + n - 1, n)}',
)

_code(
    "RS524",
    "the barrier does not cover the device",
    "A device waits on the barrier and then writes to another device that never signals it.",
    "The barrier tells that those who signalled have entered, and nothing of others. The device that is "
    "written into has to signal.",
    "signal(barrier, right)     # and then sends to the right",
    "signal(barrier, left)      # the left one sends here",
)

_code(
    "RS525",
    "kernels share a collective_id and signal different devices",
    "Two kernels have one barrier semaphore, and what one signals satisfies the wait of the other.",
    "Each kernel alone is right. One after the other, a device that is still in the first one is taken for "
    "one that has entered the second.",
    """
shift: collective_id=0
exchange: collective_id=0
""",
    """
shift: collective_id=0
exchange: collective_id=1
""",
)

# -- RS6xx: lowering and target --------------------------------------------------------------------------------------

_code(
    "RS601",
    "an unknown target",
    "`--target` names no topology of the TPU compiler.",
    "The kernel is compiled for a certain chip in a certain arrangement; the message lists those that are known.",
    "ringsched compile all_gather.yaml --target v5p",
    "ringsched compile all_gather.yaml --target v5p:2x2x1",
)

_code(
    "RS602",
    "the TPU compiler is not installed",
    "`--target` needs libtpu, which comes with the extra `tpu`.",
    "ringsched itself needs no TPU and no libtpu; compiling for one does.",
    "pip install ringsched && ringsched compile all_gather.yaml --target v5p:2x2x1",
    "pip install 'ringsched[tpu]' && ringsched compile all_gather.yaml --target v5p:2x2x1",
)

_code(
    "RS603",
    "too few devices",
    "The schedule needs more ranks than the target or the machine has devices.",
    "Each rank is one device.",
    "ringsched compile all_gather.yaml --set N=8 --target v5e:2x2",
    "ringsched compile all_gather.yaml --set N=4 --target v5e:2x2",
)

_code(
    "RS604",
    "the TPU compiler refuses the kernel",
    "The kernel was generated and proven, and the TPU compiler cannot compile it; its own message is shown.",
    "Mostly an operand does not fit the chip's memory, or a dtype is not supported there.",
    "ringsched compile all_gather.yaml --target v4:2x2x1 --shape x=65536x8192:f32",
    "ringsched compile all_gather.yaml --target v4:2x2x1 --shape x=1024x1024:f32",
)

_code(
    "RS605",
    "the deadline has passed",
    "A compilation or a run took longer than its deadline and was ended.",
    "A kernel that hangs does so for ever; a deadline turns that into a message.",
    "ringsched run all_to_all.yaml --set N=16 --timeout 1",
    "ringsched run all_to_all.yaml --set N=16 --timeout 300",
)

_code(
    "RS606",
    "interpret mode would hang",
    "The CPU client of this process has too few threads for the devices, and it was started before "
    "ringsched could change that.",
    "In interpret mode every device occupies a thread while it waits for the others. With fewer threads "
    "than that all of them "
    "wait for ever. The number is fixed when jax starts.",
    "import jax; jax.devices()        # started\nimport ringsched as rs",
    "import ringsched as rs           # before the first use of jax; or NPROC=64 in the environment",
)

_code(
    "RS607",
    "cannot be lowered",
    "The schedule is right, and there is no kernel for it with these shapes or wishes.",
    "The message says what stands in the way: an axis that the ranks do not divide, a wish that "
    "contradicts another, a form "
    "that is not generated yet.",
    "rs.compile('reduce_scatter')     # called with 10 rows on 4 devices",
    "rs.compile('reduce_scatter')     # called with 12 rows on 4 devices",
)

_code(
    "RS608",
    "a wrong value at run time",
    "The kernel ran, and its result differs from that of the collective of jax.lax by more than rounding.",
    "Verification and execution disagree, so one of them is wrong. Please report it with the schedule and the command.",
    "ringsched run mine.yaml      # max error 8.1",
    "an issue with the schedule, the parameters and the shape",
)

_code(
    "RS609",
    "the kernel hangs at run time",
    "The run in interpret mode did not end before its deadline.",
    "Verification promises that it ends; either the deadline is too short for this machine or the proof has a hole.",
    "ringsched run mine.yaml --timeout 5",
    "ringsched run mine.yaml --timeout 300",
)

_code(
    "RS610",
    "execution is not simulated",
    "The schedule has more than 16 ranks, and interpret mode on a CPU is not run for so many devices.",
    "Verification holds as it is; it does not depend on execution. To see the kernel run, take fewer ranks.",
    "ringsched run all_gather.yaml --set N=64",
    "ringsched run all_gather.yaml --set N=8\nringsched verify all_gather.yaml --set N=64",
)

_code(
    "RS611",
    "the output cannot be written",
    "The file named by `-o` cannot be created or written.",
    "Nothing was written; an older file of that name is as it was.",
    "ringsched compile all_gather.yaml -o /no/such/folder/kernel.py",
    "ringsched compile all_gather.yaml -o kernel.py",
)

_code(
    "RS612",
    "nothing to audit",
    "The function, its shapes or its mesh are not as given, it cannot be traced by jax, or it calls no Pallas kernel.",
    "An audit reads the traced kernel. The message is that of jax where tracing fails.",
    "ringsched audit kernels:all_gather --mesh i=4 --args 'f32[30,128]' --in-specs i --out-specs i",
    "ringsched audit kernels:all_gather --mesh i=4 --args 'f32[32,128]' --in-specs i --out-specs i",
)

_code(
    "RS613",
    "nothing to compare with",
    "The file named by `--compare` is no schedule, no kernel module that ringsched wrote and no report of "
    "`--json`, or "
    "its kernel does not take the operands.",
    "Both kernels are compiled with the operands of the first, or else the figures would not be those of one task. "
    "A saved report has operands of its own, which the table shows.",
    "ringsched compile matmul_reduce_scatter --target v5p:2x2x1 --compare reduce_scatter",
    "ringsched compile matmul_reduce_scatter --target v5p:2x2x1 --compare matmul",
)

_code(
    "RS621",
    "more semaphores than the chip has",
    "The kernel asks for more semaphores than a core of the chip has room for.",
    "The compiler refuses the kernel at this size, though it takes it at a smaller one.",
    "pltpu.SemaphoreType.DMA((n - 1,))      # n = 512",
    "pltpu.SemaphoreType.DMA((slots,))",
)

_code(
    "RS622",
    "more VMEM than the chip has",
    "Operands, results and scratch memory that lie in VMEM do not fit a core of the chip.",
    "The compiler refuses the kernel at this size. Blocks of a grid are there twice, and rows of less than "
    "128 lanes take a whole tile.",
    "pl.BlockSpec(memory_space=pltpu.VMEM)   # 96 MiB",
    "pl.BlockSpec(memory_space=pltpu.HBM)    # and tiles by DMA",
)

# -- RS7xx, RS8xx and RS9xx -------------------------------------------------------------------------------------------

_code(
    "RS701",
    "undecided",
    "Neither a proof nor a counterexample was found within the limits.",
    "Undecided is not right: no kernel is written, and the exit code is 3. Concrete parameters can always be decided.",
    "ringsched verify mine.yaml",
    "ringsched verify mine.yaml --set N=8",
)

_code(
    "RS702",
    "a kernel that cannot be followed",
    "The audit walks the traced kernel on every device with its scalars evaluated. Here it came to something that it "
    "cannot evaluate, such as a condition on data, or to an operation that it does not know.",
    "Undecided is not right: what comes after that place was not looked at. The help says what makes it decided.",
    "@pl.when(x_ref[0, 0] > 0)      # whether the DMA starts hangs on data\ndef _(): copy.start()",
    "copy.start()                   # every device starts it",
)

_code(
    "RS703",
    "values that cannot be followed",
    "The audit was asked what the kernels compute, and some operation on the way is not known to it.",
    "An unknown value is never taken for a right one. Races, deadlock and leftovers are decided without values.",
    "ringsched audit kernels:f --expect all_gather …   # f uses random numbers",
    "ringsched audit kernels:f …",
)

_code(
    "RS704",
    "a collective without a known promise",
    "The file names a collective of which it is not known what every rank is to hold at the end.",
    "It ends, nothing races, and no message is left over, but what it computes cannot be called right.",
    'coll="custom"',
    'coll="allreduce"',
)

_code(
    "RS705",
    "no schedule can say it",
    "An imported algorithm is right, but a rank has to hold two values of one chunk at once, such as two "
    "sums of its own term with different others, both of which it sends.",
    "In a schedule a rank holds one value of each chunk: what arrives replaces it, or is added to it.",
    "rank 1 sends its term plus that of rank 0 to rank 2, and its term plus that of rank 2 to rank 0",
    "rank 1 adds up all three, and sends the sum to both",
)

_code(
    "RS801",
    "a wrong value",
    "The function returns something else than was expected, on every interleaving.",
    "A kernel without any race can still send the wrong chunk, add a term twice, or overwrite where it should add.",
    "acc_ref[...] = part_ref[...]",
    "acc_ref[...] += part_ref[...]",
)

_code(
    "RS802",
    "a result depends on memory that nothing has written",
    "Something is computed from scratch memory, or from a result, before anything was written there.",
    "Such memory holds whatever was there before. In a test that is often zero, in production it is not.",
    "acc[...] += x_ref[...]",
    """
acc[...] = jnp.zeros_like(acc)
acc[...] += x_ref[...]
""",
)

_code(
    "RS810",
    "a peer that cannot be",
    "A block of an imported algorithm sends to or receives from a rank that there is not, or that is its own, "
    "or it has a step that sends or receives without a peer.",
    "The messages of that step have nowhere to go, or to come from.",
    '<gpu id="0"><tb id="0" send="0" recv="-1" chan="0">',
    '<gpu id="0"><tb id="0" send="1" recv="-1" chan="0">',
)

_code(
    "RS811",
    "two blocks on one connection",
    "Two blocks of a rank send, or receive, on the same connection: the same peer and channel.",
    "Messages match in the order in which they are sent. Blocks run at once, so nobody knows which message is which.",
    '<tb id="0" send="1" chan="0"/> <tb id="1" send="1" chan="0"/>',
    '<tb id="0" send="1" chan="0"/> <tb id="1" send="1" chan="1"/>',
)

_code(
    "RS812",
    "waiting for a step that there is not",
    "`depid` and `deps` of a step name a block or a step that its rank does not have.",
    "Whatever was to come before it can come at any time.",
    'depid="7" deps="0"      # of a rank with blocks 0 … 3',
    'depid="3" deps="0"',
)

_code(
    "RS813",
    "waiting for a step that gives no signal",
    'A step waits for one that has hasdep="0", as have all that come after it in its block.',
    'A block says how far it has come only at steps with hasdep="1"; the waiting one waits for ever.',
    '<step s="0" type="r" … hasdep="0"/>      # and another waits for it',
    '<step s="0" type="r" … hasdep="1"/>',
)

_code(
    "RS814",
    "outside of a buffer",
    "A step reads or writes chunks that its buffer does not have.",
    "That is other memory: what is read means nothing, what is written destroys something else.",
    'srcbuf="i" srcoff="4"      # i_chunks="4"',
    'srcbuf="i" srcoff="3"',
)

_code(
    "RS815",
    "a message without its other end",
    "On a connection more messages are sent than received, or more received than sent.",
    "A receive without a send waits for ever; a send without a receive is taken for the first message of the "
    "next call.",
    "rank 0: s, s       rank 1: r",
    "rank 0: s, s       rank 1: r, r",
)

_code(
    "RS816",
    "counts that do not match",
    "A message has another number of chunks than the step that receives it.",
    "Messages match in order, so the receiver waits for what does not come, or leaves something for the next message.",
    's cnt="2"       r cnt="1"',
    's cnt="2"       r cnt="2"',
)

_code(
    "RS817",
    "a race between blocks",
    "Two steps of a rank access the same chunk, at least one of them writes, and nothing puts them in order: "
    "neither their place in a block, nor dependences, nor messages.",
    "Blocks run at once. In some runs the one comes first, in some the other, and the result changes with it. "
    "That a connection has no room may put them in order, but only with one protocol.",
    '<tb id="0"><step s="0" type="r" dstbuf="o" dstoff="0" …/></tb>\n<tb id="1"><step s="0" type="s" srcbuf="o" '
    'srcoff="0" …/></tb>',
    '<tb id="0"><step s="0" type="r" dstbuf="o" dstoff="0" hasdep="1" …/></tb>\n<tb id="1"><step s="0" type="s" '
    'srcbuf="o" srcoff="0" depid="0" deps="0" …/></tb>',
)

_code(
    "RS818",
    "an imported algorithm hangs",
    "Steps wait for each other in a circle: for a message, for room on a connection, or for a step of another block.",
    "A connection holds 2 messages (Simple) or 8 (LL, LL128); a step that sends one more waits until one was "
    "received. One run decides: blocks cannot do otherwise in another one.",
    "both ranks: s, s, s, r, r, r",
    "both ranks: s, r, s, r, s, r",
)

_code(
    "RS819",
    "not what the collective promises",
    "At the end a chunk of the output is something else than the collective promises, in every run.",
    "Terms are missing or counted twice, or it is another chunk, or what its memory held before.",
    'type="r"      # replaces',
    'type="rrc"      # adds',
)

_code(
    "RS820",
    "sizes that do not fit",
    "The number of chunks cannot be shared out to the ranks, or is too large.",
    "nchunksperloop counts the chunks of the whole collective. Where ranks have shares, each has equally many of them.",
    'coll="allgather" ngpus="4" nchunksperloop="6"',
    'coll="allgather" ngpus="4" nchunksperloop="8"',
)

_code(
    "RS821",
    "a reduction that loses its operand",
    "A reduction that arrives replaces input that nothing has read: its source is another chunk than its destination.",
    "The local operand of `rrc` is the source. A sum into the destination was most likely meant, and its term is lost.",
    'type="rrc" srcbuf="i" srcoff="0" dstbuf="i" dstoff="1"',
    'type="rrc" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1"',
)

_code(
    "RS831",
    "not for this format",
    "The schedule has something that the other tool has no words for: products, or a permutation.",
    "What would be written without it would be another schedule.",
    "ringsched export msccl all_gather_matmul",
    "ringsched export msccl all_gather",
)

_code(
    "RS902",
    "memory that is never used",
    "The kernel that is audited has an operand, scratch memory or a semaphore that nothing touches on any device.",
    "It takes up memory, and often it shows that another one was meant.",
    "def kernel(x_ref, o_ref, buffer, semaphore): o_ref[...] = x_ref[...]",
    "def kernel(x_ref, o_ref): o_ref[...] = x_ref[...]",
)

_code(
    "RS903",
    "a hop that is not promised",
    "A DMA goes over a number of hops that is no power of two, on a chip whose documentation promises only those.",
    "Neither compiler nor runtime checks it.",
    'device_id={"x": jax.lax.rem(i + 3, n)}',
    'device_id={"x": jax.lax.rem(i + 1, n)}',
)

_code(
    "RS904",
    "a tile does not divide its dimension",
    "The last tile of the grid reaches over the end of the array.",
    "What it holds there is meaningless. That is in order for operations that keep rows apart, and wrong in "
    "sums over them.",
    "pl.BlockSpec((8, 128), …)     # of [28, 128]",
    "pl.BlockSpec((4, 128), …)",
)

_code(
    "RS905",
    "a shared collective_id",
    "Kernels with one collective_id signal different devices. In this order nothing goes wrong.",
    "In another order, or called one more time, one can satisfy the barrier of the other.",
    """
shift: collective_id=0
exchange: collective_id=0
""",
    """
shift: collective_id=0
exchange: collective_id=1
""",
)

_code(
    "RS906",
    "a hop over several links",
    "Neighbours along a mesh axis are not neighbours on the chips: data between them goes over more than one link.",
    "The hop takes longer, and takes the links that it passes from others. Either another order of the devices would "
    "do better, or the chips are not joined that way: small slices do not wrap around, and no ring of links goes "
    "through an odd number of chips in rows and columns.",
    'jax.make_mesh((4,), ("r",))',
    'rs.make_mesh(jax.devices(), "ring:4")',
)

_code(
    "RS907",
    "hops that share a link",
    "The data of several hops of the topology goes over one link between chips, in the same direction.",
    "In a step in which all of them are used each gets its share of the bandwidth only. Where two cores of a chip are "
    "devices of their own they share the links of the chip, so that this cannot always be avoided.",
    'jax.make_mesh((2, 4), ("x", "y"))',
    'rs.make_mesh(jax.devices(), "torus:2x4")',
)

_code(
    "RS911",
    "more than the runtime takes",
    "An imported algorithm is over a limit of the runtime that it is written for.",
    "It is right all the same, and can be imported. That runtime will not load it.",
    "a block of 80 steps",
    "two blocks of 40 steps",
)

_code(
    "RS912",
    "the two ends name different slots",
    "A send names another slot of the receiver than the step that receives the message.",
    "The receiving step decides. Often it shows that messages match in another order than was meant.",
    's dstbuf="o" dstoff="1"       r dstbuf="o" dstoff="2"',
    's dstbuf="o" dstoff="2"       r dstbuf="o" dstoff="2"',
)

_code(
    "RS913",
    "something left out or filled in",
    "The file has elements that mean nothing here, steps out of order, no collective, or no protocol that is known.",
    "What was assumed in their place is said, so that it can be checked.",
    '<algo proto="Fast" …>',
    '<algo proto="Simple" …>',
)

_code(
    "RS914",
    "an input that is overwritten",
    "The algorithm is out of place, and writes into its input.",
    "Who calls a collective out of place expects the operand to stay as it is.",
    'inplace="0"      # and a step with dstbuf="i"',
    'inplace="1"',
)

_code(
    "RS915",
    "sent straight from where it was made",
    "Ranks of the imported algorithm pass partial sums on without adding their own terms. In the schedule these go "
    "straight from where they were made to where they are needed.",
    "A rank of a schedule holds one value of each chunk, so it cannot keep its own term and pass another one on. The "
    "result is the same; the schedule may use links that the algorithm does not.",
    "0 → 1 → 2, where 1 keeps its own term",
    "0 → 2",
)

CATALOGUE: dict[str, Code] = {entry.code: entry for entry in _ENTRIES}
