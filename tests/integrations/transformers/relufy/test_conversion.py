"""`relufy` on tiny models: every stage is nearer to the teacher, and what it cannot take it refuses."""

from __future__ import annotations

import json
from types import FunctionType

import pytest
import torch

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.relufy.conversion import LevelTrial, relufy, search_level
from reluformer.integrations.transformers.relufy.distillation import Distillation
from reluformer.integrations.transformers.relufy.family import ReLUFormerFamily

pytest.importorskip("transformers", reason="transformers is not installed")
ROUNDING = 100 * torch.finfo(torch.float32).eps
"""What float32 leaves over of two models that are the same."""
SHORT = Distillation(steps=24, batch_tokens=4096, lr=1e-3, scores_lr=1e-2)


class TestStages:
    @pytest.mark.parametrize("rule", ["relu", "relu2"])
    def test_an_encoder_comes_nearer_with_every_stage(self, bert, word_tokenizer, sentences, rule):
        _, report = relufy(bert, sentences, tokenizer=word_tokenizer, rule=rule, distillation=SHORT, max_length=16)
        swapped, calibrated, distilled = (stage.agreement["cosine"] for stage in report.stages.values())
        assert swapped < calibrated < distilled <= 1
        for log in report.distillation.values():
            assert log.last_loss < log.first_loss
        assert list(report.distillation) == ["layers", "whole"]

    def test_a_translator_of_transformers(self, marian, word_tokenizer, pairs):
        student, report = relufy(marian, pairs, tokenizer=word_tokenizer, distillation=SHORT, max_length=16)
        assert report.attentions == 3
        swapped, calibrated, distilled = (stage.agreement["divergence"] for stage in report.stages.values())
        assert distilled < calibrated < swapped
        ids = word_tokenizer(["the cat ran"], return_tensors="pt")["input_ids"]
        assert student.generate(input_ids=ids, max_new_tokens=4, num_beams=2, do_sample=False).size(0) == 1

    @pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "both"])
    def test_a_translator_of_our_own(self, make_translator, tokenizer, pairs, positions):
        teacher = make_translator(positions=positions)
        student, report = relufy(teacher, pairs, tokenizer=tokenizer, distillation=SHORT, max_length=48)
        swapped, calibrated, distilled = (stage.agreement["divergence"] for stage in report.stages.values())
        assert distilled < calibrated < swapped
        assert student.config.learn_offset and student.config.cross_attention == rules.Relu()
        assert teacher.config.cross_attention == rules.Softmax() and not teacher.training

    def test_a_rule_of_centred_scores_has_no_use_for_an_offset(self, make_translator, tokenizer, pairs):
        options = dict(tokenizer=tokenizer, rule="relu_exp", distillation=None, max_length=48)
        student, report = relufy(make_translator(), pairs, **options)
        swapped, calibrated = (stage.agreement["divergence"] for stage in report.stages.values())
        assert calibrated < swapped
        assert not student.config.learn_offset and student.config.cross_attention == rules.ReluExp()
        _, relu = relufy(make_translator(), pairs, **{**options, "rule": "relu"})
        assert swapped < relu.stages["calibrated"].agreement["divergence"], "nearer than a fitted ReLU before any fit"

    def test_training_the_scores_alone_leaves_the_other_weights(self, bert, word_tokenizer, sentences):
        options = Distillation(steps=4, batch_tokens=256, train="scores")
        student, report = relufy(bert, sentences, tokenizer=word_tokenizer, distillation=options, max_length=16)
        state = student.state_dict()
        for name, weight in bert.state_dict().items():
            assert torch.equal(state[name], weight), name
        assert sum(name.endswith(("log_scale", "offset", "centre")) for name in state) == 6
        assert report.settings["train"] == "scores"
        assert all(parameter.requires_grad for parameter in student.parameters())

    def test_training_attention_changes_attention_only(self, bert, word_tokenizer, sentences):
        options = Distillation(steps=4, batch_tokens=256, train="attention")
        student, _ = relufy(bert, sentences, tokenizer=word_tokenizer, distillation=options, max_length=16)
        state = student.state_dict()
        changed = {name for name, weight in bert.state_dict().items() if not torch.equal(state[name], weight)}
        assert changed and all(".attention.self." in name for name in changed)

    def test_calibration_alone(self, bert, word_tokenizer, sentences):
        _, report = relufy(bert, sentences, tokenizer=word_tokenizer, distillation=None, max_length=16)
        assert list(report.stages) == ["swapped", "calibrated"] and report.texts["distillation"] == 0


