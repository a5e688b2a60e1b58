"""Certification: no image, corner or attack leaves the bounds; better bounds are tighter; bad input is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import reluformer as rf
from reluformer import rules
from reluformer.cli import app
from reluformer.errors import ArgumentError
from reluformer.images.affine import AffineForm, relu_strip
from reluformer.images.attack import attack, margins_of
from reluformer.images.certification import Verifier, certify
from reluformer.images.dataset import LabelledImages
from reluformer.models.image_model import ImageModel
from reluformer.rules import Formula

RELU = {"name": "pointwise_seqlen", "h": "relu", "alpha": 1.0}
RULES: list[Any] = ["softmax", RELU, "relu_norm", "relu_exp", {"name": "pointwise_seqlen", "h": "gelu"}]
BOUNDS = [("interval", "exact"), ("interval", "elementwise"), ("linear", "exact"), ("linear", "elementwise")]
every_rule = pytest.mark.parametrize("rule", RULES, ids=str)


def model_of(rule: Any, **changes: Any) -> ImageModel:
    """Return a small model whose weights are small enough that bounds mean something."""
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch": 4, "classes": 3, "width": 8, "heads": 2, "layers": 1, "slots": 16}
    config = rf.ImageConfig(attention=rule, norm="affine", qk_norm=False, **{**sizes, **changes})
    model = ImageModel(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.6)
        model.encoder_norm.weight.copy_(torch.linspace(0.5, 1.5, 8))  # a norm that is no identity
        model.encoder_norm.bias.copy_(torch.linspace(-0.2, 0.2, 8))
    return model


def margins(model: ImageModel, images: Tensor, label: int) -> Tensor:
    """Return the margin of a class over each other one, (N, K - 1)."""
    logits = model(images).logits.detach()
    others = [k for k in range(logits.size(1)) if k != label]
    return logits[:, label, None] - logits[:, others]


class TestSoundness:
    @pytest.mark.parametrize(("domain", "reads"), BOUNDS)
    @pytest.mark.parametrize("changes", [{}, {"layers": 2, "pooling": "class"}, {"layers": 2, "patch": 2}], ids=str)
    @every_rule
    def test_no_image_within_epsilon_leaves_the_bounds(
        self, rule: Any, changes: dict[str, Any], domain: Any, reads: Any
    ) -> None:
        """Random images, corners of the box, and what an attack finds against each other class."""
        model = model_of(rule, **changes)
        draw = torch.Generator().manual_seed(1)
        image = torch.rand(1, 8, 8, generator=draw, dtype=torch.float64)
        for epsilon in (0.0, 0.01, 0.1):
            low, high = (image - epsilon).clamp_min(0), (image + epsilon).clamp_max(1)
            inside = torch.rand(60, 1, 8, 8, generator=draw, dtype=torch.float64)
            images = torch.cat([image[None], low + (high - low) * inside, low + (high - low) * inside.round()])
            for label in range(3):
                least = Verifier(model, domain, reads).margins(image, label, epsilon)
                _, found = attack(model, image[None], torch.tensor([label]), epsilon, steps=15)
                seen = margins(model, torch.cat([images, found]), label).amin(0)
                assert (least <= seen + 1e-9).all()
                assert torch.isfinite(least).all()

    @pytest.mark.parametrize("reads", ["lse", "mixed"])
    @pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.1, 1.0])
    def test_lines_of_softmax_are_sound(self, epsilon: float, reads: Any) -> None:
        model = model_of("softmax", layers=2)
        draw = torch.Generator().manual_seed(2)
        image = torch.rand(1, 8, 8, generator=draw, dtype=torch.float64)
        low, high = (image - epsilon).clamp_min(0), (image + epsilon).clamp_max(1)
        images = low + (high - low) * torch.rand(200, 1, 8, 8, generator=draw, dtype=torch.float64)
        least = Verifier(model, "linear", reads).margins(image, 0, epsilon)
        _, found = attack(model, image[None], torch.tensor([0]), epsilon, steps=15)
        assert (least <= margins(model, torch.cat([images, found]), 0).amin(0) + 1e-9).all()

    @pytest.mark.parametrize("relaxation", ["exact", "elementwise", "lse", "mixed"])
    @pytest.mark.parametrize("size", [0.01, 0.3, 2.0])
    def test_one_read_of_forms_with_boxes(self, size: float, relaxation: str) -> None:
        """The center of a form may lie outside of its box; every case that lies in both is held."""
        draw = torch.Generator().manual_seed(4)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        moves = 0.4 + 0.6 * torch.rand(100, 3, generator=draw, dtype=torch.float64)
        cases, forms = [], []
        for width, spread in ((5, size), (2, 0.3)):
            form = AffineForm(
                2 * normal(2, 5, width), spread * normal(3, 2, 5, width), spread * normal(2, 5, width).abs()
            )
            noise = form.radius * torch.rand(100, 2, 5, width, generator=draw, dtype=torch.float64).round()
            case = form.center + torch.einsum("ne,e...->n...", moves, form.coefficients) + noise
            cases.append(case)
            forms.append(form.within(case.amin(0), case.amax(0)))
        rules_of = ["softmax"] if relaxation in ("lse", "mixed") else ["softmax", RELU, "relu_norm"]
        for rule in map(rf.rules.get, rules_of):
            verifier = Verifier(model_of(rule), "linear", "exact")
            found = verifier._read(rule, forms[0], forms[1], relaxation)
            n = torch.full((2, 5, 1), 5.0, dtype=torch.float64)
            read = torch.stack([rule.weights(s, n, None) @ v for s, v in zip(*cases, strict=True)])
            line = found.center + torch.einsum("ne,e...->n...", moves, found.coefficients)
            assert ((read - line).abs() <= found.radius + 1e-9).all()
            assert ((found.low - 1e-9 <= read) & (read <= found.high + 1e-9)).all()

    @pytest.mark.parametrize(("domain", "reads"), [*BOUNDS, ("linear", "lse"), ("linear", "mixed")])
    def test_without_a_change_the_bound_is_the_margin(self, domain: Any, reads: Any) -> None:
        model, image = model_of("softmax", layers=2), torch.rand(1, 8, 8, dtype=torch.float64)
        exact = margins(model, image[None], 1)[0]
        torch.testing.assert_close(Verifier(model, domain, reads).margins(image, 1, 0.0), exact, rtol=0, atol=1e-7)

    def test_softmax_of_scores_times_log_n_is_not_taken_for_softmax(self) -> None:
        model = model_of({"name": "scalable_softmax", "c": 3.0})
        image = torch.rand(1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        exact = margins(model, image[None], 1)[0]
        torch.testing.assert_close(Verifier(model).margins(image, 1, 0.0), exact, rtol=0, atol=1e-7)

    def test_scores_far_apart_stay_finite(self) -> None:
        model = model_of("softmax")
        with torch.no_grad():
            model.encoder[0].attention.layer.query.weight.mul_(1e3)
        for domain, reads in [*BOUNDS, ("linear", "lse"), ("linear", "mixed")]:
            least = Verifier(model, domain, reads).margins(torch.rand(1, 8, 8, dtype=torch.float64), 0, 0.5)
            assert not torch.isnan(least).any()


@dataclass(frozen=True)
class OwnSoftmax(rules.Formulated):
    def formula(self) -> Formula:
        return Formula("exp", delta=0.0)


@dataclass(frozen=True)
class OwnRelu(rules.Formulated):
    exponent: float = 0.0

    def formula(self) -> Formula:
        return Formula("relu", exponent=self.exponent)


@pytest.fixture
def own_rules() -> Iterator[None]:
    """Register two rules of a user's, each given by its formula alone."""
    rules.register("own_softmax")(OwnSoftmax)
    rules.register("own_relu")(OwnRelu)
    yield
    rules.unregister("own_softmax")
    rules.unregister("own_relu")


