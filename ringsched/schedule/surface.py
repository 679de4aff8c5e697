"""The file format as pydantic models: what a schedule file may say, before any name is looked up.

    file     ::= schedule [description] collective topology [params] [tables] chunks [compute] steps [lowering]
    item     ::= transfer | {step: [transfer …]} | {for: RANGE, do: [item …]} | use | {beside: [use …]} | {synth:}
    transfer ::= {send: CHUNK, to: RANK, [op:] [when:] [from:] [each: RANGE]}
    use      ::= {use: FILE, [with: {NAME: EXPR}] [on: CHUNK]}
    chain    ::= schedule [description] topology [params] [activation:] {chain: [link …]}     a file of its own
    link     ::= {use: FILE, [epilogue:]}
    topology ::= {ring: | line: | mesh: | torus: | links:  [twist: {AXIS: [EXPR …]}] [bandwidth:] [latency:] [routed:]}

Expressions are checked later, where their columns are known; here they are text or an integer. The only module that
imports pydantic: untrusted text and the JSON schema end here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticCustomError

from ringsched.schedule.vocabulary import COLLECTIVES, ITEM_KEYS, TOPOLOGIES, item_kind

MAX_LINKS = 100_000


def _expression(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise PydanticCustomError("expression_type", "expected an expression")


def _expressions(value: Any) -> Any:
    """One expression or a list of them; a fault inside the list is reported at its place by the loader's walk."""
    if isinstance(value, list):
        if not value:
            raise PydanticCustomError("too_short", "expected at least one expression")
        for index, item in enumerate(value):
            try:
                _expression(item)
            except PydanticCustomError:
                raise PydanticCustomError("expression_item", "expected an expression", {"index": index}) from None
        return value
    return _expression(value)


def _text_schema(description: str, *, several: bool = False) -> WithJsonSchema:
    one: dict[str, Any] = {"type": ["string", "integer"]}
    if not several:
        return WithJsonSchema({**one, "description": description})
    return WithJsonSchema({"anyOf": [one, {"type": "array", "items": one, "minItems": 1}], "description": description})


Expression = Annotated[Any, BeforeValidator(_expression), _text_schema("an expression over the names in scope")]
Expressions = Annotated[Any, BeforeValidator(_expressions), _text_schema("one expression or several", several=True)]
ChunkText = Annotated[str, Field(description="chunk[i, a:b, :]", pattern=None)]
RangeText = Annotated[str, Field(description="NAME in FIRST .. LAST; both ends are included")]


class Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TransferModel(Model):
    """A rank sends a chunk to another."""

    send: ChunkText
    to: Expressions
    op: Literal["copy", "reduce"] = "copy"
    when: Expressions | None = None
    sender: Expressions | None = Field(default=None, alias="from")
    each: RangeText | None = None


class StepModel(Model):
    """Several transfers at once."""

    step: Annotated[list[TransferModel], Field(min_length=1)]


class LoopModel(Model):
    """Steps repeated; a `do:` that lists transfers only is one step of concurrent transfers."""

    range: RangeText = Field(alias="for")
    do: list[ItemModel]


class UseModel(Model):
    """Another schedule file, run at this place."""

    use: str
    arguments: dict[str, Expression] | None = Field(default=None, alias="with")
    on: ChunkText | None = None


class BesideModel(Model):
    """Schedules that run side by side."""

    beside: Annotated[list[UseModel], Field(min_length=1)]


class SynthModel(Model):
    """Steps that the compiler makes for these links."""

    synth: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]


# the tags are in angle brackets so that they cannot be mistaken for keys of the file in an error's location
ItemModel = Annotated[
    Annotated[TransferModel, Tag("<transfer>")]
    | Annotated[StepModel, Tag("<step>")]
    | Annotated[LoopModel, Tag("<loop>")]
    | Annotated[UseModel, Tag("<use>")]
    | Annotated[BesideModel, Tag("<beside>")]
    | Annotated[SynthModel, Tag("<synth>")],
    Discriminator(item_kind),
]


def _shape(value: Any) -> str:
    return "<name>" if isinstance(value, str) else "<argument>"