class TestTeacher:
    def test_a_teacher_that_is_relu_already_stays_the_same(self, bert, word_tokenizer, sentences):
        from reluformer import hub

        hub.register()
        bert.set_attn_implementation("reluformer:relu")
        student, report = relufy(bert, sentences, tokenizer=word_tokenizer, distillation=None, max_length=16)
        assert max(report.read_error.values()) < 1e-6
        assert report.stages["calibrated"].agreement["cosine"] == pytest.approx(1, abs=1e-5)
        assert bert.config._attn_implementation == "reluformer:relu" and student is not bert

    @pytest.mark.parametrize("rule", ["relu", "relu_norm"])
    def test_what_a_teacher_of_our_own_has_learned_is_kept(self, make_translator, tokenizer, pairs, rule):
        """Its gamma, its offsets: the student with the same rule is the teacher."""
        attentions = ("encoder_attention", "decoder_attention", "cross_attention")
        learned = rules.Relu(learn_gamma=True) if rule == "relu" else rule
        teacher = make_translator(**dict.fromkeys(attentions, learned), learn_offset=True)
        with torch.no_grad():
            for name, parameter in teacher.named_parameters():
                if name.endswith(("offset", "log_gamma")):
                    parameter.copy_(torch.linspace(0.3, 1.2, parameter.numel()))
        _, report = relufy(teacher, pairs, tokenizer=tokenizer, rule=rule, distillation=None, max_length=48)
        assert max(report.read_error.values()) < ROUNDING
        assert max(stage.agreement["divergence"] for stage in report.stages.values()) < ROUNDING

    def test_a_student_of_our_own_can_be_fitted_again(self, make_translator, tokenizer, pairs):
        options = dict(tokenizer=tokenizer, distillation=None, max_length=48)
        student, _ = relufy(make_translator(), pairs, **options)
        _, report = relufy(student, pairs, **options)
        assert report.stages["calibrated"].agreement["divergence"] < ROUNDING

    def test_a_student_of_transformers_is_no_teacher(self, bert, word_tokenizer, sentences):
        options = dict(tokenizer=word_tokenizer, distillation=None, max_length=16)
        student, _ = relufy(bert, sentences, **options)
        with pytest.raises(ArgumentError, match=r"BertModel was relufied already.*take the original model"):
            relufy(student, sentences, **options)

    @pytest.mark.parametrize("rule", ["relu", "relu_norm", "relu_exp"])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
    def test_models_of_any_precision(
        self, bert, make_translator, word_tokenizer, tokenizer, sentences, pairs, dtype, rule
    ):
        options = dict(rule=rule, distillation=None, max_length=16)
        for model, texts, own in ((bert, sentences, word_tokenizer), (make_translator(), pairs, tokenizer)):
            student, report = relufy(model.to(dtype), texts, tokenizer=own, **options)
            swapped, calibrated = (stage.agreement["cosine"] for stage in report.stages.values())
            assert swapped < calibrated and {p.dtype for p in student.parameters()} == {dtype}

    def test_the_model_is_left_as_it_was(self, bert, word_tokenizer, sentences):
        before = {name: weight.clone() for name, weight in bert.state_dict().items()}
        implementation = bert.config._attn_implementation
        bert.train()
        relufy(bert, sentences, tokenizer=word_tokenizer, distillation=SHORT, max_length=16)
        assert bert.training and bert.config._attn_implementation == implementation
        assert bert.state_dict().keys() == before.keys()
        assert all(torch.equal(weight, before[name]) for name, weight in bert.state_dict().items())


def test_steps_and_seed_determine_the_student(bert, word_tokenizer, sentences):
    def weights(seed: int) -> dict[str, torch.Tensor]:
        options = Distillation(steps=6, batch_tokens=128, seed=seed)
        torch.manual_seed(torch.initial_seed() + 1)
        return relufy(bert, sentences, tokenizer=word_tokenizer, distillation=options, max_length=16)[0].state_dict()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_batches_with_and_without_padding_are_calibrated_alike(make_translator, tokenizer, pairs):
    family = ReLUFormerFamily(make_translator(), tokenizer, rules.Relu(), max_length=48)
    apart, together = (family.examples(pairs[:6], tokens) for tokens in (64, 4096))
    shares = [family.zero_shares(family.student(), examples.in_order()) for examples in (apart, together)]
    assert len(list(apart.in_order())) > len(list(together.in_order()))
    assert shares[0] == pytest.approx(shares[1])


