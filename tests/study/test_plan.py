"""Runs and their addresses: shared where experiments agree, fair where they are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reluformer.errors import ArgumentError, UnknownNameError
from reluformer.rules import registry
from reluformer.study import experiment
from reluformer.study.experiment import Changes
from reluformer.study.plan import Plan, Run, changed, make_plan
from reluformer.study.runner import parse_shard


@pytest.fixture(scope="module")
def small() -> Plan:
    return make_plan(["ffn", "variance", "regularizer"], "small", 3)


def address(plan: Plan, name: str, part: str, seed: int, **labels: str) -> str:
    (cell,) = [c for c in plan.cells if (c.experiment, c.part, c.seed, dict(c.labels)) == (name, part, seed, labels)]
    return cell.runs[0].address


def test_an_address_is_a_function_of_the_configuration_alone() -> None:
    one = Run({"kind": "reads", "rule": "relu", "seed": 0})
    assert one.address == Run({"seed": 0, "rule": "relu", "kind": "reads"}).address
    assert one.address != Run({"kind": "reads", "rule": "relu", "seed": 1}).address


def test_experiments_that_ask_for_the_same_run_share_it(small: Plan) -> None:
    for ours, theirs in (("relu", "neither"), ("softmax", "softmax")):
        assert address(small, "variance", "training", 1, rule=ours) == address(
            small, "regularizer", "terms", 1, terms=theirs
        )
    long = make_plan(["length", "maps", "zeros"], "small", 1)
    softmax = address(long, "length", "contrast", 0, rule="softmax", length="1024")
    assert address(long, "maps", "captions", 0, rule="softmax") == softmax
    assert address(long, "zeros", "captions", 0, rule="softmax", length="1024") == softmax
    assert address(long, "maps", "captions", 0, rule="reluformer") == address(
        long, "length", "contrast", 0, rule="reluformer", length="1024"
    )


def test_a_part_may_ask_for_more_seeds_and_the_user_decides() -> None:
    def seeds(part: str, given: int | None) -> set[int]:
        return {cell.seed for cell in make_plan(["length"], "small", given).cells if cell.part == part}

    assert seeds("contrast", None) == set(range(6))
    assert seeds("joined", None) == {0, 1}
    assert seeds("context", None) == {0, 1, 2}
    assert seeds("contrast", 2) == seeds("joined", 2) == {0, 1}


def test_what_a_run_needs_stands_before_it(small: Plan) -> None:
    order = list(small.runs)
    for run in small.runs.values():
        for needed in run.needs:
            assert order.index(needed.address) < order.index(run.address)


@pytest.mark.parametrize("name", ["ffn", "slots", "recall", "variance", "regularizer", "length", "maps", "zeros"])
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_the_protocol_equal_tokens_and_equal_search(name: str, scale: experiment.Scale) -> None:
    """Along the rule everything but the rule is equal, and every rule has as many trials, with a seed of their own."""
    plan = make_plan([name], scale, 3)
    budgets: dict[str, set[str]] = {}
    for cell in plan.cells:
        run = cell.runs[0]
        if run.kind not in ("training", "recall"):
            continue
        chosen = run if run.start is None else run.start
        assert len(chosen.trials) == 2
        assert all(trial.seed not in range(3) for trial in chosen.trials)
        assert len({trial.content["training"]["lr"] for trial in chosen.trials}) == 2
        training = {k: v for k, v in run.content["training"].items() if k not in ("regularizer", "seed", "slots")}
        rates = [trial.content["training"]["lr"] for trial in chosen.trials]
        budgets.setdefault(cell.part, set()).add(repr((sorted(training.items()), rates)))
        assert "patience" not in training
        assert "max_minutes" not in training
    assert all(len(found) == 1 for found in budgets.values())


def test_shards_share_the_work_and_each_can_finish(small: Plan) -> None:
    shards = [small.shard(number, 3) for number in (1, 2, 3)]
    assert set().union(*shards) == set(small.runs)
    for shard in shards:
        assert len(shard) < len(small.runs)
        assert all(needed.address in shard for a in shard for needed in small.runs[a].needs)


def test_a_rule_of_ones_own_joins_the_parts_that_take_one(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("# version 1")
    plan = make_plan(["variance"], "quick", 1, parts=["reads"], rules=["mine"], plugins=[plugin])
    mine = address(plan, "variance", "reads", 0, rule="mine")
    assert plan.runs[mine].content["rule"] == "mine"
    plugin.write_text("# version 2")
    again = make_plan(["variance"], "quick", 1, parts=["reads"], rules=["mine"], plugins=[plugin])
    assert mine not in again.runs
    assert len(set(again.runs) & set(plan.runs)) == 4


def test_sweeps_only_when_asked_for() -> None:
    assert len(make_plan(["regularizer"], "small", 1).runs) < len(
        make_plan(["regularizer"], "small", 1, sweeps=True).runs
    )


def test_a_part_by_its_name_be_it_a_sweep() -> None:
    plan = make_plan(["ffn", "regularizer"], "small", 1, parts=["norm"])
    assert {(cell.experiment, cell.part) for cell in plan.cells} == {("ffn", "norm")}
    with pytest.raises(UnknownNameError, match="unknown part 'nrm'; did you mean 'norm'"):
        make_plan(["ffn"], "small", 1, parts=["nrm"])
    with pytest.raises(ArgumentError, match="nothing to run at scale 'quick'"):
        make_plan(["ffn"], "quick", 1, parts=["norm"])


def test_a_change_of_a_dotted_key_leaves_the_setting_alone() -> None:
    setting = {"model": {"width": 1}}
    assert changed(setting, {"model.width": 2, "training.lr": 3}) == {"model": {"width": 2}, "training": {"lr": 3}}
    assert setting == {"model": {"width": 1}}


@pytest.mark.parametrize("text", ["3/2", "0/2", "1", "a/b"])
def test_a_wrong_shard_says_how_to_write_it(text: str) -> None:
    with pytest.raises(ArgumentError, match=f"--shard {text}: write it as i/n"):
        parse_shard(text)


@pytest.fixture
def with_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Plan]]:
    """Plans of an experiment in which a part uses a plugin's rule as `mine`, for two versions of the plugin."""

    def plans(name: str, part: str, changes: Changes) -> list[Plan]:
        one = experiment.load(name)
        axis = one.parts[part].grid["rule"]
        grown = one.parts[part].replace(grid={"rule": axis.replace(choices={**axis.choices, "mine": changes})})
        monkeypatch.setattr(experiment, "load", lambda name: one.replace(parts={**one.parts, part: grown}))
        monkeypatch.setattr(registry, "from_plugins", lambda: ("of_a_plugin",))
        versions = [tmp_path / "first.py", tmp_path / "second.py"]
        for version in versions:
            version.write_text(version.name)
        return [make_plan([name], "small", 1, parts=[part], plugins=[version]) for version in versions]

    return plans