@pytest.mark.usefixtures("own_rules")
@pytest.mark.parametrize(("domain", "reads"), [*BOUNDS, ("linear", "lse")])
@pytest.mark.parametrize(("own", "known"), [("own_softmax", "softmax"), ({"name": "own_relu", "exponent": 1.0}, RELU)])
def test_a_rule_of_ones_own_is_bounded_by_its_formula(own: Any, known: Any, domain: Any, reads: Any) -> None:
    if reads == "lse" and known != "softmax":
        with pytest.raises(ArgumentError, match="reads=lse has lines for the weights of softmax"):
            Verifier(model_of(own), domain, reads)
        return
    image = torch.rand(1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    expected = Verifier(model_of(known), domain, reads).margins(image, 0, 0.05)
    model = model_of(known)
    model.config = model.config.replace(attention=own, ffn="own_relu")
    for block in model.encoder:
        block.attention.layer.read.rule, block.ffn.layer.rule = rules.get(own), rules.get("own_relu")
    torch.testing.assert_close(Verifier(model, domain, reads).margins(image, 0, 0.05), expected)


class TestTightness:
    @pytest.mark.parametrize("rule", ["softmax", "relu_norm"])
    @pytest.mark.parametrize("domain", ["interval", "linear"])
    def test_exact_reads_are_tighter_than_weights_alone(self, rule: str, domain: Any) -> None:
        model, image = model_of(rule, layers=2), torch.rand(1, 8, 8, dtype=torch.float64)
        exact, alone = (Verifier(model, domain, reads).margins(image, 0, 0.1) for reads in ("exact", "elementwise"))
        assert (exact > alone).all()

    @pytest.mark.parametrize("layers", [1, 2])
    @pytest.mark.parametrize("epsilon", [0.003, 0.03, 0.3])
    def test_the_best_is_never_below_the_others(self, epsilon: float, layers: int) -> None:
        model, image = model_of("softmax", layers=layers), torch.rand(1, 8, 8, dtype=torch.float64)
        best = Verifier(model, "linear", "best").margins(image, 0, epsilon)
        for reads in ("exact", "lse", "mixed"):
            assert (best >= Verifier(model, "linear", reads).margins(image, 0, epsilon)).all()

    @pytest.mark.parametrize("rule", ["softmax", RELU], ids=str)
    def test_without_lines_the_best_is_exact(self, rule: Any) -> None:
        model, image = model_of(rule), torch.rand(1, 8, 8, dtype=torch.float64)
        domain: Any = "interval" if rule == "softmax" else "linear"
        best, exact = (Verifier(model, domain, reads).margins(image, 0, 0.02) for reads in ("best", "exact"))
        assert torch.equal(best, exact)

    @pytest.mark.parametrize("rule", ["softmax", RELU], ids=str)
    def test_the_range_of_a_read_takes_nothing_from_its_form(self, rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        draw = torch.Generator().manual_seed(5)
        drawn = [torch.randn(3, 2, 5, width, generator=draw, dtype=torch.float64) for width in (5, 2)]
        scores, values = (AffineForm(x[0], x, torch.zeros_like(x[0])) for x in drawn)
        read = Verifier(model_of(rule))._read
        found = read(rf.rules.get(rule), scores, values, "exact")
        monkeypatch.setattr(AffineForm, "within", lambda form, low, high: form)
        form = read(rf.rules.get(rule), scores, values, "exact")
        assert torch.equal(found.coefficients, form.coefficients) and torch.equal(found.radius, form.radius)
        assert (found.high - found.low < form.high - form.low).any()

    @pytest.mark.parametrize("rule", ["softmax", RELU], ids=str)
    def test_affine_functions_of_the_pixels_are_tighter_than_intervals(self, rule: Any) -> None:
        model, image = model_of(rule), torch.rand(1, 8, 8, dtype=torch.float64)
        linear, interval = (Verifier(model, domain).margins(image, 0, 0.01) for domain in ("linear", "interval"))
        assert (linear > interval).all()

    def test_for_small_changes_the_linear_bound_is_the_gradient(self) -> None:
        """To first order the least margin is the margin less epsilon times the sum of its absolute gradient."""
        for rule in ("softmax", RELU):
            model, image = model_of(rule, layers=2), 0.2 + 0.6 * torch.rand(1, 8, 8, dtype=torch.float64)
            x = image[None].clone().requires_grad_()
            logits = model(x).logits[0]
            (gradient,) = torch.autograd.grad(logits[0] - logits[1], x)
            epsilon = 1e-7
            first_order = float((logits[0] - logits[1]).detach() - epsilon * gradient.abs().sum())
            found = float(Verifier(model).margins(image, 0, epsilon)[0])
            assert found == pytest.approx(first_order, abs=1e-9)


def test_a_strip_holds_relu() -> None:
    low, high = torch.tensor([-1.0, -3.0, 0.5, -2.0, 1.0]), torch.tensor([2.0, 1.0, 1.0, -1.0, 1.0])
    slope, offset = relu_strip(low, high)
    z = low + (high - low) * torch.linspace(0, 1, 101)[:, None]
    assert ((torch.relu(z) - slope * z - offset).abs() <= offset + 1e-6).all()
    assert torch.equal(offset > 0, torch.tensor([True, True, False, False, False]))


def test_a_box_keeps_what_values_have_in_common() -> None:
    form = AffineForm.around(-torch.ones(2), torch.ones(2), linear=True)
    boxed = form.within(torch.full((2,), -0.5), torch.full((2,), 0.7))
    assert torch.equal(boxed.low, torch.full((2,), -0.5)) and torch.equal(boxed.high, torch.full((2,), 0.7))
    assert torch.equal((boxed + form.linear(-torch.eye(2))).high, torch.zeros(2))
    assert torch.equal(boxed.within(-torch.ones(2), torch.full((2,), 0.6)).high, torch.full((2,), 0.6))


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("linear", [False, True])
def test_products_and_sums_of_affine_forms_hold_every_case(linear: bool, boxed: bool) -> None:
    """With a box that leaves out the center of the form, too."""
    draw = torch.Generator().manual_seed(0)
    low = torch.randn(4, 3, generator=draw, dtype=torch.float64)
    box = AffineForm.around(low, low + 0.3, linear)
    weight, bias = torch.randn(2, 3, generator=draw, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    start = 0.2 if boxed else 0.0
    box = box.within(low + 0.2, low + 0.3) if boxed else box
    other = box + torch.ones(3)
    found = (
        *(box.products(other, 0.5), box.products(other, -2.0), box.linear(weight, bias), box.relu() + box),
        *(box.mean(0), box[1], box.scaled(torch.full((3,), 0.5)).permute(1, 0).view(2, 6)),
    )
    for _ in range(200):
        x = low + start + (0.3 - start) * torch.rand(4, 3, generator=draw, dtype=torch.float64)
        cases = (
            *(0.5 * x @ (x + 1).t(), -2 * x @ (x + 1).t(), x @ weight.t() + bias, torch.relu(x) + x),
            *(x.mean(0), x[1], (0.5 * x).t().reshape(2, 6)),
        )
        for form, case in zip(found, cases, strict=True):
            assert ((form.low <= case + 1e-9) & (case <= form.high + 1e-9)).all()


class TestFigures:
    def test_certified_images_withstand_the_attack(self) -> None:
        model = model_of(RELU)
        images = torch.randint(256, (12, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
        labels = model(images).logits.argmax(-1)
        labels[0] = (labels[0] + 1) % 3  # one that is wrong from the start
        split = LabelledImages(images, labels)
        shares = []
        for epsilon in (0.0, 0.003, 0.1, 0.5):
            found = certify(model, split, epsilon)
            attacked = float((attack(model, images, labels, epsilon, steps=10)[0] > 0).double().mean())
            assert found.accuracy == pytest.approx(11 / 12)
            assert found.certified <= attacked + 1e-9
            shares.append(found.certified)
        assert shares[0] == pytest.approx(11 / 12) and shares == sorted(shares, reverse=True)

    def test_an_attack_stays_within_epsilon_and_finds_worse_images(self) -> None:
        model, images = model_of("softmax"), torch.rand(5, 1, 8, 8, dtype=torch.float64)
        labels = torch.tensor([0, 1, 2, 0, 1])
        before = margins_of(model, images, labels).detach()
        least, found = attack(model, images, labels, 0.2, steps=10, restarts=2)
        assert (found - images).abs().max() <= 0.2 + 1e-9
        assert found.min() >= 0 and found.max() <= 1
        assert (least < before).all()
        torch.testing.assert_close(margins_of(model, found, labels).detach(), least)


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"norm": "pre"}, "the model has norm=pre, which divides by the deviation of a token"),
            ({"qk_norm": True}, "no bound is known for qk_norm; train a model with model.qk_norm=false"),
            ({"output_gate": True}, "no bound is known for output_gate"),
            ({"ffn": "relu2"}, "the feed-forward rule is 'relu2'; only relu_plain has a bound here"),
            ({"ffn": "rela"}, "the feed-forward rule is 'rela'; only relu_plain has a bound here"),
            ({"attention": "softmax_ln"}, "rule 'softmax_ln' norms its read"),
        ],
    )
    def test_models_without_a_bound_are_refused(self, changes: dict[str, Any], message: str) -> None:
        sizes = {"image_size": 8, "width": 8, "heads": 2, "layers": 1, "norm": "affine", "qk_norm": False}
        with pytest.raises(ArgumentError, match=message):
            Verifier(ImageModel(rf.ImageConfig(**{**sizes, **changes})))

    def test_bad_arguments_are_named(self) -> None:
        model, image = model_of(RELU), torch.rand(1, 8, 8)
        with pytest.raises(ArgumentError, match="domain is 'zonotope'; valid: interval, linear"):
            Verifier(model, "zonotope")  # type: ignore[arg-type]
        for reads in ("lse", "mixed"):
            with pytest.raises(ArgumentError, match=f"reads={reads} has lines for the weights of softmax"):
                Verifier(model, "linear", reads)  # type: ignore[arg-type]
        for epsilon in (-0.1, 1.5, float("nan")):
            with pytest.raises(ArgumentError, match=r"epsilon is .*; it must lie between 0 and 1, as 1/255"):
                Verifier(model).margins(image, 0, epsilon)
            with pytest.raises(ArgumentError, match="epsilon is"):
                attack(model, image[None].double(), torch.tensor([0]), epsilon)
        with pytest.raises(ArgumentError, match="label 7 is no class of the model, which has 3"):
            Verifier(model).margins(image, 7, 0.1)
        with pytest.raises(ArgumentError, match=r"must have shape \(batch, 1, 8, 8\)"):
            Verifier(model).margins(torch.rand(1, 9, 9), 0, 0.1)
        with pytest.raises(ArgumentError, match="pixels from nan"):
            Verifier(model).margins(torch.full((1, 8, 8), float("nan")), 0, 0.1)

    @pytest.mark.parametrize(
        ("count", "labels", "message"),
        [
            (2, torch.tensor([0]), "2 images and 1 labels; give each image one label"),
            (0, torch.tensor([], dtype=torch.int64), "there is no image; give at least one"),
            (
                2,
                torch.tensor([0, 12]),
                "label 12 of image 1 is no class of the model, which has 3; labels go from 0 to 2",
            ),
            (2, torch.tensor([-1, 0]), "label -1 of image 0 is no class"),
            (2, torch.tensor([0.0, 1.0]), "labels must be a tensor of integers .*got torch.float32 of shape"),
            (2, [0, 1], "labels must be a tensor of integers .*got list"),
        ],
    )
    def test_labels_that_do_not_fit(self, count: int, labels: Any, message: str) -> None:
        model, images = model_of(RELU), torch.rand(count, 1, 8, 8)
        with pytest.raises(ArgumentError, match=f"certify: {message}"):
            certify(model, LabelledImages(images, labels), 0.1)
        with pytest.raises(ArgumentError, match=f"attack: {message}"):
            attack(model, images, labels, 0.1)

    def test_epsilon_of_another_type(self) -> None:
        model, images, labels = model_of(RELU), torch.rand(1, 1, 8, 8), torch.tensor([0])
        for call in (
            lambda: certify(model, LabelledImages(images, labels), "1/255"),  # type: ignore[arg-type]
            lambda: attack(model, images, labels, "1/255"),
        ):  # type: ignore[arg-type]
            with pytest.raises(ArgumentError, match="epsilon is '1/255' of type str; give a number from 0 to 1"):
                call()

    def test_a_missing_run_is_not_called_a_translation(self, tmp_path: Path) -> None:
        refused = CliRunner().invoke(app, ["certify", str(tmp_path / "nosuch")])
        assert refused.exit_code != 0
        assert "nosuch" in str(refused.exception) and "translation" not in str(refused.exception)


def test_the_verb_prints_and_writes_figures(tmp_path: Path) -> None:
    recipe = {
        "task": "images",
        "data": {"gratings": {"train": 64, "valid": 8, "test": 16, "classes": 3, "size": 8}},
        "model": {
            "image_size": 8,
            "patch": 4,
            "classes": 3,
            "width": 8,
            "heads": 2,
            "layers": 1,
            "slots": 16,
            "norm": "affine",
            "qk_norm": False,
        },
        "training": {"updates": 2, "tokens_per_batch": 64, "warmup": 1, "schedule": "cosine", "device": "cpu"},
    }
    rf.train(recipe, tmp_path / "run")
    arguments = ["certify", str(tmp_path / "run"), "--eps", "1/255", "--eps", "0.5", "--limit", "4", "--steps", "2"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "run/evaluation/certified-test-linear-exact.json").read_text(encoding="utf-8"))
    first, second = content["figures"]
    assert first["epsilon"] == pytest.approx(1 / 255) and first["images"] == 4
    assert second["certified"] <= second["attacked"] <= second["accuracy"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    for given, message in (("1/0", "--eps 1/0: give a number"), ("3", "--eps 3: pixels go from 0 to 1")):
        refused = CliRunner().invoke(app, ["certify", str(tmp_path / "run"), "--eps", given])
        assert message in str(refused.exception)