class TestReport:
    def test_it_is_plain_data_and_text(self, bert, word_tokenizer, sentences):
        asked = []

        def measure(model: torch.nn.Module) -> dict[str, float]:
            asked.append(model)
            return {"weights": float(sum(p.numel() for p in model.parameters()))}

        student, report = relufy(
            bert, sentences, tokenizer=word_tokenizer, distillation=SHORT, measure=measure, max_length=16
        )
        plain = json.loads(json.dumps(report.to_dict()))
        assert plain["texts"] == {"calibration": 54, "distillation": 54, "held_out": 6}
        assert asked == [bert, student, student, student]
        assert plain["seconds"].keys() == plain["cpu_seconds"].keys() == {"calibration", "distillation"}
        assert plain["teacher"]["weights"] < plain["stages"]["distilled"]["measures"]["weights"]
        stage = plain["stages"]["distilled"]
        shares = stage["zero_share"].values()
        assert len(shares) == 2 and all(0 <= share < 1 for share in shares) and any(shares)
        assert stage["mean_zero_share"] == pytest.approx(sum(shares) / 2)
        text = str(report)
        for word in ("BertModel", "swapped", "calibrated", "distilled", "cosine", "encoder.layer.1.attention.self"):
            assert word in text

    def test_held_out_texts_can_be_given(self, bert, word_tokenizer, sentences):
        options = dict(tokenizer=word_tokenizer, distillation=None, max_length=16, calibrate_on=7)
        _, report = relufy(bert, sentences[:40], held_out=sentences[40:], **options)
        assert report.texts == {"calibration": 7, "distillation": 0, "held_out": 20}


class TestBadInput:
    def test_texts(self, bert, marian, word_tokenizer):
        for model, texts, message in (
            (bert, [], "calibration_texts is empty"),
            (bert, "a cat", r"one string; write \[text\]"),
            (bert, ["a cat", " "], r"calibration_texts\[1\] is blank"),
            (bert, [("a cat", "a dog")], r"calibration_texts\[0\] is .*; expected strings"),
            (marian, ["a cat"], r"calibration_texts\[0\] is 'a cat'; expected \(source, target\) pairs"),
            (marian, [("a cat", "")], "is blank"),
        ):
            with pytest.raises(ArgumentError, match=message):
                relufy(model, texts, tokenizer=word_tokenizer, max_length=16)

    def test_a_tokenizer_of_another_model(self, bert, make_translator, tokenizer, word_tokenizer, sentences, pairs):
        bert.resize_token_embeddings(len(word_tokenizer) - 1)
        with pytest.raises(ArgumentError, match="tokenizer has 20 entries, the model embeddings for 19"):
            relufy(bert, sentences, tokenizer=word_tokenizer)
        with pytest.raises(ArgumentError, match="expected a tokenizer of transformers, got Tokenizer"):
            relufy(bert, sentences, tokenizer=tokenizer)
        with pytest.raises(ArgumentError, match="expected the reluformer Tokenizer of the run"):
            relufy(make_translator(), pairs, tokenizer=word_tokenizer)
        smaller = make_translator(vocab_size=tokenizer.vocab_size - 1)
        with pytest.raises(ArgumentError, match=f"tokenizer has {tokenizer.vocab_size} entries, the model"):
            relufy(smaller, pairs, tokenizer=tokenizer)

    def test_models_and_rules(self, bert, make_translator, tokenizer, word_tokenizer, sentences, pairs):
        from transformers import GPT2Config, GPT2Model

        gpt = GPT2Model(GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16))
        with pytest.raises(ArgumentError, match="GPT2Model is a decoder alone"):
            relufy(gpt, sentences, tokenizer=word_tokenizer)
        with pytest.raises(ArgumentError, match="got Linear"):
            relufy(torch.nn.Linear(2, 2), sentences, tokenizer=word_tokenizer)
        with pytest.raises(ArgumentError, match="rule 'softmax': relufy fits rules of the ReLU family"):
            relufy(bert, sentences, tokenizer=word_tokenizer, rule="softmax")
        with pytest.raises(ArgumentError, match="knows its rule by name alone"):
            relufy(bert, sentences, tokenizer=word_tokenizer, rule=rules.Relu(gamma=2.0))
        with pytest.raises(ArgumentError, match="output norm cannot be relufied"):
            relufy(make_translator(cross_attention="softmax_ln"), pairs, tokenizer=tokenizer)
        with pytest.raises(ArgumentError, match="max_length must be at least 2"):
            relufy(bert, sentences, tokenizer=word_tokenizer, max_length=1)
        with pytest.raises(ArgumentError, match="calibrate_on must be at least 1, got 0"):
            relufy(bert, sentences, tokenizer=word_tokenizer, calibrate_on=0)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (dict(steps=None), "never ends"),
            (dict(steps=0), "steps must be positive"),
            (dict(minutes=-1.0), "minutes must be positive"),
            (dict(lr=float("nan")), "lr must be positive"),
            (dict(layer_share=1.5), "layer_share must be between 0 and 1"),
            (dict(train="none"), "valid: scores, attention, all"),
        ],
    )
    def test_distillation(self, options, message):
        with pytest.raises(ArgumentError, match=message):
            Distillation(**options)