def test_another_version_of_a_plugin_is_another_run(small: Plan, with_plugin: Callable[..., list[Plan]]) -> None:
    """Of the runs that use its rules, also where the experiment itself names them."""
    plans = with_plugin("ffn", "rules", {"model.ffn": {"name": "of_a_plugin"}})
    first, second = ({cell.labels["rule"]: cell.runs[0].address for cell in plan.cells} for plan in plans)
    assert {rule for rule in first if first[rule] != second[rule]} == {"mine"}
    assert all(found in small.runs for rule, found in first.items() if rule != "mine")


def test_a_plugin_is_known_to_what_a_training_starts_from(with_plugin: Callable[..., list[Plan]]) -> None:
    plans = with_plugin("variance", "training", {"model.attention": "of_a_plugin"})
    starts = [{cell.labels["rule"]: cell.runs[0].start for cell in plan.cells} for plan in plans]
    first, second = ({rule: run.address for rule, run in found.items() if run is not None} for found in starts)
    assert {rule for rule in first if first[rule] != second[rule]} == {"mine"}


def test_only_some_values_of_an_axis_are_planned() -> None:
    whole = make_plan(["recall"], "quick", 1)
    part = make_plan(["recall"], "quick", 1, only={"rule": ["softmax", "relu"]})
    assert {cell.labels["rule"] for cell in part.cells} == {"softmax", "relu"}
    assert set(part.runs) < set(whole.runs)
    with pytest.raises(UnknownNameError, match="--only rule=sofmax: unknown value; did you mean 'softmax'"):
        make_plan(["recall"], "quick", 1, only={"rule": ["sofmax"]})
    with pytest.raises(UnknownNameError, match="unknown axis 'rules'; did you mean 'rule'"):
        make_plan(["recall"], "quick", 1, only={"rules": ["softmax"]})
