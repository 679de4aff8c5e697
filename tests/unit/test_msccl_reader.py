"""How MSCCL XML is read: all spellings say the same, and what cannot be read is told with its place."""

import re

import pytest
from msccl_files import OWN, changed, judged, own

from ringsched.diagnostics import Diagnostic, DiagnosticError, exit_code
from ringsched.importers import elements, reader
from ringsched.importers.elements import parse
from ringsched.importers.judge import judge
from ringsched.importers.reader import algorithm_of, read_algorithm

TWO = """\
<algo name="t" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="1">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""


def refused(text: str | bytes) -> tuple[Diagnostic, ...]:
    with pytest.raises(DiagnosticError) as error:
        algorithm_of(parse(text.encode() if isinstance(text, str) else text, "a.xml"))
    return error.value.diagnostics


@pytest.mark.parametrize(
    "changes",
    [
        [('coll="allgather"', 'coll="AllGather"')],
        [('coll="allgather"', 'collective="all_gather"')],
        [('inplace="1"', 'inplace="True"'), ('hasdep="0"', 'hasdep="false"')],
        [("<algo", "<msccl><algo"), ("</algo>", "</algo></msccl>")],
        [('ngpus="2"', "")],
        [('nchunksperloop="2"', 'nChunksPerLoop=" 2 "')],
        [('inplace="1"', 'in_place="1" outofplace="0" minBytes="0" maxBytes="99" redop="sum"')],
        [('<gpu id="0"', '<!-- a comment -->\n<gpu id="0"'), ('proto="Simple"', 'proto="simple"')],
        [('type="s"', 'type="SEND"'), ('srcbuf="o"', 'srcbuf="output"')],
        [(' cnt="1" depid="-1" deps="-1" hasdep="0"', "")],
        [('depid="-1" deps="-1" hasdep="0"', 'depid="-1" has_dep="0"')],
        [('dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1"', 'dstbuf="" dstoff="" cnt="1" depid="" deps=""')],
        [('chan="0"', 'channel="0"'), ('chan="0"', "")],
        [('s_chunks="0"', ""), ('i_chunks="1"', 'i_chunks="0"')],
        [("<algo", "<?xml version='1.0' encoding='UTF-8'?>\n<!-- x -->\n<algo"), ('id="0"', "id='0'")],
    ],
)
def test_spellings(changes: list[tuple[str, str]]) -> None:
    judgement = judged(changed(TWO, *changes))
    assert (judgement.verdict, judgement.advice) == ("right", ())
    assert judgement.algorithm.kind == "all_gather" and judgement.algorithm.ranks == 2
    assert judgement.held == judged(TWO).held


def test_steps_and_blocks_in_any_order() -> None:
    first, second = [f"{line}\n" for line in TWO.splitlines() if "<step" in line][:2]
    judgement = judged(TWO.replace(first + second, second + first))
    assert judgement.verdict == "right"
    (advice,) = judgement.advice
    assert (advice.code, advice.message) == ("RS913", "steps out of order: they are taken by their numbers")
    gpus = TWO.split("  <gpu")
    swapped = gpus[0] + "  <gpu" + gpus[2].replace("</algo>\n", "") + "  <gpu" + gpus[1] + "</algo>\n"
    assert judged(swapped).verdict == "right"


def test_places_are_those_of_the_file() -> None:
    judgement = judged(TWO)
    span = judgement.algorithm.gpus[1].blocks[0].steps[1].span
    assert (span.line, span.column) == (11, 7)
    assert TWO.splitlines()[10][span.column - 1 : span.end_column - 1] == '<step s="1" type="r"'


@pytest.mark.parametrize(
    ("changes", "code", "message", "line"),
    [
        ([("</algo>", "")], "RS131", "a.xml is not well-formed XML: no element found", 15),
        ([('id="0"', "id=0")], "RS131", "a.xml is not well-formed XML: not well-formed (invalid token)", 2),
        ([("<algo", "<!DOCTYPE algo><algo")], "RS132", "a.xml declares a document type", 1),
        ([("<step", '<op step="0" type="s" buf="o" off="0"/><step')], "RS133", "<op> in a block", 4),
        ([('type="s"', "")], "RS133", "<step> has no `type`", 4),
        ([('<gpu id="0"', "<gpu")], "RS133", "<gpu> has no `id`", 2),
        ([('<gpu id="1"', '<gpu id="0"')], "RS133", "a gpu with id 0", 8),
        ([('<gpu id="1"', '<gpu id="2"')], "RS133", "a gpu with id 2", 8),
        ([('<step s="1"', '<step s="0"')], "RS133", "step 0 is here twice", 5),
        ([('ngpus="2"', 'ngpus="0"')], "RS133", "0 ranks", 1),
        ([('ngpus="2"', 'ngpus="99999"')], "RS133", "99999 ranks", 1),
        ([('srcoff="0"', 'srcoff="zero"')], "RS134", "'zero' is not an integer", 4),
        ([('srcoff="0"', 'srcoff="1_0"')], "RS134", "'1_0' is not an integer", 4),
        ([('srcoff="0"', 'srcoff="99999999999"')], "RS134", "'99999999999' is out of range", 4),
        ([('cnt="1"', 'cnt="-1"')], "RS134", "a step of -1 chunks", 4),
        ([('type="s"', 'type="sned"')], "RS134", "type 'sned' is not known", 4),
        ([('srcbuf="o"', 'srcbuf="q"')], "RS134", "srcbuf 'q' is not known", 4),
        ([('i_chunks="1"', 'i_chunks="-1"')], "RS134", "a buffer of -1 chunks", 2),
        ([('depid="-1" deps="-1"', 'depid="0,1" deps="0"')], "RS134", "2 blocks to wait for, and 1 steps", 4),
        ([('srcoff="0"', 'srcoff="0,1"')], "RS134", "one number is wanted, not 2", 4),
    ],
)
def test_what_cannot_be_read(changes: list[tuple[str, str]], code: str, message: str, line: int) -> None:
    finding = refused(changed(TWO, *changes))[0]
    assert (finding.code, finding.message) == (code, message)
    assert finding.primary is not None and finding.primary.span.line == line
    assert exit_code([finding]) == (2 if code < "RS2" else 1)


def test_entities_are_never_expanded() -> None:
    bomb = '<!DOCTYPE algo [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>' + TWO.replace('name="t"', 'name="&b;"')
    assert [finding.code for finding in refused(bomb)] == ["RS132"]
    external = '<!DOCTYPE algo SYSTEM "file:///etc/passwd">' + TWO
    assert [finding.code for finding in refused(external)] == ["RS132"]


def test_sizes_are_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    nested = "<algo>" * 40 + "</algo>" * 40
    assert [finding.code for finding in refused(nested)] == ["RS135"]
    monkeypatch.setattr(elements, "MAX_ELEMENTS", 5)
    assert [finding.code for finding in refused(TWO)] == ["RS135"]
    monkeypatch.setattr(elements, "MAX_BYTES", 100)
    path = str(tmp_path) + "/large.xml"
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(TWO)
    with pytest.raises(DiagnosticError) as error:
        read_algorithm(path)
    assert error.value.diagnostics[0].code == "RS135"


def test_findings_are_limited() -> None:
    steps = "".join(f'<step s="{s}" type="what" srcoff="x"/>' for s in range(100))
    found = refused(f'<algo coll="allreduce" ngpus="1"><gpu id="0"><tb id="0">{steps}</tb></gpu></algo>')
    assert len(found) == reader.MAX_FINDINGS


@pytest.mark.parametrize(
    "text", ["", "x", "<algo", "\x00", "<a/>", "<!---->", "{}", "<algo/>", "<algo coll='reduce'/>"]
)
def test_other_files_are_refused(text: str) -> None:
    assert refused(text)[0].code in ("RS131", "RS133")


@pytest.mark.parametrize("encoding", ["utf-16-le", "gbk", "shift_jis", "nonsense"])
def test_encodings_that_cannot_be_read(encoding: str) -> None:
    (finding,) = refused(f"<?xml version='1.0' encoding='{encoding}'?>\n{TWO}")
    assert (finding.code, finding.message) == ("RS131", "a.xml is in an encoding that is not known")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "latin-1", "cp1252"])
def test_encodings(encoding: str) -> None:
    declared = f"<?xml version='1.0' encoding='{encoding.removesuffix('-sig')}'?>\n{TWO}"
    assert judge(algorithm_of(parse(declared.encode(encoding), "a.xml"))).verdict == "right"


def test_bytes_that_are_no_text() -> None:
    assert refused(b"\xff\xfe\x00<")[0].code == "RS131"
    assert refused(TWO.encode().replace(b'name="t"', b'name="\xff"'))[0].code == "RS131"
    assert judged(TWO.replace('name="t"', 'name="ä → ö"')).verdict == "right"


def test_what_is_left_out_or_filled_in_is_told() -> None:
    judgement = judged(changed(TWO, ('proto="Simple"', 'proto="Fast"'), ("<tb ", "<what/><tb ")))
    assert judgement.verdict == "right"
    assert [advice.message for advice in judgement.advice] == [
        "<what> means nothing inside <gpu>: it is left out",
        "the protocol 'Fast' is not known: Simple is assumed, 2 messages in flight",
    ]


def test_an_older_dialect() -> None:
    """Other names of attributes, own copies as <copy>, steps out of order."""
    judgement = judged(own("alltoall_older_dialect"))
    assert judgement.verdict == "right"
    assert [advice.message for advice in judgement.advice] == [
        "steps out of order: they are taken by their numbers",
        "<copy> is taken for a local copy; newer runtimes leave it out",
    ]
    broken = judged(own("alltoall_older_dialect").replace('<copy i_off="0" o_off="0"/>', ""))
    assert [finding.code for finding in broken.findings] == ["RS819"]
    assert refused(own("alltoall_older_dialect").replace('i_off="0" ', ""))[0].code == "RS133"


def test_a_short_form_with_lists_of_dependences() -> None:
    algorithm = judged(own("allgather_short_form")).algorithm
    assert algorithm.gpus[0].blocks[1].steps[2].needs == ((0, 0), (2, 0))
    assert algorithm.gpus[0].blocks[1].steps[2].flagged is None


def test_a_collective_that_is_not_said() -> None:
    """Older writers say neither the collective nor the ranks nor whether it is in place."""
    unsaid = changed(TWO, (' coll="allgather"', ""), (' ngpus="2"', ""), (' inplace="1"', ""))
    judgement = judged(unsaid)
    assert (judgement.verdict, judgement.algorithm.kind, judgement.algorithm.in_place) == ("right", "all_gather", True)
    assert [advice.message for advice in judgement.advice] == [
        "the file does not say which collective it is: it does what allgather promises, in place"
    ]
    (nothing,) = judged(changed(unsaid, ('type="s" srcbuf="o" srcoff="0"', 'type="s" srcbuf="o" srcoff="1"'))).findings
    assert (nothing.code, nothing.message) == ("RS704", "it is not known which collective it is")
    (hang,) = judged(changed(unsaid, ('depid="-1" deps="-1"', 'depid="0" deps="1"'))).findings
    assert hang.code == "RS818"


@pytest.mark.parametrize("name", [path.stem for path in OWN])
def test_every_collective_is_recognized(name: str) -> None:
    text = own(name)
    said = judged(text)
    found = judged(re.sub(r' (coll|inplace|root)="[^"]*"', "", text))
    assert (found.verdict, found.algorithm.kind) == ("right", said.algorithm.kind)