def test_the_hub_has_the_function(bert, word_tokenizer, sentences):
    from reluformer import hub

    assert hub.relufy is relufy and isinstance(hub.relufy, FunctionType)
    _, report = hub.relufy(bert, sentences, tokenizer=word_tokenizer, distillation=None, max_length=16)
    assert isinstance(report, hub.RelufyReport)


def test_minutes_end_a_distillation(bert, word_tokenizer, sentences):
    options = Distillation(steps=None, minutes=1e-6, batch_tokens=128)
    _, report = relufy(bert, sentences, tokenizer=word_tokenizer, distillation=options, max_length=16)
    assert [log.steps for log in report.distillation.values()] == [1, 1]


class TestTargets:
    @pytest.mark.parametrize(
        ("rule", "option"), [("relu_chance", "chance"), ("relu_rest", "chance"), ("relu_exp", "threshold")]
    )
    def test_the_level_is_raised_until_there_are_enough_zeros(self, make_translator, tokenizer, pairs, rule, option):
        options = dict(tokenizer=tokenizer, rule=rule, distillation=None, max_length=48)
        student, report = relufy(make_translator(), pairs, zeros=0.6, **options)
        assert report.target_reached and report.stages["calibrated"].mean_zero_share >= 0.6
        values = [trial.value for trial in report.search]
        assert values == sorted(values) and {trial.option for trial in report.search} == {option}
        assert getattr(student.config.cross_attention, option) in values
        assert "zeros" in str(report) and report.to_dict()["search"][0]["option"] == option

    def test_of_the_levels_within_the_loss_the_one_with_most_zeros_is_taken(self, make_translator, tokenizer, pairs):
        options = dict(tokenizer=tokenizer, rule="relu_exp", distillation=None, max_length=48)
        _, report = relufy(make_translator(), pairs, loss=0.02, **options)
        taken = report.stages["calibrated"].mean_zero_share
        assert report.target_reached
        assert taken == pytest.approx(max(trial.zeros for trial in report.search if trial.loss <= 0.02))

    def test_a_target_out_of_reach_takes_the_nearest_and_says_so(self):
        def trial(value):
            return LevelTrial("threshold", value, zeros=0.1 * value, loss=value)

        tried, best, reached = search_level(trial, (0.0, 1.0), zeros=0.9, loss=None)
        assert not reached and best == tried[-1]
        tried, best, reached = search_level(trial, (1.0, 2.0), zeros=None, loss=0.5)
        assert not reached and best == tried[0]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (dict(zeros=0.5, loss=0.1, rule="relu_exp"), "two targets; give one"),
            (dict(zeros=1.5, rule="relu_exp"), "zeros must lie between 0 and 1, got 1.5"),
            (dict(zeros=0.5, rule="relu"), "rule 'relu' has no level to search"),
        ],
    )
    def test_targets_that_make_no_sense_are_refused(self, make_translator, tokenizer, pairs, given, message):
        with pytest.raises(ArgumentError, match=message):
            relufy(make_translator(), pairs, tokenizer=tokenizer, **given)

    def test_models_of_transformers_take_no_target(self, bert, word_tokenizer, sentences):
        with pytest.raises(ArgumentError, match="knows its rule by the name alone"):
            relufy(bert, sentences, tokenizer=word_tokenizer, rule="relu_exp", zeros=0.5)
