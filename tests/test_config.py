"""Configuration files: strict names, overrides, errors that say where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reluformer import rules
from reluformer.config import Config, load_yaml
from reluformer.errors import ConfigError
from reluformer.models.config import ModelConfig
from reluformer.regularizers import RegularizerConfig
from reluformer.training.config import TrainingConfig
from reluformer.translation.recipe import (
    DecodingConfig,
    EmbeddedOptions,
    Limits,
    ModelRecipe,
    SegmentConfig,
    TokenizerConfig,
)


class Recipe(Config):
    model: ModelConfig
    note: str = ""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_with_rules_and_overrides(tmp_path: Path) -> None:
    recipe = write(tmp_path / "r.yaml", "model:\n  vocab_size: 100\n  ffn: {name: relu, gamma: 2.0}\n")
    loaded = load_yaml(Recipe, recipe, ["model.dropout=3e-1", "model.cross_attention=softmax", "note=a=b"])
    assert loaded.model.ffn == rules.Relu(gamma=2.0)
    assert loaded.model.cross_attention == rules.Softmax()
    assert loaded.model.dropout == 0.3
    assert loaded.note == "a=b"


def test_a_date_is_text_even_one_that_no_calendar_has(tmp_path: Path) -> None:
    recipe = write(tmp_path / "r.yaml", "model: {vocab_size: 10}\nnote: 2023-02-30\n")
    assert load_yaml(Recipe, recipe).note == "2023-02-30"


def test_an_override_fills_an_empty_section(tmp_path: Path) -> None:
    recipe = write(tmp_path / "r.yaml", "model:\nnote: a\n")
    assert load_yaml(Recipe, recipe, ["model.vocab_size=10"]).model.vocab_size == 10


def test_a_section_may_build_on_another(tmp_path: Path) -> None:
    text = "model: &base {vocab_size: 10, width: 64}\nother: {<<: *base, width: 32}\n"

    class Two(Config):
        model: ModelConfig
        other: ModelConfig

    assert load_yaml(Two, write(tmp_path / "r.yaml", text)).other == ModelConfig(vocab_size=10, width=32)


def test_a_file_of_version_0_1_with_pad_id_still_loads(tmp_path: Path) -> None:
    recipe = write(tmp_path / "r.yaml", "model: {vocab_size: 10, pad_id: 3}\n")
    assert load_yaml(Recipe, recipe).model == ModelConfig(vocab_size=10)
    assert ModelRecipe(pad_id=3) == ModelRecipe()


def test_it_is_frozen_and_replaceable() -> None:
    config = ModelConfig(vocab_size=10)
    with pytest.raises(ValueError, match="frozen"):
        config.width = 3
    assert config.replace(width=64).width == 64
    with pytest.raises(ConfigError, match="does not divide"):
        config.replace(width=63)


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("model: {vocab_size: 10, widht: 3}", [], r"r.yaml: unknown key 'model.widht'; did you mean 'width'\?"),
        ("modle: {vocab_size: 10}", [], "unknown key 'modle'; did you mean 'model'"),
        ("model: {}", [], "'model.vocab_size' is missing"),
        ("model: {vocab_size: many}", [], "'model.vocab_size': input should be a valid integer.*got 'many'"),
        ("model: {vocab_size: 10, ffn: softmaxx}", [], "'model.ffn': unknown rule 'softmaxx'; did you mean 'softmax'"),
        ("model: {vocab_size: 10, norm: both}", [], "'model.norm': input should be 'pre' or 'post' .got 'both'"),
        (
            "model: {vocab_size: 10, learn_offset: true, encoder_attention: softmax, decoder_attention: softmax, "
            "cross_attention: entmax15}",
            [],
            "learn_offset=true makes no difference to row-wise rules",
        ),
        ("- 1", [], "expected sections with keys"),
        ("model: [", [], "r.yaml: while parsing"),
        ("1: 2", [], "r.yaml: expected a name as key, got 1 in .*line 1"),
        ("model: {vocab_size: 10}\nnote: a\nmodel: {vocab_size: 20}", [], "'model' is given twice in .*line 3"),
        ("model: {vocab_size: 10, dropout: 0, dropout: 1}", [], "'dropout' is given twice in .*line 1"),
        ("model:", [], "'model': the section is empty; give it keys or leave it out"),
        ("model: {vocab_size: !!int many}", [], "r.yaml: invalid literal"),
        ("model: {vocab_size: 10}", ["model={1: 2}"], "--set model=.*expected a name as key, got 1"),
        ("model: {vocab_size: 10}", ["dropout"], "--set dropout: write it as section.key=value"),
        ("model: {vocab_size: 10}", ["note.x.y=1", "note.x=2", "note.x.y=1"], "'x' is a single value, not a section"),
        ("model: {vocab_size: 10}", ["model.width=["], r"--set model.width=\["),
    ],
)
def test_what_is_wrong_and_where(tmp_path: Path, text: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_yaml(Recipe, write(tmp_path / "r.yaml", text), overrides)


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"r.yaml: more than 100,000 values, aliases included in .*line 5"),
        ("a: &a [*a]", "an alias stands inside of what it stands for"),
        ("model: " + "[" * 100_000, "nested more than 50 levels deep"),
        ("model: " + "{a: " * 100_000, "nested more than 50 levels deep"),
        ("note: " + "9" * 5_000, "4300 digits"),
        ("model: {vocab_size: 0x" + "f" * 5_000 + "}", "'model.vocab_size': .*int that is too long to show"),
        ("model: {vocab_size: 10, width: 999999999989}", "'model.width': .*less than or equal to 65536"),
        ("model: {vocab_size: 10, dropout: .nan}", "'model.dropout': .*finite"),
        ("model: {vocab_size: 10, ffn_value_std: .inf}", "'model.ffn_value_std': .*finite"),
        ("model: {vocab_size: 10, norm: '" + "{x}" * 100_000 + "'}", "'model.norm': .*got '{x}{x}"),
        ("model: {vocab_size: 10, ffn: '" + "{x}" * 100_000 + "'}", "'model.ffn': unknown rule '{x}"),
        ("note: [" + "1, " * 50_000 + "]", "'note': input should be a valid string"),
        ("".join(f"key{n}: 1\n" for n in range(9_999)), "unknown key 'key0'.* and 9980 more"),
    ],
    ids=lambda value: value[:30],
)
def test_hostile_files_are_refused_with_a_short_message(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load_yaml(Recipe, write(tmp_path / "r.yaml", text))
    assert len(str(error.value)) < 2_500


@pytest.mark.parametrize("value", ["{y}", "{x}" * 9_999, "9" * 5_000, "0x" + "f" * 5_000, "[" * 9_999, "&a [*a]"])
@pytest.mark.parametrize("key", ["x", "model.width", "model.ffn", "model.dropout", "note.x"])
def test_hostile_overrides_are_refused_with_a_short_message(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_yaml(Recipe, write(tmp_path / "r.yaml", "model: {vocab_size: 10}"), [f"{key}={value}"])
    assert len(str(error.value)) < 1_000


def test_a_named_pipe_a_device_and_a_large_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe: is a named pipe, not a regular file"):
        load_yaml(Recipe, tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a device"):
        load_yaml(Recipe, "/dev/zero")
    with pytest.raises(ConfigError, match="NUL"):
        load_yaml(Recipe, "a\0b")
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ConfigError, match=r"large.yaml: has 1,099,511,627,776 bytes, too many"):
        load_yaml(Recipe, tmp_path / "large.yaml")


def number_fields() -> list[tuple[type[Config], str]]:
    """Every field of the recipe that takes numbers."""
    sections = (ModelConfig, TrainingConfig, RegularizerConfig, EmbeddedOptions, TokenizerConfig, SegmentConfig)
    return [
        (section, name)
        for section in (*sections, Limits, DecodingConfig)
        for name, field in section.model_fields.items()
        if any(kind in str(field.annotation) for kind in ("int", "float"))
    ]


@pytest.mark.parametrize(("section", "name"), number_fields(), ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize(
    "number", [10**31, 1e31, float("inf"), float("nan"), 16**5_000], ids=lambda n: str(n)[:5] if n < 10**32 else "long"
)
def test_every_number_has_an_upper_limit(section: type[Config], name: str, number: float) -> None:
    given = [number, number] if name in ("betas", "sentences") else number
    required = {"vocab_size": 10} if section is ModelConfig else {}
    with pytest.raises(ConfigError, match=name) as error:
        section(**{**required, name: given})
    assert len(str(error.value)) < 1_000


@pytest.mark.parametrize("values", [{"\ud800": 1}, {"norm": "\ud800"}, {"ffn": {"\ud800": 1}}, {"ffn": "\ud800"}])
def test_half_a_character_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as error:
        ModelConfig(vocab_size=10, **values)
    str(error.value).encode("utf-8", "backslashreplace")


def test_the_nearest_number_of_heads_is_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use heads=64 or a multiple of 60 as width"):
        ModelConfig(vocab_size=10, width=2**16, heads=60)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_yaml(Recipe, tmp_path / "none.yaml")


def test_every_field_has_its_help() -> None:
    assert [name for name, field in ModelConfig.model_fields.items() if not field.description] == []
