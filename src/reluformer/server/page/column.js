// One model: its translation as it arrives, and what the chosen word of it read.

import { post } from "./api.js";
import { copyText, saveText } from "./files.js";
import { copyOf, make, showProblem } from "./elements.js";
import { Inspector, percent } from "./inspector.js";
import { gaps, laidOut, words } from "./layout.js";
import { prepared } from "./reads.js";
import { makeStop, rove } from "./roving.js";
import { translation } from "./stream.js";

const WORD = ".word";

export class Column {
  /** `heard` gets each sentence that arrives; `picked` the column and the word that a reader chose. */
  constructor(template, model, title, { heard, picked, fileName }) {
    const { root, parts } = copyOf(template);
    this.root = root;
    this.parts = parts;
    this.model = model;
    this.view = { layer: null, head: null };
    this.inspector = new Inspector(parts);
    this.heard = heard;
    this.busy = false;
    this.reset();
    parts.name.textContent = title;
    parts.rule.textContent = model.cross;
    parts.progress.setAttribute("aria-label", `Sentences translated by ${title}`);
    parts.translation.setAttribute("aria-label", `Translation by ${title}; the arrow keys choose a word`);
    parts.inspector.setAttribute("aria-label", `What ${title} read`);
    parts.copy.setAttribute("aria-label", `Copy the translation by ${title}`);
    parts.download.setAttribute("aria-label", `Download the translation by ${title}`);
    parts.copy.addEventListener("click", () => this.#copy());
    parts.download.addEventListener("click", () => saveText(fileName(model), this.text));
    rove(parts.translation, WORD, (word) => picked(this, word));
    parts.translation.addEventListener("click", (event) => this.#clicked(event, picked));
    parts.translation.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      if (event.target.matches(WORD)) picked(this, event.target);
    });
  }

  reset() {
    this.sentences = [];
    this.layout = { before: [], after: "" };
    this.finished = null;
    this.reading = null;
    this.word = null;
    this.parts.translation.replaceChildren();
    this.parts.problem.hidden = true;
    this.problem = null;
    this.inspector.tell("Choose a word of the translation, with the mouse or the arrow keys, to see what it read.");
    this.#ready(false);
  }

  /** The translation with the layout of the document; what has arrived of it, while it arrives. */
  get text() {
    return this.finished ?? laidOut(this.layout, this.sentences);
  }

  /** Translate; resolves when it is done, was stopped or failed. */
  async translate(document, signal) {
    this.reset();
    this.document = document;
    this.#busy(true);
    this.parts.status.textContent = "Waiting for the server";
    const { name: model, source, target } = this.model;
    try {
      for await (const told of translation({ q: document, source, target, model }, signal)) this.#take(told);
    } catch (error) {
      if (error.name === "AbortError") this.#stopped();
      else this.#failed(error);
    }
    this.#busy(false);
    this.#ready(this.sentences.length > 0);
  }

