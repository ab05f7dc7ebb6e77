"""Programs as descriptions: what they say of themselves, and every contradiction refused with stage and tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lazybatch.errors import InvalidInput
from lazybatch.program import Append, Carry, Feed, Reference, Repeat, Stage
from lazybatch.program.checks import varying
from tests.program.kit import decoder, encoder, loop, program


class TestWhatItSays:
    """Shorthands, names, references."""

    def test_references(self) -> None:
        """Only the first dot counts; a name without one is an input of the program."""
        assert Reference.of("x") == Reference(None, "x")
        assert Reference.of("encoder.layer.0.h") == Reference("encoder", "layer.0.h")
        assert str(Reference.of("encoder.layer.0.h")) == "encoder.layer.0.h"

    def test_shorthands_are_spelt_out(self) -> None:
        """A plain string is a feed of that tensor, a state carried from it, trips held by an input."""
        stage = Stage("a", "a.onnx", {"x": "y"}, Repeat(carry={"h": "h2"}, trips="count", collect="out"))  # type: ignore[arg-type]
        assert stage.feeds == {"x": Feed("y")}
        assert stage.loop is not None
        assert stage.loop.states == {"h": Carry("h2", 0)}
        assert stage.loop.counted == Feed("count")
        assert stage.loop.collect == ("out",)

    def test_inputs_in_the_order_of_their_reading(self) -> None:
        """Every plain reference is an input of the program, once."""
        stage = decoder(inputs={"memory": "encoder.memory", "mask": "mask", "length": Feed(length_of="source")})
        assert program(encoder(), stage).inputs == ("source", "mask")
        counted = decoder(loop=loop(done=None, trips="count"))
        assert program(encoder(), counted).inputs == ("source", "count")

    def test_trips_known_beforehand(self) -> None:
        """By length, by an input, by the first tensor taken apart; with a flag only the run tells."""
        assert loop().counted is None
        assert Repeat(each={"x": "frames"}).counted == Feed(length_of="frames")
        assert Repeat(each={"x": "frames"}, done="end").counted is None
        assert Repeat(each={"x": "frames"}, trips=Feed(length_of="words")).counted == Feed(length_of="words")

    def test_the_most_iterations(self) -> None:
        """The maximum, or the room of a state that grows, whichever is less."""
        assert loop().most == 64
        assert loop(trips_max=10).most == 10
        assert Repeat(carry={"k": Append("k1", 0, 7)}, trips="n").most == 7
        assert Repeat(each={"x": "frames"}).most is None

    def test_a_stage_by_name(self) -> None:
        """And a clear error for one that is not there."""
        assert program().stage("decoder").name == "decoder"
        with pytest.raises(InvalidInput, match=r"program 'speech' has no stage 'middle'; it has encoder, decoder"):
            program().stage("middle")

    def test_what_varies_from_row_to_row(self) -> None:
        """Padded inputs, collected outputs, growing states; not lengths, not fixed tensors."""
        assert set(varying(program())) == {
            Reference(None, "source"),
            Reference("decoder", "token_next"),
            Reference("decoder", "keys"),
        }


BAD_STAGES: dict[str, tuple[Callable[[], Any], str]] = {
    "a name with a dot": (lambda: encoder(name="a.b"), r"stage is named.*'a\.b'"),
    "a name with a slash": (lambda: encoder(name="a/b"), r"stage is named.*'a/b'"),
    "no name": (lambda: encoder(name=""), "stage is named"),
    "no model": (lambda: encoder(model=None), "stage 'encoder': it has no model"),
    "inputs that are a list": (lambda: encoder(inputs=["x"]), "stage 'encoder': inputs must map names"),
    "an input fed a number": (lambda: encoder(inputs={"x": 3}), "stage 'encoder': input 'x' must be given a Feed"),
    "an input fed nothing": (lambda: encoder(inputs={"x": Feed()}), "input 'x' must be given either a tensor"),
    "an input fed two things": (lambda: encoder(inputs={"x": Feed("a", length_of="b")}), "'x' must be given either"),
    "an empty reference": (lambda: encoder(inputs={"x": ""}), "input 'x': of must be the name"),
    "a padded length": (lambda: encoder(inputs={"x": Feed(length_of="a", pad=(4,))}), "'x': a length is a number"),
    "padding to nothing": (lambda: encoder(inputs={"x": Feed("a", pad=(0,))}), "'x': pad must be a whole number"),
    "padding out of order": (lambda: encoder(inputs={"x": Feed("a", pad=(8, 4))}), r"'x'.*must increase, got \[8, 4\]"),
    "a loop of something": (lambda: decoder(loop={"done": "x"}), "stage 'decoder': loop must be a Repeat"),
    "a carry that is a number": (lambda: decoder(loop=loop(carry={"h": 3})), "state 'h' must be a Carry, an Append"),
    "a carry from nothing": (lambda: decoder(loop=loop(carry={"h": Carry("")})), "state 'h': next must be the name"),
    "a start that is no number": (
        lambda: decoder(loop=loop(carry={"h": Carry("n", float("nan"))})),
        "state 'h': start must be a reference or a finite number, got nan",
    ),
    "a start that no float holds": (
        lambda: decoder(loop=loop(carry={"h": Carry("n", 10**400)})),
        "state 'h': start must be a reference or a finite number, got 10000",
    ),
    "a start that is a flag": (lambda: decoder(loop=loop(carry={"h": Carry("n", True)})), "'h': start must be"),
    "a place that is text": (
        lambda: decoder(loop=loop(carry={"h": Carry("n", in_place="yes")})),
        "'h': in_place must be True or False, got 'yes'",
    ),
    "a negative axis": (lambda: decoder(loop=loop(carry={"k": Append("s", -1, 64)})), "state 'k': axis must be"),
    "no room": (lambda: decoder(loop=loop(carry={"k": Append("s", 0, 0)})), "state 'k': room must be"),
    "too little room": (
        lambda: decoder(loop=loop(carry={"k": Append("s", 0, 8)})),
        "stage 'decoder': state 'k' has room for 8 iterations, a row may make 64",
    ),
    "nothing that ends it": (
        lambda: decoder(loop=loop(done=None)),
        "stage 'decoder': nothing ends this loop: it needs done, trips or each",
    ),
    "done that may never come": (
        lambda: decoder(loop=loop(trips_max=None)),
        r"stage 'decoder': done \('finished'\) may never come true: give trips_max",
    ),
    "done and trips": (lambda: decoder(loop=loop(trips="count")), "'finished' .* or after a known number"),
    "trips of a stage": (lambda: decoder(loop=loop(done=None, trips="encoder.n")), "trips must be the length"),
    "trips that are padded": (lambda: decoder(loop=loop(done=None, trips=Feed("n", pad=(4,)))), "trips must be the"),
    "trips of a number": (lambda: decoder(loop=loop(done=None, trips=7)), "trips must be given a Feed"),
    "a maximum of none": (lambda: decoder(loop=loop(trips_max=0)), "trips_max must be a whole number, at least 1"),
    "a maximum beyond counting": (
        lambda: decoder(loop=loop(trips_max=10**30)),
        "trips_max must be at most 2147483647, got a number of 100 bits",
    ),
    "a maximum that no float holds": (
        lambda: decoder(loop=loop(trips_max=10**400)),
        "trips_max must be at most 2147483647, got a number of 1329 bits",
    ),
    "collected things that are none": (
        lambda: decoder(loop=loop(collect=5)),
        "collect must be names of tensors",
    ),
    "a size to pad to that is no list": (
        lambda: decoder(inputs={"a": Feed("x", pad=8)}),
        "input 'a': pad must be sizes, a tuple of whole numbers, got 8",
    ),
    "an end that is a list": (lambda: decoder(loop=loop(at_max=["error"])), "at_max must be 'truncate' or 'error'"),
    "a maximum that is text": (lambda: decoder(loop=loop(trips_max="9")), "trips_max must be a whole number"),
    "an ending of its own": (lambda: decoder(loop=loop(at_max="stop")), "at_max must be 'truncate' or 'error'"),
    "an iteration without a name": (lambda: decoder(loop=loop(iteration="")), "iteration must be the name"),
    "an input given twice": (lambda: decoder(loop=loop(each={"memory": "x"})), "stage 'decoder': input 'memory' is g"),
    "the position twice": (lambda: decoder(loop=loop(iteration="token")), "stage 'decoder': input 'token' is given tw"),
    "collected twice": (lambda: decoder(loop=loop(collect=("a", "a"))), "collect 'a' is given twice"),
    "collected and carried": (lambda: decoder(loop=loop(collect=("h",))), "'h' is both a state and collected"),
    "each of nothing": (lambda: decoder(loop=loop(each={"x": ""})), "each of 'x' must be the name"),
}


@pytest.mark.parametrize("case", BAD_STAGES)
def test_a_stage_that_contradicts_itself(case: str) -> None:
    """Refused when it is made, in one line that names the stage and the tensor."""
    make, words = BAD_STAGES[case]
    with pytest.raises(InvalidInput, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


COUNTED: dict[str, Any] = {"loop": Repeat(each={"x": "frames"}, collect=("y",)), "inputs": {}}
BAD_PROGRAMS: dict[str, tuple[Callable[[], Any], str]] = {
    "no name": (lambda: program(name=""), "program is named"),
    "no stages": (lambda: program(stages=()), "program 'speech': it has no stages"),
    "a stage instead of a list": (lambda: program(stages=encoder()), "stages must be a list of Stages, got St"),
    "stages of something else": (lambda: program(stages="ab"), "stages must be a list of Stages, got 'ab'"),
    "two stages of one name": (lambda: program(encoder(), encoder()), "stage 'encoder' is given twice"),
    "no outputs": (lambda: program(outputs={}), "program 'speech': it has no outputs"),
    "an output that is a number": (lambda: program(outputs={"y": 1}), "output 'y' must be the name"),
    "an output that is an input": (lambda: program(outputs={"y": "source"}), "output 'y' must be a tensor of a stage"),
    "an output of no stage": (lambda: program(outputs={"y": "middle.h"}), r"output 'y' .*'middle\.h', but there is no"),
    "an output nobody collects": (
        lambda: program(outputs={"y": "decoder.logits"}),
        r"output 'y' is given 'decoder\.logits', but loop 'decoder' neither collects nor carries 'logits'; it has",
    ),
    "a reference to no tensor": (lambda: program(outputs={"y": "decoder."}), "names no tensor"),
    "an input of no stage": (
        lambda: program(encoder(), decoder(inputs={"memory": "encode.memory"})),
        r"stage 'decoder': input 'memory' is given 'encode\.memory', but there is no such stage; before it come 'encod",
    ),
    "an input of a later stage": (
        lambda: program(encoder(inputs={"x": "decoder.h"}), decoder()),
        r"stage 'encoder': input 'x' is given 'decoder\.h', but that stage runs later .* only inputs of the program",
    ),
    "a start of itself": (
        lambda: program(encoder(), decoder(loop=loop(carry={"h": Carry("n", "decoder.h")}))),
        r"stage 'decoder': the start of state 'h' is given 'decoder\.h', but that stage runs later or is this one",
    ),
    "each of no stage": (
        lambda: program(encoder(), decoder(loop=loop(each={"x": "cut.frames"}))),
        r"stage 'decoder': input 'x' of each iteration is given 'cut\.frames'",
    ),
    "a length of no stage": (
        lambda: program(encoder(inputs={"n": Feed(length_of="cut.x")}), decoder()),
        r"stage 'encoder': input 'n' is given 'cut\.x'",
    ),
    "frames used as they are": (
        lambda: program(encoder(inputs={"x": "frames"}), Stage("decoder", "m", **COUNTED), outputs={"y": "decoder.y"}),
        r"stage 'encoder': input 'x' is given 'frames' as it is, but its length differs from row to row: stage "
        r"'decoder' takes it apart by iterations for its input 'x'; give it with pad",
    ),
    "a padded input as it is": (
        lambda: program(encoder(), decoder(inputs={"memory": "source"})),
        "stage 'decoder': input 'memory' is given 'source' as it is.*stage 'encoder' pads it for its input 'tokens'",
    ),
    "collected outputs as they are": (
        lambda: program(encoder(), decoder(), Stage("last", "m", {"x": "decoder.token_next"})),
        r"stage 'last': input 'x' is given 'decoder\.token_next' as it is.*collects one entry per iteration",
    ),
    "a start of collected outputs": (
        lambda: program(
            encoder(),
            decoder(),
            Stage("last", "m", loop=Repeat(carry={"h": Carry("n", "decoder.token_next")}, trips="n")),
        ),
        "stage 'last': the start of state 'h' is given",
    ),
    "a cache padded on another axis": (
        lambda: program(encoder(), decoder(), Stage("last", "m", {"x": Feed("decoder.keys", pad=(64,))})),
        r"stage 'last': input 'x' pads 'decoder\.keys', which grows on axis 1, not on 0",
    ),
}


@pytest.mark.parametrize("case", BAD_PROGRAMS)
def test_a_program_whose_parts_do_not_fit(case: str) -> None:
    """Refused when it is made, in one line that names the stage and the tensor."""
    make, words = BAD_PROGRAMS[case]
    with pytest.raises(InvalidInput, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_padding_is_the_way_out() -> None:
    """What differs in length may be used with padding, taken apart again, or as an output."""
    last = Stage("last", "m", {"x": Feed("decoder.token_next", pad=(64,))})
    again = Stage("again", "m", loop=Repeat(each={"x": "decoder.token_next"}, collect=("y",)))
    made = program(encoder(), decoder(), last, again, outputs={"y": "again.y", "k": "decoder.keys", "z": "last.z"})
    assert [stage.name for stage in made.stages] == ["encoder", "decoder", "last", "again"]
