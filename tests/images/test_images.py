"""Images: the IDX format, the model, and training, scoring and loading of a run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import reluformer as rf
from reluformer import images
from reluformer.cli import app
from reluformer.errors import ArgumentError, ConfigError, DataError, StorageError
from reluformer.images import downloads
from reluformer.images.dataset import load_splits
from reluformer.images.idx import read_idx, write_idx
from reluformer.images.recipe import ImageDataConfig
from reluformer.images.scoring import evaluate, images_of
from reluformer.models.image_model import ImageModel

GRATINGS = {"train": 256, "valid": 64, "test": 64, "classes": 4, "noise": 0.1, "size": 12}
MODEL = {"image_size": 12, "patch": 3, "classes": 4, "width": 16, "heads": 2, "layers": 1, "slots": 32}
RECIPE: dict[str, Any] = {
    "task": "images",
    "data": {"gratings": GRATINGS},
    "model": MODEL,
    "training": {
        "updates": 4,
        "tokens_per_batch": 512,
        "warmup": 1,
        "lr": 5e-3,
        "schedule": "cosine",
        "device": "cpu",
        "validate_every": 2,
        "checkpoint_every": 2,
        "log_every": 1,
        "telemetry_every": 2,
    },
}


def idx_folder(directory: Path, train: int = 20, test: int = 6, size: int = 12) -> Path:
    """Return a folder with four small IDX files; the training images are plain, the others gzipped."""
    directory.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for count, names, ending in ((train, ("train", "train"), ""), (test, ("t10k", "t10k"), ".gz")):
        pixels = draw.integers(0, 256, (count, size, size), dtype=np.uint8)
        write_idx(directory / f"{names[0]}-images-idx3-ubyte{ending}", pixels)
        write_idx(directory / f"{names[1]}-labels-idx1-ubyte{ending}", (np.arange(count) % 4).astype(np.uint8))
    return directory


class TestIdx:
    @pytest.mark.parametrize("name", ["x", "x.gz"])
    @pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 3, 4)])
    def test_round_trip(self, name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
        array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
        write_idx(tmp_path / name, array)
        assert np.array_equal(read_idx(tmp_path / name, dimensions=len(shape)), array)
        assert read_idx(tmp_path / name).shape == shape

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is no IDX file, it begins with nothing"),
            (b"\x89PNG....", "is no IDX file, it begins with 89 50 4e 47"),
            (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "holds numbers of type float; images and labels are unsigned bytes"),
            (b"\0\0\x08\x07", "has 7 dimensions, expected 1 to 4"),
            (b"\0\0\x08\x03\0\0\0\x01", "is cut off within its header, after 8 bytes"),
            (b"\0\0\x08\x01\0\0\0\x05abc", "is cut off: its header promises 5 bytes, it holds 3"),
            (b"\0\0\x08\x01\0\0\0\x02abc", "is too long: its header promises 2 bytes, it holds 3"),
            (
                b"\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                "is cut off: its header promises 4294967295 x",
            ),
        ],
    )
    @pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
    def test_damage_is_named(self, content: bytes, message: str, packed: bool, tmp_path: Path) -> None:
        path = tmp_path / "images"
        path.write_bytes(gzip.compress(content) if packed else content)
        with pytest.raises(DataError, match=f"images: {message}"):
            read_idx(path)

    def test_a_broken_archive_and_a_missing_file(self, tmp_path: Path) -> None:
        path = tmp_path / "images.gz"
        path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05abcde" * 50)[:-9])
        with pytest.raises(DataError, match=r"images.gz: damaged \(.*\); download it again"):
            read_idx(path)
        with pytest.raises(DataError, match="no such file; `reluformer data get fashion-mnist`"):
            read_idx(tmp_path / "none")
        with pytest.raises(DataError, match="Is a directory"):
            read_idx(tmp_path)

    def test_images_and_labels_are_told_apart(self, tmp_path: Path) -> None:
        write_idx(tmp_path / "labels", np.zeros(3, np.uint8))
        with pytest.raises(
            DataError, match="has 1 dimensions, expected 3, as images have; are images and labels mixed"
        ):
            read_idx(tmp_path / "labels", dimensions=3)
        with pytest.raises(ArgumentError, match="holds unsigned bytes of 1 to 4 dimensions, got float64"):
            write_idx(tmp_path / "x", np.zeros(3))  # type: ignore[arg-type]


class TestData:
    def test_the_last_training_images_are_for_validation(self, tmp_path: Path) -> None:
        splits = load_splits(ImageDataConfig(directory=idx_folder(tmp_path), valid=5, limit=12))
        assert {name: len(split.labels) for name, split in splits.items()} == {"train": 12, "valid": 5, "test": 6}
        pixels = read_idx(tmp_path / "train-images-idx3-ubyte")
        assert torch.equal(splits["valid"].images[:, 0], torch.from_numpy(pixels[-5:].copy()))
        assert splits["train"].checksum != splits["valid"].checksum
        assert "valid" not in load_splits(ImageDataConfig(directory=tmp_path, valid=0))

    def test_what_does_not_fit(self, tmp_path: Path) -> None:
        folder = idx_folder(tmp_path / "set")
        with pytest.raises(DataError, match=r"holds 20 training images, and data.valid=20 keeps all of them"):
            load_splits(ImageDataConfig(directory=folder, valid=20))
        with pytest.raises(DataError, match="no such folder; `reluformer data get fashion-mnist --to"):
            load_splits(ImageDataConfig(directory=tmp_path / "none"))
        write_idx(folder / "train-labels-idx1-ubyte", np.zeros(3, np.uint8))
        with pytest.raises(DataError, match=r"holds 20 images, and train-labels-idx1-ubyte 3 labels"):
            load_splits(ImageDataConfig(directory=folder, valid=5))
        (folder / "train-labels-idx1-ubyte").unlink()
        with pytest.raises(
            DataError, match=r"expected train-labels-idx1-ubyte.gz or train-labels-idx1-ubyte, found: t10k"
        ):
            load_splits(ImageDataConfig(directory=folder, valid=5))
        write_idx(folder / "train-images-idx3-ubyte", np.zeros((4, 3, 5), np.uint8))
        write_idx(folder / "train-labels-idx1-ubyte", np.zeros(4, np.uint8))
        with pytest.raises(DataError, match="images of 3 x 5 pixels; they must be square"):
            load_splits(ImageDataConfig(directory=folder, valid=1))

    def test_gratings_are_a_function_of_their_seed_and_fill_the_classes(self) -> None:
        first, again, other = (load_splits(ImageDataConfig(gratings={**GRATINGS, "seed": s})) for s in (0, 0, 1))
        assert torch.equal(first["train"].images, again["train"].images)
        assert not torch.equal(first["train"].images, other["train"].images)
        assert set(first["train"].labels.tolist()) == {0, 1, 2, 3}
        assert first["train"].images.shape == (256, 1, 12, 12) and first["train"].images.dtype == torch.uint8

    @pytest.mark.parametrize("given", [{}, {"directory": "x", "gratings": {}}])
    def test_one_origin(self, given: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="give exactly one of 'directory' and 'gratings'"):
            ImageDataConfig(**given)


def model_of(**changes: Any) -> ImageModel:
    torch.manual_seed(0)
    return ImageModel(rf.ImageConfig(**{**MODEL, **changes})).eval()


class TestModel:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"pooling": "class", "output_gate": True},
            {"attention": "softmax", "qk_norm": False, "norm": "affine"},
            {"attention": {"name": "pointwise_seqlen", "h": "gelu", "alpha": 0.5}, "norm": "post"},
            {"attention": "relu_chance", "layers": 2, "checkpoint_activations": True},
        ],
        ids=str,
    )
    def test_it_learns_saves_and_loads(self, changes: dict[str, Any], tmp_path: Path) -> None:
        model = model_of(**changes)
        pixels = torch.rand(3, 1, 12, 12)
        logits, reads = model(pixels, stats=True)
        assert logits.shape == (3, 4)
        tokens = model.config.tokens
        assert {name: row.row_sum.shape for name, row in reads.items()} == {
            f"encoder.{i}.attention": (3, 2, tokens) for i in range(model.config.layers)
        }
        logits.logsumexp(-1).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        model.save(tmp_path)
        assert torch.equal(ImageModel.load(tmp_path).eval()(pixels).logits, model(pixels).logits)
        with pytest.raises(StorageError, match="holds a model of the kind image_model, not language_model"):
            rf.LanguageModel.load(tmp_path)

    def test_bytes_are_pixels_from_0_to_255_and_an_image_is_alone_in_its_batch(self) -> None:
        pixels = torch.randint(256, (4, 1, 12, 12), dtype=torch.uint8)
        model = model_of()
        together = model(pixels).logits
        torch.testing.assert_close(model(pixels.float() / 255).logits, together)
        torch.testing.assert_close(model(pixels[1:2]).logits, together[1:2], rtol=1e-5, atol=1e-5)

    def test_a_patch_is_a_square_of_pixels(self) -> None:
        model, pixels = model_of(), torch.rand(1, 1, 12, 12)
        changed = pixels.clone()
        changed[0, 0, 3:6, 6:9] = 0.5  # row 1, column 2 of 4 x 4 patches
        moved = (model.embed(pixels) != model.embed(changed)).any(-1)[0].nonzero().flatten()
        assert moved.tolist() == [6]

    def test_an_affine_norm_does_not_divide(self) -> None:
        norm = model_of(norm="affine").encoder_norm
        x = torch.randn(2, 5, 16)
        torch.testing.assert_close(norm(3 * x) - norm.bias, 3 * (norm(x) - norm.bias))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (torch.zeros(1, 12, 12), r"must have shape \(batch, 1, 12, 12\), got \(1, 12, 12\)"),
            (torch.zeros(1, 3, 12, 12), r"got \(1, 3, 12, 12\); resize them, or build a model for their size"),
            (torch.zeros(1, 1, 28, 28), r"got \(1, 1, 28, 28\)"),
            (torch.zeros(1, 1, 12, 12, dtype=torch.int64), r"or uint8 from 0 to 255, got torch.int64"),
            (np.zeros((1, 1, 12, 12)), "got ndarray"),
            (torch.full((1, 1, 12, 12), 200.0), "pixels from 200 to 200; they must lie between 0 and 1. Divide bytes"),
            (torch.full((1, 1, 12, 12), float("nan")), "pixels from nan to nan"),
        ],
    )
    def test_wrong_images_are_named(self, given: Tensor, message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            model_of()(given)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"patch": 5}, "patch=5 does not divide image_size=12"),
            ({"heads": 3}, "heads=3 does not divide width=16"),
            ({"attention": "softmax", "learn_offset": True}, "learn_offset=true makes no difference"),
            ({"ffn": {"name": "relu", "learn_gamma": True}}, "what a rule learns for each head is for attention"),
        ],
    )
    def test_sizes_that_do_not_fit(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            model_of(**changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run long enough to tell directions apart."""
    directory = tmp_path_factory.mktemp("runs") / "gratings"
    recipe = {**RECIPE, "training": {**RECIPE["training"], "updates": 80, "validate_every": 40}}
    assert rf.train(recipe, directory).status == "finished"
    return directory


