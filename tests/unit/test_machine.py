"""Machines are found by name and version, and their steps by name."""

from __future__ import annotations

import pytest

from engine import picker
from engine.machine import (
    Child,
    Done,
    Machine,
    MappedMachine,
    Outcome,
    Registry,
    Retry,
    Signal,
    Step,
    Stop,
)
from engine.picker import Claimed, Surroundings


class Order(Machine):
    name = "order"

    def reserve(self, step: Step) -> Outcome:
        return Done(step.state)

    def _price(self) -> int:
        return 1


class Patient(Order):
    name = "patient"

    def on_error(self, step: Step, error: Exception) -> Outcome:
        return Retry(5.0, str(error))


def step(machine: str, name: str = "reserve", version: int = 1) -> Step:
    return Step(
        instance_id=1,
        machine=machine,
        version=version,
        name=name,
        attempt=0,
        queue="default",
        concurrency_key=None,
        state={},
    )


def test_a_step_is_what_was_claimed_with_what_is_around_it() -> None:
    claimed = Claimed(
        id=7, fsm="order", fsm_version=2, step="pay", state='{"a": 1}', attempt=3, queue="q", priority=4,
        concurrency_key="k", concurrency_shard=5, rate_limit="r", weight=6.0, claim="c", awaits=("paid",),
    )  # fmt: skip
    around = Surroundings(
        signals=(picker.Signal(1, "paid", '{"n": 1}'), picker.Signal(2, "other", "{}")),
        children=(
            picker.Child(8, "part", "done", '{"b": 2}', "[1]", None),
            picker.Child(9, "part", "failed", "{}", None, "boom"),
        ),
    )
    taken = Step.of(claimed, around)
    assert taken == Step(
        instance_id=7, machine="order", version=2, name="pay", attempt=3, queue="q", concurrency_key="k",
        state={"a": 1}, signals=(Signal(1, "paid", {"n": 1}), Signal(2, "other", {})),
        children=(
            Child(id=8, machine="part", status="done", state={"b": 2}, result=[1], error=None),
            Child(id=9, machine="part", status="failed", state={}, result=None, error="boom"),
        ),
        awaits=("paid",),
    )  # fmt: skip
    assert taken.awaited == (Signal(1, "paid", {"n": 1}),)
    alone = Step.of(claimed)
    assert (alone.signals, alone.children, alone.awaited) == ((), (), ())


def test_the_public_methods_of_a_machine_are_its_steps() -> None:
    assert sorted(Order().steps()) == ["reserve"]


def test_a_step_is_a_coroutine_where_its_function_is_whatever_other_machine_there_is() -> None:
    async def waits(step: Step) -> Outcome:
        return Done(step.state)

    def works(step: Step) -> Outcome:
        return Done(step.state)

    both = MappedMachine("both", {"waits": waits, "works": works})
    registry = Registry([both, MappedMachine("other", {"waits": waits}), Order])
    coroutines = [(step("both", "waits"), True), (step("other", "waits"), True)]
    for one, is_coroutine in (*coroutines, (step("both", "works"), False), (step("order"), False)):
        assert registry.is_coroutine(one) == is_coroutine


@pytest.mark.parametrize("unknown", [step("other"), step("order", version=2), step("order", "_price")])
def test_a_step_that_no_machine_has_is_not_found(unknown: Step) -> None:
    registry = Registry([Order])

    assert registry.function(step("order")) is not None
    assert registry.function(unknown) is None


def test_a_mapped_machine_goes_on_inline_where_it_says_so_and_to_a_step_that_it_has() -> None:
    steps = {"a": lambda step: Done(), "b": lambda step: Done()}
    slow, quick = MappedMachine("slow", steps), MappedMachine("quick", steps, inline_execution=True)
    registry = Registry([slow, quick])

    assert registry.goes_on_inline(step("quick", "a"), "b") is True
    assert registry.goes_on_inline(step("quick", "a"), "c") is False
    assert registry.goes_on_inline(step("slow", "a"), "b") is False
    assert registry.goes_on_inline(step("other", "a"), "b") is False


def test_a_machine_decides_on_the_error_of_its_own_step() -> None:
    asked: list[tuple[Step, Exception]] = []

    class Asked(Order):
        name = "asked"

        def on_error(self, step: Step, error: Exception) -> Outcome:
            asked.append((step, error))
            return Stop("asked")

    failed, error = step("asked"), RuntimeError("x")
    assert Registry([Order, Patient, Asked]).on_error(failed, error) == Stop("asked")
    assert asked == [(failed, error)]


def test_two_versions_of_a_machine_live_side_by_side_and_one_version_is_registered_once() -> None:
    first = MappedMachine("order", {"a": lambda step: Done()})
    second = MappedMachine("order", {"b": lambda step: Done()}, version=2)

    assert Registry([first, second]).function(step("order", "b", 2)) is not None
    with pytest.raises(ValueError, match="twice"):
        Registry([first, Order])


def test_a_machine_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="no steps"):
        Registry([MappedMachine("empty", {})])


def test_a_step_that_raises_ends_its_instance_unless_the_machine_says_otherwise() -> None:
    registry = Registry([Order, Patient])
    error = RuntimeError("x" * 20_000)

    stopped = registry.on_error(step("order"), error)
    assert isinstance(stopped, Stop)
    assert stopped.error.startswith("RuntimeError: xxx")
    assert len(stopped.error) == 10_000
    assert registry.on_error(step("patient"), RuntimeError("no")) == Retry(5.0, "no")