  #take(told) {
    const { progress, status } = this.parts;
    if (told.event === "start") {
      this.expected = told.sentences.length;
      this.layout = gaps(this.document, told.sentences);
      progress.max = Math.max(1, this.expected);
      progress.value = 0;
    } else if (told.event === "sentence") {
      this.sentences[told.index] = told.text;
      this.#append(told.index, told.text);
      progress.value = told.index + 1;
      this.heard(this, told.text);
    } else if (told.event === "done") {
      this.finished = told.text;
      this.parts.translation.append(this.layout.after.trimEnd());
      progress.value = progress.max;
    }
    status.textContent =
      told.event === "done"
        ? `${sentencesIn(this.expected)} in ${told.seconds.toFixed(1)} s`
        : `${this.sentences.length} of ${sentencesIn(this.expected)}`;
  }

  #append(index, text) {
    const sentence = make("span", { className: "sentence" });
    const place = { number: 0 };
    for (const [at, piece] of words(text).entries()) {
      if (at % 2 === 0) sentence.append(piece);
      else sentence.append(this.#word(piece, index, place.number++));
    }
    const before = this.layout.before[index] ?? " ";
    const { translation: box } = this.parts;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 8;
    box.append(index === 0 ? before.trimStart() : before, sentence);
    if (index === 0) makeStop(box, WORD);
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  #word(text, sentence, number) {
    const word = make("span", { className: "word", attr: { role: "button", tabindex: "-1", "aria-pressed": "false" } });
    word.textContent = text;
    word.dataset.sentence = sentence;
    word.dataset.number = number;
    return word;
  }

  #clicked(event, picked) {
    const word = event.target.closest(WORD);
    if (word && getSelection().isCollapsed) picked(this, word);
  }

  #stopped() {
    this.parts.status.textContent = this.expected
      ? `Stopped after ${this.sentences.length} of ${sentencesIn(this.expected)}`
      : "Stopped";
  }

  #failed(error) {
    this.parts.status.textContent = this.sentences.length
      ? `Ended after ${this.sentences.length} of ${sentencesIn(this.expected)}`
      : "";
    this.problem = error;
    showProblem(this.parts.problem, error, () => this.root.dispatchEvent(new CustomEvent("again", { bubbles: true })));
  }

  #busy(busy) {
    this.busy = busy;
    this.root.classList.toggle("busy", busy);
    if (busy) {
      this.expected = 0;
      this.parts.progress.removeAttribute("value");
    } else if (!this.parts.progress.hasAttribute("value")) {
      this.parts.progress.value = 0;
    }
  }

  #ready(ready) {
    this.parts.copy.disabled = !ready;
    this.parts.download.disabled = !ready;
  }

  async #copy() {
    const { copy } = this.parts;
    await copyText(this.text);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  }

  /** The word of this translation that stands for one of another: the same text nearest to its place. */
  counterpart({ textContent, dataset }) {
    const same = [...this.parts.translation.querySelectorAll(WORD)].filter(
      (word) => word.dataset.sentence === dataset.sentence && word.textContent === textContent,
    );
    const off = (word) => Math.abs(word.dataset.number - dataset.number);
    return same.sort((a, b) => off(a) - off(b))[0] ?? null;
  }

  /** Choose a word of the translation (or none, with a reason) and show what it read; resolves to a summary. */
  async choose(word, reason = "") {
    this.word?.setAttribute("aria-pressed", "false");
    this.word = word;
    if (!word) return this.inspector.tell(reason);
    word.setAttribute("aria-pressed", "true");
    makeStop(this.parts.translation, WORD, word);
    if (this.finished === null) {
      return this.inspector.tell(
        this.busy ? "The reads can be shown when the translation is complete." : "Only complete translations can be inspected.",
      );
    }
    return this.draw();
  }

  /** Show what the chosen word read with the layer and head of the view. */
  async draw() {
    if (!this.word || this.finished === null) return;
    const word = this.word;
    if (!this.reading) this.inspector.tell("Reading…");
    this.reading ??= this.#inspect();
    let inspection;
    try {
      inspection = await this.reading;
    } catch (error) {
      this.reading = null;
      this.inspector.tell("");
      const box = make("div", { className: "problem", attr: { role: "alert" } });
      this.parts.hint.append(box);
      showProblem(box, error, () => this.draw());
      return;
    }
    if (word !== this.word) return; // another one was chosen meanwhile
    const found = inspection.targetSentences.get(Number(word.dataset.sentence))?.[Number(word.dataset.number)];
    if (!found) return this.inspector.tell("The server did not say what this word read.");
    return this.inspector.show(inspection, found, this.view, this.layout.before);
  }

  async #inspect() {
    const response = await post("inspect", { q: this.document, text: this.finished, model: this.model.name });
    const inspection = prepared(await response.json());
    this.parts.rule.textContent = `${this.model.cross} · ${percent(inspection.zero_fraction)} exact zeros`;
    return inspection;
  }
}

function sentencesIn(count) {
  return `${count} ${count === 1 ? "sentence" : "sentences"}`;
}