class TestRun:
    def test_a_model_learns_the_classes(self, run: Path) -> None:
        scores = evaluate(images.load(run), images_of(run, "test"))
        assert scores.images == 64
        assert scores.accuracy > 0.5  # a quarter by chance
        assert 0 < scores.zero_fraction < 1

    def test_rf_load_opens_a_run(self, run: Path) -> None:
        assert isinstance(rf.load(run), ImageModel)
        with pytest.raises(ArgumentError, match="an image model, and beam is for translation; leave it out"):
            rf.load(run, beam=2)

    def test_evaluate_prints_and_writes_the_accuracy(self, run: Path) -> None:
        result = CliRunner().invoke(app, ["evaluate", str(run), "--limit", "32", "--json"])
        assert result.exit_code == 0, result.output
        written = json.loads((run / "evaluation" / "test.json").read_text(encoding="utf-8"))
        assert (
            written["images"] == 32
            and written["accuracy"] == evaluate(images.load(run), images_of(run, "test", 32)).accuracy
        )
        refused = CliRunner().invoke(app, ["evaluate", str(run), "--sentence-level"])
        assert "an image model has no translations" in str(refused.exception)

    def test_a_stopped_training_resumes_bit_for_bit(self, tmp_path: Path) -> None:
        rf.train(RECIPE, tmp_path / "whole")
        short = {**RECIPE, "training": {**RECIPE["training"], "updates": 2, "schedule": "constant"}}
        longer = {**short, "training": {**short["training"], "updates": 4}}
        rf.train(short, tmp_path / "parts")
        rf.train(longer, tmp_path / "parts")
        rf.train(longer, tmp_path / "once")
        parts, once = (ImageModel.load(tmp_path / name).state_dict() for name in ("parts", "once"))
        assert all(torch.equal(parts[name], once[name]) for name in once)

    def test_other_images_are_noticed(self, tmp_path: Path) -> None:
        folder = idx_folder(tmp_path / "set")
        recipe = {**RECIPE, "data": {"directory": str(folder), "valid": 4}}
        short = {**recipe, "training": {**RECIPE["training"], "updates": 2, "schedule": "constant"}}
        rf.train(short, tmp_path / "run")
        write_idx(folder / "train-labels-idx1-ubyte", np.zeros(20, np.uint8))
        with pytest.raises(ConfigError, match="train_checksum"):
            rf.train({**short, "training": {**short["training"], "updates": 4}}, tmp_path / "run")

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (
                {"image_size": 28, "patch": 4},
                r"have 1 channels and 12 x 12 pixels; set model.channels=1 and model.image",
            ),
            ({"classes": 3}, "labels go up to 3, model.classes=3 ends at 2; raise it to 4"),
        ],
    )
    def test_a_model_of_another_size_is_refused(self, model: dict[str, Any], message: str, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=message):
            rf.train({**RECIPE, "model": {**MODEL, **model}}, tmp_path / "run")

    def test_a_batch_that_holds_no_image_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="tokens_per_batch=8 holds no image of 16 tokens"):
            images.ImageRecipe(**{**RECIPE, "training": {"tokens_per_batch": 8}})

    def test_the_shipped_recipe_is_valid(self) -> None:
        from reluformer.config import load_yaml

        path = Path(__file__).parents[2] / "configs" / "images" / "fashion-mnist.yaml"
        assert load_yaml(images.ImageRecipe, path).model.tokens == 49


def test_images_are_not_prepared() -> None:
    path = Path(__file__).parents[2] / "configs" / "images" / "fashion-mnist.yaml"
    result = CliRunner().invoke(app, ["prepare", str(path)])
    assert "images need no preparation; use `reluformer train" in str(result.exception)


class TestDownloads:
    def test_a_folder_that_is_complete_needs_no_network(self, tmp_path: Path) -> None:
        idx_folder(tmp_path / "fashion-mnist")
        assert downloads.obtain(downloads.SETS["fashion-mnist"], tmp_path) == {"train": 20, "test": 6}
        result = CliRunner().invoke(app, ["data", "get", "fashion-mnist", "--to", str(tmp_path)])
        assert result.exit_code == 0, result.output
        assert "20 images in train" in result.output and "directory:" in result.output

    def test_the_list_names_sets_of_images(self) -> None:
        listed = json.loads(CliRunner().invoke(app, ["data", "list", "--json"]).output)
        (found,) = [one for one in listed if one["name"] == "fashion-mnist"]
        assert len(found["files"]) == 4 and found["licence"].startswith("MIT")
