"""What was found of a model, as records and in words.

Owns: `CheckReport`, `StageReport`, `ProgramReport`; ``str`` of one is a table for people, its lines are `lines`.
Must not know: how any of it was found.
"""

from __future__ import annotations

from dataclasses import dataclass

from lazybatch.words import aligned, counted

_ANSWERS = {
    True: "bit for bit those of the whole model",
    False: "NOT those of the whole model",
    None: "not compared",
}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """max_abs_diff: largest |joined - alone| the probes saw; None where no joined run succeeded.

    chain_over_whole: median time of all nodes over that of the whole optimised model, at one row; None where no input
    is known that the model accepts. identical: whether both gave the same answer bit for bit; None likewise.
    notes: what could not be had as asked.
    """

    model: str
    nodes: int
    joinable: bool
    reason: str | None
    max_abs_diff: float | None
    chain_over_whole: float | None
    identical: bool | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The table for people."""
        pairs = [
            ("nodes", str(self.nodes)),
            ("joinable", _joinable(self)),
            *_cost(self),
            *(("note", note) for note in self.notes),
        ]
        return [self.model, *aligned(pairs)]


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage. nodes, joinable, reason, max_abs_diff, chain_over_whole, identical, notes: as of `CheckReport`.

    loop: whether it loops. same_iteration: of a loop, whether its rows join at equal iterations only, which
    ``same_iteration_reason`` explains; None for a chain. in_place: of a loop, states that its body writes over.
    """

    stage: str
    nodes: int
    loop: bool
    joinable: bool
    reason: str | None
    same_iteration: bool | None
    same_iteration_reason: str | None
    max_abs_diff: float | None
    chain_over_whole: float | None
    identical: bool | None
    notes: tuple[str, ...]
    in_place: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The table for people."""
        pairs = [("  joinable", _joinable(self))]
        if self.same_iteration is not None:
            words = "yes" if not self.same_iteration else f"no, at equal iterations only: {self.same_iteration_reason}"
            pairs.append(("  joins at any iteration", words))
        if self.in_place:
            states = ", ".join(map(repr, self.in_place))
            pairs.append(("  kept in place", f"{states}: an iteration copies nothing of it, and answers the same"))
        pairs += [(f"  {name}", words) for name, words in _cost(self)]
        pairs += [("  note", note) for note in self.notes]
        kind = "loop" if self.loop else "chain"
        return [f"{kind} {self.stage!r}, {counted(self.nodes, 'node')}", *aligned(pairs)]


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """stages: in order. joinable, reason: of the program. rows: served alone and joined; 0 where none could be made up.

    failed: of these, how many got no answer even alone. equal: whether all rows got alone and joined the same answers;
    None where none was tried. different: what was not, a few of it. joined_max_abs_diff: the largest difference of
    floats that was seen. trips_max_seen: the most iterations of a row, by loop. merges, left_early, iterations: of the
    joined run, so that one sees what was tried. notes: what could not be had.
    """

    model: str
    nodes: int
    joinable: bool
    reason: str | None
    stages: tuple[StageReport, ...]
    rows: int
    failed: int
    equal: bool | None
    different: tuple[str, ...]
    joined_max_abs_diff: float | None
    trips_max_seen: dict[str, int]
    merges: int
    left_early: int
    iterations: int
    notes: tuple[str, ...]

    @property
    def identical(self) -> bool | None:
        """Whether every stage's nodes answer what its whole model answers; None where it could not be compared."""
        found = [stage.identical for stage in self.stages]
        return False if False in found else None if None in found else True

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The table for people: stage by stage, then the program."""
        trips = ", ".join(f"{loop} up to {most}" for loop, most in self.trips_max_seen.items())
        verdict = {
            True: "the same answers",
            False: f"DIFFERENT answers: {'; '.join(self.different)}",
            None: "not tried" if not self.rows else "nothing to compare",
        }[self.equal]
        failed = f", {self.failed} of them without an answer" if self.failed else ""
        gap = "" if self.joined_max_abs_diff is None else f", largest difference {self.joined_max_abs_diff:g}"
        left = f"{counted(self.left_early, 'row')} left before {'its' if self.left_early == 1 else 'their'} mates"
        pairs = [
            ("joinable", _joinable(self)),
            ("alone and joined", f"{counted(self.rows, 'row')}{failed}, {verdict}{gap}"),
            ("that run", f"{counted(self.merges, 'merge')}, {left}; iterations: {trips or '-'}"),
            *(("note", note) for note in self.notes),
        ]
        title = f"{self.model}: {counted(self.nodes, 'node')} in {counted(len(self.stages), 'stage')}"
        return [title, *(line for stage in self.stages for line in stage.lines()), *aligned(pairs)]


def _joinable(found: CheckReport | StageReport | ProgramReport) -> str:
    return "yes" if found.joinable else f"no: {found.reason}"


def _cost(found: CheckReport | StageReport) -> list[tuple[str, str]]:
    ratio = "-" if found.chain_over_whole is None else f"{found.chain_over_whole:.3f} times the time of the whole model"
    return [
        ("joined vs alone", "-" if found.max_abs_diff is None else f"largest difference {found.max_abs_diff:g}"),
        ("chain of nodes", ratio),
        ("answers", _ANSWERS[found.identical]),
    ]
