"""The page in a real browser: Debian's Chromium, driven by Playwright, against the real server.

Playwright's `expect` waits for what it states and fails with an AssertionError where it does not come.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.embedded import document_from_id, generate
from reluformer.translation.recipe import DecodingConfig, TokenizerConfig
from reluformer.translation.tokenizer import Tokenizer
from reluformer.translation.translator import Translator

pytest.importorskip("fastapi", reason="fastapi is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
expect = playwright.expect

EXAMPLE = "embedded/seed=0/test/sentences=6-9/28"
TEXT = "It was green. The boy played, but my brother slept.\n\n  Where is it today?\n"
SENTENCES = ("It was green.", "The boy played, but my brother slept.", "Where is it today?")
CHARACTERS = 2000
BYTES = slice(5, 5 + 256)
"""The tokens of single bytes, which may be no text alone."""


@pytest.fixture(scope="module")
def word_tokenizer() -> Tokenizer:
    corpus = [s for d in generate(60, split="train", sentences=(4, 8)) for s in (*d.document.src, *d.document.tgt)]
    return Tokenizer.train(corpus, TokenizerConfig(vocab_size=500))


def random_translator(tokenizer: Tokenizer, rule: str) -> Translator:
    """A small model that was never trained; it writes words, most of them of one token."""
    torch.manual_seed(3)
    sizes = dict(width=32, heads=2, encoder_layers=1, decoder_layers=2, slots=48)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        encoder_attention=rule,
        decoder_attention=rule,
        cross_attention=rule,
        **sizes,
    )
    model = ReLUFormer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        model.output_embedding.weight[BYTES] = 0
        for token in range(BYTES.stop, tokenizer.vocab_size):
            if " " not in tokenizer.decode([BYTES.stop, token]):
                model.output_embedding.weight[token] *= 0.6
    # what it reads means nothing, so no sentence is translated anew
    return Translator(
        model, tokenizer, DecodingConfig(beam=1, length_ratio=1.0, length_offset=4, check_alignment=False)
    )


@pytest.fixture(scope="module")
def translators(word_tokenizer: Tokenizer) -> dict[str, Translator]:
    return {"sparse": random_translator(word_tokenizer, "relu"), "dense": random_translator(word_tokenizer, "softmax")}


@pytest.fixture(scope="module")
def start_server() -> Iterator[Callable[..., str]]:
    """Servers in threads of this process; their addresses."""
    import uvicorn

    from reluformer.integrations.server.application import create_app
    from reluformer.integrations.server.limits import ServerLimits
    from reluformer.integrations.server.model_registry import ModelRegistry, ServedModel

    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(translators: dict[str, Translator], key: str | None = None) -> str:
        models = ModelRegistry([ServedModel(name, translator) for name, translator in translators.items()])
        bound = socket.create_server(("127.0.0.1", 0))
        app = create_app(models, ServerLimits(characters=CHARACTERS), key)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{bound.getsockname()[1]}/"

    yield start
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join()


@pytest.fixture(scope="module")
def one(start_server: Callable[..., str], translators: dict[str, Translator]) -> str:
    return start_server({"sparse": translators["sparse"]})


@pytest.fixture(scope="module")
def two(start_server: Callable[..., str], translators: dict[str, Translator]) -> str:
    return start_server(translators)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page; fails the test on an error in a script, a refused resource, or a request to elsewhere."""
    contexts = []
    faults: list[str] = []

    def open_page(address: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: "Security Policy" in message.text and faults.append(message.text))
        page.on("request", lambda request: request.url.startswith((address, "blob:")) or faults.append(request.url))
        page.goto(address)
        expect(page.locator("#translate")).to_be_enabled()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The engine stops behind the first sentence of a stream until the event is set."""
    from reluformer.integrations.server.engine import Job

    go_on = threading.Event()
    report = Job.report

    def report_and_wait(job: Job, index: int, sentences: Any) -> None:
        report(job, index, sentences)
        if sentences:
            go_on.wait(30)

    monkeypatch.setattr(Job, "report", report_and_wait)
    yield go_on
    go_on.set()


def translate(page: Any, text: str = TEXT) -> None:
    page.fill("#document", text)
    page.click("#translate")
    expect(page.locator("#translate")).to_be_visible()
    expect(page.locator("#stop")).to_be_hidden()


def inspection_of(page: Any, address: str, name: str, translator: Translator) -> dict[str, Any]:
    """What the server says of the reads of TEXT."""
    translated = translator.translate_documents([SENTENCES])[0]
    answer = page.request.post(address + "inspect", data={"q": TEXT, "text": translated, "model": name})
    assert answer.ok
    found: dict[str, Any] = answer.json()
    return found


def target_words(inspection: dict[str, Any]) -> list[int]:
    """The numbers of the words of the translation; the last one of a sentence is its end, and no word."""
    words = {token["word"]: token["sentence"] for token in inspection["target_tokens"]}
    last = {sentence: word for word, sentence in words.items()}
    return [word for word, sentence in words.items() if word != last[sentence]]


def read_words(inspection: dict[str, Any], word: int, layers: range, heads: range) -> dict[int, float]:
    """The source words that target word `word` read, and their weights, added up straight from the definition."""
    tokens = [place for place, token in enumerate(inspection["target_tokens"]) if token["word"] == word]
    found: dict[int, float] = {}
    for layer in layers:
        for head in heads:
            for token in tokens:
                for place, weight in inspection["reads"][layer][head][token]:
                    source = inspection["source_tokens"][place]["word"]
                    share = weight / (len(tokens) * len(layers) * len(heads))
                    found[source] = found.get(source, 0.0) + share
    return found


def choose_first_word(page: Any, columns: int = 1) -> None:
    page.locator(".word").first.click()
    expect(page.locator("[data-part=findings]:visible")).to_have_count(columns)


def test_a_document_is_translated_with_its_layout(visit: Any, one: str, translators: dict[str, Translator]) -> None:
    page = visit(one)
    translate(page)
    expected = translators["sparse"].translate([TEXT])[0]
    assert page.locator(".translation").inner_text().rstrip() == expected.rstrip()
    expect(page.locator("[data-part=status]")).to_have_text(re.compile(r"^3 sentences in \d+\.\d s$"))


def test_sentences_appear_before_the_translation_is_done(visit: Any, one: str, held: threading.Event) -> None:
    page = visit(one)
    page.fill("#document", TEXT)
    page.click("#translate")
    expect(page.locator(".sentence")).to_have_count(1)
    expect(page.locator("[data-part=status]")).to_have_text("1 of 3 sentences")
    assert page.locator("progress").get_attribute("value") == "1"
    held.set()
    expect(page.locator(".sentence")).to_have_count(3)
    expect(page.locator("[data-part=status]")).to_contain_text("3 sentences in")


def test_stop_keeps_what_has_arrived(visit: Any, one: str, held: threading.Event) -> None:
    page = visit(one)
    page.fill("#document", TEXT)
    page.click("#translate")
    expect(page.locator(".sentence")).to_have_count(1)
    page.click("#stop")
    expect(page.locator("[data-part=status]")).to_have_text("Stopped after 1 of 3 sentences")
    expect(page.locator("#translate")).to_be_focused()
    expect(page.get_by_role("button", name="Copy")).to_be_enabled()
    page.locator(".word").first.click()
    expect(page.locator("[data-part=hint]")).to_have_text("Only complete translations can be inspected.")


@pytest.mark.parametrize(("layer", "head"), [(None, None), (0, 1), (1, None)], ids=["mean", "one head", "one layer"])
def test_exactly_the_words_with_a_weight_are_marked(
    visit: Any, one: str, translators: dict[str, Translator], layer: int | None, head: int | None
) -> None:
    page = visit(one)
    translate(page)
    inspection = inspection_of(page, one, "sparse", translators["sparse"])
    layers = range(2) if layer is None else range(layer, layer + 1)
    heads = range(2) if head is None else range(head, head + 1)
    found = [read_words(inspection, word, layers, heads) for word in target_words(inspection)]
    words = len({token["word"] for token in inspection["source_tokens"]})
    reads = next(reads for reads in found if 0 < len(reads) < words)
    page.locator(".word").nth(found.index(reads)).click()
    if layer is not None:
        page.select_option("#layer", str(layer))
    if head is not None:
        page.select_option("#head", str(head))
    expect(page.locator(".mark")).to_have_count(len(reads))
    expect(page.locator(".figures")).to_contain_text(f"{len(reads)} of {words}")
    shown = [float(weight) for weight in page.locator(".mark").evaluate_all("all => all.map(m => m.dataset.weight)")]
    assert shown == pytest.approx([reads[word] for word in sorted(reads)], abs=5.01e-4)


def test_the_source_is_shown_as_it_was_written(visit: Any, one: str) -> None:
    page = visit(one)
    translate(page, "A naïve 🦊 wrote\u0085“it”.")
    choose_first_word(page)
    assert page.locator(".source").inner_text().replace("¶", "").split() == ["A", "naïve", "🦊", "wrote", "“it”."]


def test_a_weight_is_told_by_pointer_and_by_focus(visit: Any, one: str) -> None:
    page = visit(one)
    translate(page)
    choose_first_word(page)
    marks = page.locator(".mark")
    for show in ("hover", "focus"):
        getattr(marks.nth(1), show)()
        expect(page.locator(".bubble")).to_have_text(marks.nth(1).get_attribute("data-weight"))
    expect(marks.nth(1)).to_have_attribute("aria-label", re.compile(r": weight \d"))
    marks.nth(1).press("ArrowRight")
    expect(page.locator(".bubble")).to_have_text(marks.nth(2).get_attribute("data-weight"))


def test_slots_that_fired_are_drawn_for_each_layer(visit: Any, one: str, translators: dict[str, Translator]) -> None:
    page = visit(one)
    translate(page)
    inspection = inspection_of(page, one, "sparse", translators["sparse"])
    tokens = [place for place, token in enumerate(inspection["target_tokens"]) if token["word"] == 0]
    choose_first_word(page)
    for layer, slots in enumerate(inspection["slots"]):
        drawn = page.locator(".barcode").nth(layer).locator("rect")
        expect(drawn).to_have_count(len({slot for token in tokens for slot, _ in slots[token]["top"]}))
        fired = sorted({slots[token]["fired"] for token in tokens})
        expect(page.locator(".slots").nth(layer)).to_contain_text(re.compile(rf"{fired[0]}.* of 48 fired"))


def test_two_models_stand_side_by_side(visit: Any, two: str, translators: dict[str, Translator]) -> None:
    page = visit(two)
    translate(page)
    columns = page.locator(".column")
    expect(columns).to_have_count(2)
    boxes = [columns.nth(place).bounding_box() for place in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    for place, (name, translator) in enumerate(translators.items()):
        column = columns.nth(place)
        expect(column.locator("h3")).to_have_text(name)
        column.locator(".word").first.click()
        expect(column.locator("[data-part=findings]")).to_be_visible()
        inspection = inspection_of(page, two, name, translator)
        expect(column.locator("header")).to_contain_text(f"{inspection['zero_fraction']:.0%}".replace("%", " %"))
        reads = read_words(inspection, 0, range(2), range(2))
        expect(column.locator(".mark")).to_have_count(len(reads))
    dense = page.locator(".column").nth(1)
    assert dense.locator(".mark").count() == len({t["word"] for t in inspection["source_tokens"]})


def test_a_word_chosen_in_one_column_is_looked_at_in_the_other(
    visit: Any, start_server: Any, translators: dict[str, Translator]
) -> None:
    page = visit(start_server({"left": translators["sparse"], "right": translators["sparse"]}))
    translate(page)
    page.locator(".column").first.locator(".word").nth(2).click()
    expect(page.locator("[data-part=findings]:visible")).to_have_count(2)
    chosen = page.locator('.column:nth-child(2) .word[aria-pressed="true"]')
    expect(chosen).to_have_count(1)
    assert page.locator(".column:nth-child(2) .word").nth(2).get_attribute("aria-pressed") == "true"


def test_a_word_that_the_other_column_lacks_is_told(visit: Any, two: str, translators: dict[str, Translator]) -> None:
    first, second = (translator.translate_documents([SENTENCES])[0] for translator in translators.values())
    pairs = [(a.split(), b.split()) for a, b in zip(first, second, strict=True)]
    lacking = next(word for words, others in pairs for word in words if word not in others)
    page = visit(two)
    translate(page)
    page.locator(".column").first.get_by_role("button", name=lacking, exact=True).first.click()
    other = page.locator(".column").nth(1)
    expect(other.locator("[data-part=hint]")).to_have_text(f"This translation has no “{lacking}” in that sentence.")
    expect(other.locator("header")).to_contain_text("0 % exact zeros")


def test_one_of_two_models_can_translate_alone(visit: Any, two: str) -> None:
    page = visit(two)
    page.select_option("#models", label="dense")
    translate(page)
    expect(page.locator(".column h3")).to_have_text(["dense"])


def streamed(*translations: str, source: str = "A.") -> str:
    """The events of a translation as they go over the line."""
    sentences = [{"index": i, "source": source, "before": " " if i else ""} for i in range(len(translations))]
    told = [("start", {"model": "sparse", "sentences": sentences, "after": ""})]
    told += [("sentence", {"index": i, "source": source, "text": text}) for i, text in enumerate(translations)]
    told.append(("done", {"text": " ".join(translations), "seconds": 0.1}))
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in told)


def answer_streams_with(page: Any, body: str) -> None:
    page.route("**/translate/stream", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def test_text_never_becomes_markup(visit: Any, two: str) -> None:
    page = visit(two)
    evil = '<img src=x onerror="window.hit = 1"> <b>bold</b>.'
    answer_streams_with(page, streamed(evil, source=evil))
    translate(page, evil)
    page.locator(".word").first.click()
    expect(page.locator("[data-part=findings]:visible")).to_have_count(2)
    assert page.locator(".translation").first.inner_text() == evil
    assert evil.split()[0] in page.locator(".source").first.inner_text()
    assert page.locator("main img, main b").count() == 0
    assert page.evaluate("window.hit") is None


def test_a_translated_sentence_with_a_full_stop_inside_stays_one(visit: Any, one: str) -> None:
    page = visit(one)
    answer_streams_with(page, streamed("Eins. Zwei.", "Drei."))
    translate(page, "It was green. The boy played.")
    with page.expect_response("**/inspect") as response:
        page.get_by_role("button", name="Drei.").click()
    tokens = response.value.json()["target_tokens"]
    assert [sum(token["sentence"] == sentence for token in tokens) > 1 for sentence in range(2)] == [True, True]
    assert max(token["sentence"] for token in tokens) == 1
    expect(page.locator("[data-part=chosen]")).to_have_text("What Drei. read")


def test_copy_and_download_keep_the_layout(visit: Any, one: str, translators: dict[str, Translator]) -> None:
    page = visit(one, permissions=["clipboard-read", "clipboard-write"])
    page.set_input_files("#file", {"name": "letter.txt", "mimeType": "text/plain", "buffer": TEXT.encode()})
    expect(page.locator("#document")).to_have_value(TEXT)
    page.click("#translate")
    expected = translators["sparse"].translate([TEXT])[0]
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("[data-part=copy]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == expected
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "letter.de.txt"
    assert Path(download.value.path()).read_text(encoding="utf-8") == expected


DROP = """(target, [name, bytes]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(bytes)], name));
    for (const type of ["dragenter", "dragover", "drop"])
        target.dispatchEvent(new DragEvent(type, {bubbles: true, cancelable: true, dataTransfer: transfer}));
}"""


def test_a_file_may_be_dropped_anywhere(visit: Any, one: str) -> None:
    page = visit(one)
    page.locator("h1").evaluate(DROP, ["letter.txt", list(TEXT.encode())])
    expect(page.locator("#document")).to_have_value(TEXT)
    expect(page.locator("#file-name")).to_have_text("letter.txt")
    expect(page.locator("#drop")).to_be_hidden()
    page.locator("footer").evaluate(DROP, ["picture.png", [0x89, 0x50, 0xFF, 0xFE]])
    expect(page.get_by_role("alert")).to_contain_text("picture.png is not a text file.")
    expect(page.locator("#document")).to_have_value(TEXT)


def test_a_file_with_markup_keeps_it(visit: Any, one: str, translators: dict[str, Translator]) -> None:
    page = visit(one)
    markdown = "# It was green.\n\n* The boy played.\n"
    page.set_input_files("#file", {"name": "list.md", "mimeType": "text/markdown", "buffer": markdown.encode()})
    expect(page.locator("#file-name")).to_have_text("list.md")
    page.click("#translate")
    expect(page.locator("[data-part=status]")).to_contain_text("with its markup")
    expected = translators["sparse"].translate([markdown], format="markdown")[0]
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "list.de.md"
    assert Path(download.value.path()).read_text(encoding="utf-8") == expected


def test_too_long_a_text_is_refused_with_a_hint(visit: Any, two: str) -> None:
    page = visit(two)
    translate(page, "word " * CHARACTERS)
    expect(page.get_by_role("alert")).to_contain_text(f"longer than {CHARACTERS} characters.")
    expect(page.get_by_role("alert")).to_contain_text("Translate it in several pieces.")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    expect(page.locator("#results")).to_be_hidden()


def test_a_server_with_a_key_asks_for_it(visit: Any, start_server: Any, translators: dict[str, Translator]) -> None:
    page = visit(start_server({"sparse": translators["sparse"]}, key="opensesame"))
    translate(page)
    expect(page.get_by_role("alert")).to_contain_text("This server wants a key.Write it into the field “Key”.")
    page.get_by_label("Key", exact=True).fill("opensesame")
    translate(page)
    expect(page.locator(".sentence")).to_have_count(3)
    choose_first_word(page)


def test_a_full_queue_can_be_tried_again(visit: Any, one: str) -> None:
    page = visit(one)
    busy = {"error": "too many requests are waiting", "code": "busy", "hint": "try again in 3 s"}
    page.route("**/translate/stream", lambda route: route.fulfill(status=429, json=busy), times=1)
    translate(page)
    expect(page.get_by_role("alert")).to_contain_text("Too many requests are waiting.Try again in 3 s.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".sentence")).to_have_count(3)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_server_that_is_gone_is_told(visit: Any, one: str) -> None:
    page = visit(one)
    page.route("**/translate/stream", lambda route: route.abort("connectionrefused"))
    translate(page)
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")


def test_a_stream_that_breaks_off_keeps_what_has_arrived(visit: Any, one: str) -> None:
    page = visit(one)
    whole = streamed("Eins.", "Zwei.")
    answer_streams_with(page, whole[: whole.index("event: done")])
    translate(page)
    expect(page.locator(".column [role=alert]")).to_contain_text("The connection ended before the translation did.")
    expect(page.locator(".translation")).to_have_text("Eins. Zwei.")
    expect(page.locator("[data-part=status]")).to_have_text("Ended after 2 of 2 sentences")


def test_events_are_put_together_from_any_pieces(visit: Any, one: str) -> None:
    page = visit(one)
    wire = ': comment\r\nevent: sentence\r\ndata: {"a":\ndata: "ü"}\n\ndata: x\n\n'
    found = page.evaluate(
        """async ([bytes, size]) => {
            const { events } = await import("/api.js");
            const pieces = new ReadableStream({start(controller) {
                for (let at = 0; at < bytes.length; at += size)
                    controller.enqueue(new Uint8Array(bytes.slice(at, at + size)));
                controller.close();
            }});
            const found = [];
            for await (const event of events(pieces)) found.push(event);
            return found;
        }""",
        [list(wire.encode()), 1],
    )
    assert found == [{"event": "sentence", "data": '{"a":\n"ü"}'}, {"event": "message", "data": "x"}]


def test_the_example_is_of_the_embedded_corpus(visit: Any, one: str) -> None:
    page = visit(one)
    page.click("#example")
    expect(page.locator("[data-part=status]")).to_contain_text("7 sentences in")
    sentences = document_from_id(EXAMPLE).document.src
    assert " ".join(page.locator("#document").input_value().split()) == " ".join(sentences)


def test_the_keyboard_alone_is_enough(visit: Any, one: str) -> None:
    page = visit(one)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the document")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("It was green. Where is it?")
    expect(page.locator("#document")).to_have_value("It was green. Where is it?")
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-part=status]")).to_contain_text("2 sentences in")
    words = page.locator(".word")
    for _ in range(20):
        page.keyboard.press("Tab")
        if words.first.evaluate("word => word === document.activeElement"):
            break
    expect(words.first).to_be_focused()
    assert words.first.evaluate("word => getComputedStyle(word).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("[data-part=chosen]")).to_contain_text(words.first.inner_text())
    page.keyboard.press("ArrowRight")
    expect(words.nth(1)).to_be_focused()
    expect(words.nth(1)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("End")
    expect(words.last).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".mark").first).to_be_focused()
    expect(page.locator(".word[tabindex='0']")).to_have_count(1)


def test_arriving_sentences_are_announced_together(visit: Any, one: str) -> None:
    page = visit(one)
    page.clock.install()
    page.reload()
    translate(page)
    region = page.locator("#announcer")
    expect(region).to_have_text("Translating.")
    page.clock.run_for(4000)
    expect(region).to_have_text(re.compile(r"sparse: 3 sentences in .+ s\.$"))
    for sentence in page.locator(".sentence").all_inner_texts():
        expect(region).to_contain_text(sentence)
    expect(region).to_have_attribute("aria-live", "polite")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_barriers(visit: Any, two: str, scheme: str) -> None:
    page = visit(two, color_scheme=scheme, reduced_motion="reduce")
    translate(page)
    page.locator(".word").first.click()
    expect(page.locator("[data-part=findings]:visible").first).to_be_visible()
    found = axe.Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")] == []


def test_the_theme_follows_the_system_until_the_reader_chooses(visit: Any, one: str) -> None:
    page = visit(one, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    expect(page.get_by_role("button", name="Dark theme")).to_be_visible()  # the page has heard of it
    light = page.evaluate(background)
    assert _brightness(dark) < 0.2 and _brightness(light) > 0.9
    page.get_by_role("button", name="Dark theme").click()
    expect(page.get_by_role("button", name="Light theme")).to_be_visible()
    assert page.evaluate(background) == dark
    page.reload()
    expect(page.get_by_role("button", name="Light theme")).to_be_visible()
    assert page.evaluate(background) == dark


def _brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / (3 * 255)


def test_a_narrow_screen_has_one_column_and_scrolls_down_only(visit: Any, two: str) -> None:
    page = visit(two, viewport={"width": 360, "height": 640})
    translate(page, TEXT + "Donaudampfschifffahrt" * 8)
    page.locator(".word").first.click()
    expect(page.locator("[data-part=findings]:visible").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    left = page.locator(".card:visible").evaluate_all("cards => cards.map(card => card.getBoundingClientRect().x)")
    assert len(left) >= 5 and len(set(left)) == 1


def test_text_from_right_to_left_is_laid_out_so(visit: Any, one: str) -> None:
    page = visit(one)
    page.fill("#document", "שלום.")
    direction = "element => getComputedStyle(element).direction"
    assert page.locator("#document").evaluate(direction) == "rtl"
    translate(page)
    assert page.locator(".translation").get_attribute("dir") == "auto"
    assert page.locator(".translation").evaluate("box => getComputedStyle(box).unicodeBidi") == "plaintext"


def test_motion_is_left_out_on_request(visit: Any, one: str) -> None:
    for wish, animation in (("no-preference", "arrive"), ("reduce", "none")):
        page = visit(one, reduced_motion=wish)
        translate(page)
        assert page.locator(".sentence").first.evaluate("s => getComputedStyle(s).animationName") == animation
