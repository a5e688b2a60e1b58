"""The engine: same answers as alone, nobody waits for long, nothing gets lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from reluformer.integrations.server import engine as engine_module
from reluformer.integrations.server.engine import Call, Engine, Job
from reluformer.integrations.server.limits import RequestError, ServerLimits
from reluformer.integrations.server.model_registry import ModelRegistry, ServedModel
from reluformer.translation.document import TranslatedSentence
from reluformer.translation.native_decoder import NativeSearch
from reluformer.translation.search import Hypothesis
from reluformer.translation.tokenizer import END
from reluformer.translation.translator import Translator

SHORT = ("A dog ran home.",)
LONG = tuple(f"The cat saw a dog and it ran home because night was near {number}." for number in range(12))
DOCUMENTS = [
    SHORT,
    ("The cat saw a dog.", "It ran home."),
    ("Night was near.",),
    ("A cat and a dog.", "", "It was."),
    LONG[:3],
]


@pytest.fixture
def engine() -> Callable[..., Engine]:
    """Not started: a test takes its turns itself."""
    from reluformer.integrations.server.middleware import Metrics

    return lambda **limits: Engine(ServerLimits(**limits), Metrics())


def finish(engine: Engine, jobs: Sequence[Job]) -> list[Job]:
    """Take turns until all are done; the order in which they were."""
    order: list[Job] = []
    for _ in range(5000):
        engine.step()
        order += [job for job in jobs if job.result.done() and job not in order]
        if len(order) == len(jobs):
            return order
    raise AssertionError("not finished")


def sentences(job: Job) -> list[list[str]]:
    return [list(best[0].sentences) for best in job.result.result(timeout=0)]


@pytest.mark.parametrize("place", [0, 1], ids=["relu", "softmax"])
def test_the_same_together_and_alone(models: ModelRegistry, engine: Callable[..., Engine], place: int) -> None:
    model = models[place]
    together = engine()
    jobs = [Job(model, [document]) for document in DOCUMENTS]
    for job in jobs:
        together.submit(job)
    finish(together, jobs)
    assert max(job.largest_batch for job in jobs) > 2
    alone = [model.translator.translate_documents([document])[0] for document in DOCUMENTS]
    assert [sentences(job)[0] for job in jobs] == alone


def test_n_best_and_models_have_batches_of_their_own(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    one = engine()
    jobs = [Job(models[0], [SHORT]), Job(models[1], [SHORT]), Job(models[0], [SHORT], n_best=3)]
    for job in jobs:
        one.submit(job)
    finish(one, jobs)
    assert [job.largest_batch for job in jobs] == [1, 1, 1]
    for job, model, n in zip(jobs, (models[0], models[1], models[0]), (1, 1, 3), strict=True):
        assert job.result.result() == model.translator.translate_n_best([SHORT], n)


def test_the_budget_of_a_batch(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    small = engine(batch_texts=3)
    jobs = [Job(models[0], [SHORT]) for _ in range(7)]
    for job in jobs:
        small.submit(job)
    finish(small, jobs)
    assert {job.largest_batch for job in jobs} == {1, 3}
    tokens = Job(models[0], [SHORT]).size(0)
    tight = engine(batch_tokens=2 * tokens)
    jobs = [Job(models[0], [SHORT]) for _ in range(4)]
    for job in jobs:
        tight.submit(job)
    finish(tight, jobs)
    assert {job.largest_batch for job in jobs} == {2}


def test_short_texts_pass_a_long_document(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    one = engine(batch_texts=1)
    long, many = Job(models[0], [LONG]), Job(models[0], [SHORT] * 30)
    one.submit(long)
    one.submit(many)
    one.step()
    late = [Job(models[0], [SHORT]) for _ in range(3)]
    for job in late:
        one.submit(job)
    order = finish(one, [long, many, *late])
    assert order[:3] == late
    assert sentences(long) == models[0].translator.translate_documents([LONG])


def test_short_texts_overtake_a_search_under_way(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    wide = models[0].translator
    wide_windows = ServedModel("wide", Translator(wide.model, wide.tokenizer, wide.config.replace(window_tokens=400)))
    one = engine()
    long = Job(wide_windows, [LONG])
    assert long.size(0) > 128
    one.submit(long)
    one.step()
    short = Job(models[1], [SHORT])
    one.submit(short)
    assert finish(one, [long, short]) == [short, long]


class EchoSearch:
    """Ends at once; the translation of a window is its source."""

    def __init__(self, decoder: Any, config: Any) -> None:
        self.sources: list[Any] = []

    def add(self, source: Any, outline: Any, reads: bool) -> int:
        self.sources.append(source)
        return len(self.sources) - 1

    def advance(self, positions: int) -> None:
        pass

    def hypotheses(self, source: int) -> list[Hypothesis]:
        return [Hypothesis(tuple(token for token in self.sources[source] if token != END), 0.0, 0.0)]

    def ended(self, source: int) -> bool:
        return True


@pytest.mark.parametrize("window_tokens", [24, 400])
def test_new_requests_cannot_keep_a_long_document_waiting(
    models: ModelRegistry, engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, window_tokens: int
) -> None:
    monkeypatch.setattr(engine_module, "start_search", EchoSearch)
    base = models[0].translator
    config = base.config.replace(window_tokens=window_tokens)
    model = ServedModel("model", Translator(base.model, base.tokenizer, config))
    one = engine()
    short = [Job(model, [SHORT]) for _ in range(32)]
    long = Job(model, [LONG[:10] * 16])
    for job in [*short, long]:
        one.submit(job)
    tokens = sum(len(base.tokenizer.encode(sentence)) + 1 for sentence in LONG[:10] * 16)
    fair = tokens / short[0].size(0)  # turns, if each of the clients has as many tokens decoded as any other
    turns = 0
    while not long.result.done() and turns < 3 * fair:
        one.step()
        turns += 1
        for place, job in enumerate(short):
            if job.result.done():
                short[place] = Job(model, [SHORT])
                one.submit(short[place])
    assert long.result.done()


def test_a_full_queue_says_when_to_come_back(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    one = engine(waiting=2)
    jobs = [Job(models[0], [SHORT]) for _ in range(2)]
    for job in jobs:
        one.submit(job)
    with pytest.raises(RequestError) as refused:
        one.submit(Job(models[0], [SHORT]))
    assert refused.value.status == 429 and int(refused.value.headers["Retry-After"]) >= 1
    finish(one, jobs)
    one.submit(Job(models[0], [SHORT]))


def test_what_nobody_waits_for_is_dropped(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    one = engine(waiting=1)
    given_up = Job(models[0], [LONG])
    one.submit(given_up)
    one.step()
    given_up.result.cancel()
    one.step()
    assert not one.busy
    job = Job(models[0], [SHORT])
    one.submit(job)
    finish(one, [job])
    assert not given_up.done


def test_a_neighbour_is_dropped_and_the_others_go_on(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    one = engine()
    jobs = [Job(models[0], [SHORT]), Job(models[0], [LONG])]
    for job in jobs:
        one.submit(job)
    one.step()
    jobs[1].result.cancel()
    finish(one, jobs)
    assert sentences(jobs[0]) == models[0].translator.translate_documents([SHORT])


def test_one_text_cannot_spoil_another(
    models: ModelRegistry, engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    class PoisonedSearch(NativeSearch):
        poisoned = False

        def add(self, source: Any, outline: Any, reads: bool = False) -> int:
            self.poisoned |= outline.limits == poisoned
            return super().add(source, outline, reads)

        def advance(self, positions: int = 1) -> None:
            if self.poisoned:
                raise RuntimeError("poison")
            super().advance(positions)

    one = engine()
    bad, good = Job(models[0], [("night was near.",)]), Job(models[0], [LONG[:1]])
    poisoned = bad.passages[0].window().outline.limits
    assert good.passages[0].window().outline.limits != poisoned
    monkeypatch.setattr(engine_module, "start_search", PoisonedSearch)
    for job in (bad, good):
        one.submit(job)
    finish(one, [bad, good])
    assert good.largest_batch == 2
    with pytest.raises(RequestError, match="failed at this request"):
        bad.result.result()
    monkeypatch.undo()
    assert sentences(good) == models[0].translator.translate_documents([LONG[:1]])


def test_a_fault_of_our_own_does_not_end_the_thread(
    models: ModelRegistry, engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine()
    monkeypatch.setattr(Engine, "start_next", lambda engine: 1 / 0)
    one.start()
    job = Job(models[0], [SHORT])
    one.submit(job)
    with pytest.raises(RequestError, match="failed at this request"):
        job.result.result(timeout=60)
    monkeypatch.undo()
    again = Job(models[0], [SHORT])
    one.submit(again)
    assert again.result.result(timeout=60)
    one.close()


def test_closing_finishes_what_was_taken(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    one = engine()
    jobs = [Job(models[0], [LONG]), Job(models[1], [SHORT])]
    for job in jobs:
        one.submit(job)
    one.start()
    one.close()
    assert all(job.result.done() for job in jobs)
    with pytest.raises(RequestError) as refused:
        one.submit(Job(models[0], [SHORT]))
    assert refused.value.status == 503
    one.start()
    again = Job(models[0], [SHORT])
    one.submit(again)
    one.close()
    assert again.result.done()


def test_nothing_to_translate(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    one = engine()
    jobs = [Job(models[0], []), Job(models[0], [("", " ", "12")])]
    for job in jobs:
        one.submit(job)
    finish(one, jobs)
    assert jobs[0].result.result() == [] and sentences(jobs[1]) == [["", " ", "12"]]


def test_calls_and_their_failures(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    one = engine()
    calls = [Call(models[0], lambda: 7, tokens=1), Call(models[0], lambda: 1 / 0, tokens=1)]
    for call in calls:
        one.submit(call)
    one.step()
    assert calls[0].result.result() == 7
    with pytest.raises(RequestError, match="failed at this request"):
        calls[1].result.result()


def test_a_stream_tells_every_sentence_once_and_in_order(models: ModelRegistry, engine: Callable[..., Engine]) -> None:
    one = engine()
    told: list[tuple[int, str]] = []
    early: list[bool] = []
    documents = [LONG[:4], (), ("A dog.", "", "It ran.")]

    def tell(index: int, sentence: TranslatedSentence) -> None:
        told.append((index, sentence.text))
        early.append(not job.done)

    job = Job(models[0], documents, on_sentence=tell)
    one.submit(job)
    finish(one, [job])
    translated = [sentence for document in sentences(job) for sentence in document]
    assert sorted(told) == list(enumerate(translated))
    for document in ([0, 1, 2, 3], [4, 5, 6]):
        assert [index for index, _ in told if index in document] == document
    assert any(early)