class RootModel(Model):
    """A collective with its argument; exactly one key."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    broadcast: Expression | None = None
    reduce: Expression | None = None
    gather: Expression | None = None
    scatter: Expression | None = None
    permute: Expression | None = None


CollectiveName = Literal[
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "permute",
    "none",
]
CollectiveModel = Annotated[
    Annotated[CollectiveName, Tag("<name>")] | Annotated[RootModel, Tag("<argument>")],
    Discriminator(_shape),
]

Sides = Annotated[list[Expression], Field(min_length=1, max_length=3)]
Pair = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]
Bandwidth = Annotated[int, Field(ge=1, description="a multiple of a plain link's")]
Latency = Annotated[int, Field(ge=0, description="a multiple of a plain link's")]


class SpecialLinkModel(Model):
    """A link that is faster or slower than others."""

    between: Pair
    bandwidth: Bandwidth = 1
    latency: Latency = 1


def _link_shape(value: Any) -> str:
    return "<special link>" if isinstance(value, dict) else "<pair>"


LinkOfRanks = Annotated[
    Annotated[Pair, Tag("<pair>")] | Annotated[SpecialLinkModel, Tag("<special link>")],
    Discriminator(_link_shape),
]


def _axes_shape(value: Any) -> str:
    return "<axes>" if isinstance(value, list) else "<all>"


class TopologyModel(Model):
    """The links between ranks; one key says of which kind they are."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in TOPOLOGIES]})

    ring: Expression | None = None
    line: Expression | None = None
    mesh: Sides | None = None
    torus: Sides | None = None
    links: Annotated[list[LinkOfRanks], Field(min_length=1, max_length=MAX_LINKS)] | None = None
    twist: dict[str, Sides] | None = Field(
        default=None, description="of a torus: for an axis, what once around along it adds to each coordinate"
    )
    bandwidth: (
        Annotated[
            Annotated[Bandwidth, Tag("<all>")] | Annotated[list[Bandwidth], Tag("<axes>")],
            Discriminator(_axes_shape),
        ]
        | None
    ) = Field(default=None, description="of all links, or of those along each axis")
    routed: bool = Field(default=False, description="transfers may go to ranks that are not neighbours")
    latency: (
        Annotated[
            Annotated[Latency, Tag("<all>")] | Annotated[list[Latency], Tag("<axes>")],
            Discriminator(_axes_shape),
        ]
        | None
    ) = Field(default=None, description="of all links, or of those along each axis")


class ComputeModel(Model):
    """A matrix multiply on the chunks: of each as it lands, or of each partial sum just before it is sent."""

    multiply: Literal["on arrival", "before sending"]
    shard: Literal["rows", "features"] = Field(default="rows", description="what the sharded activation is split along")
    overlap: Literal["full", "none"] = Field(
        default="full", description="none: first one, then the other, for comparison"
    )


class LoweringModel(Model):
    """Wishes of an expert; what is left out, the compiler decides."""

    slots: Annotated[int, Field(ge=1)] | None = None
    semaphores: Annotated[int, Field(ge=1)] | None = None
    memory: Literal["vmem", "hbm"] | None = None
    unroll: bool | None = None
    barrier: Literal["writers", "none"] | None = None


class FileModel(Model):
    """A ringsched schedule: which chunk moves to which neighbour at which step."""

    schedule: str = Field(description="the schedule's name, an identifier")
    description: str | None = None
    collective: CollectiveModel
    topology: TopologyModel
    params: dict[str, int] = Field(default_factory=dict, description="integer parameters and their defaults")
    tables: dict[str, Annotated[list[int], Field(min_length=1, max_length=MAX_LINKS)]] = Field(
        default_factory=dict, description="lists of constants that expressions look up: NAME[EXPR]"
    )
    chunks: Annotated[list[Expression], Field(min_length=1, max_length=8)]
    compute: ComputeModel | None = None
    steps: list[ItemModel]
    lowering: LoweringModel | None = None


class LinkModel(Model):
    """A schedule that multiplies, as a part of a chain."""

    use: str
    epilogue: Literal["gelu", "gelu_exact", "silu", "relu"] | None = Field(
        default=None, description="is applied to the result, elementwise"
    )


class ChainModel(Model):
    """A ringsched chain: collective matmuls one after the other, in each of several layers."""

    schedule: str = Field(description="the chain's name, an identifier")
    description: str | None = None
    topology: TopologyModel
    params: dict[str, int] = Field(default_factory=dict, description="integer parameters and their defaults")
    activation: Literal["sharded", "whole"] = Field(
        default="sharded", description="what a rank has of the operand and of the result"
    )
    chain: Annotated[list[LinkModel], Field(min_length=1)]


assert set(COLLECTIVES) == set(CollectiveName.__args__) and len(ITEM_KEYS) == 6  # type: ignore[attr-defined]


def json_schema() -> dict[str, object]:
    """The JSON schema of a schedule file, for editors: one of a schedule or of a chain."""
    schema: dict[str, Any] = TypeAdapter(FileModel | ChainModel).json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "ringsched schedule"
    return schema
