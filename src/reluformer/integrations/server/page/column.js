// One model: its translation as it arrives, and what the chosen word of it read.

import { post, translatedFile, translation } from "./api.js";
import { copyOf, make, makeStop, rove, showProblem } from "./elements.js";
import { copyText, saveText, translatedName } from "./files.js";
import { Inspector, percent } from "./inspector.js";
import { laidOut, prepared, spacesAndWords } from "./reads.js";

const WORD = ".word";

export class Column {
  /**
   * `tag` tells the model in names of files; `heard` gets each sentence that arrives,
   * `picked` the column and the word that a reader chose.
   */
  constructor(template, model, tag, { heard, picked }) {
    const { root, parts } = copyOf(template);
    this.root = root;
    this.parts = parts;
    this.model = model;
    this.view = { layer: null, head: null };
    this.inspector = new Inspector(parts);
    this.heard = heard;
    this.busy = false;
    this.reset();
    const title = (parts.name.textContent = model.name);
    parts.progress.setAttribute("aria-label", `Sentences translated by ${title}`);
    parts.translation.setAttribute("aria-label", `Translation by ${title}; the arrow keys choose a word`);
    parts.inspector.setAttribute("aria-label", `What ${title} read`);
    parts.copy.setAttribute("aria-label", `Copy the translation by ${title}`);
    parts.download.setAttribute("aria-label", `Download the translation by ${title}`);
    parts.copy.addEventListener("click", () => this.#copy());
    parts.download.addEventListener("click", () => saveText(translatedName(this.document.name, model.target, tag), this.text));
    rove(parts.translation, WORD, (word) => picked(this, word));
    parts.translation.addEventListener("click", (event) => this.#clicked(event, picked));
    parts.translation.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      if (event.target.matches(WORD)) picked(this, event.target);
    });
  }

  reset() {
    this.sources = [];
    this.sentences = [];
    this.words = [];
    this.layout = { before: [], after: "" };
    this.finished = null;
    this.reading = null;
    this.word = null;
    this.parts.translation.replaceChildren();
    this.parts.problem.hidden = true;
    this.problem = null;
    this.parts.rule.textContent = this.model.cross;
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
    try {
      await (document.marked ? this.#wholeFile(signal) : this.#bySentence(signal));
    } catch (error) {
      if (error.name === "AbortError") this.#stopped();
      else this.#failed(error);
    }
    this.#busy(false);
    this.#ready(this.text !== "");
  }

  async #bySentence(signal) {
    const { name: model, source, target } = this.model;
    for await (const told of translation({ q: this.document.text, source, target, model }, signal)) this.#take(told);
  }

  /** A file with markup: the server knows what of it are sentences, and sends it back whole. */
  async #wholeFile(signal) {
    const { text, name } = this.document;
    this.finished = await translatedFile(new File([text], name), this.model, signal);
    this.parts.translation.textContent = this.finished;
    this.parts.status.textContent = "Translated as a whole, with its markup";
    this.inspector.tell("Reads can be shown for plain text: paste the text instead of opening the file.");
  }

  #take(told) {
    const { progress, status } = this.parts;
    if (told.event === "start") {
      this.sources = told.sentences.map((sentence) => sentence.source);
      this.layout = { before: told.sentences.map((sentence) => sentence.before), after: told.after };
      this.expected = told.sentences.length;
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
    for (const [at, piece] of spacesAndWords(text).entries()) {
      sentence.append(at % 2 === 0 ? piece : this.#word(piece, index));
    }
    const before = this.layout.before[index];
    const { translation: box } = this.parts;
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 8;
    box.append(index === 0 ? before.trimStart() : before, sentence);
    if (this.words.length && !box.querySelector('[tabindex="0"]')) makeStop(box, WORD);
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  #word(text, sentence) {
    const word = make("span", { className: "word", attr: { role: "button", tabindex: "-1", "aria-pressed": "false" } });
    word.textContent = text;
    word.dataset.sentence = sentence;
    this.words.push(word);
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

  /** The word of this translation that stands for one of another column: the same text nearest to its place. */
  counterpart(word, place) {
    const same = this.words.filter(
      (own) => own.dataset.sentence === word.dataset.sentence && own.textContent === word.textContent,
    );
    const off = (own) => Math.abs(this.words.indexOf(own) - place);
    return same.sort((a, b) => off(a) - off(b))[0] ?? null;
  }

  /** Choose a word of the translation (or none, with a reason) and show what it read; resolves to a summary. */
  async choose(word, reason = "") {
    this.word?.setAttribute("aria-pressed", "false");
    this.word = word;
    if (!word) {
      this.inspector.tell(reason);
      if (this.finished !== null) this.#inspection().catch(() => {}); // for the share of zeros
      return;
    }
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
    let inspection;
    try {
      inspection = await this.#inspection();
    } catch (error) {
      this.inspector.tell("");
      const box = make("div", { className: "problem", attr: { role: "alert" } });
      this.parts.hint.append(box);
      showProblem(box, error, () => this.draw());
      return;
    }
    if (word !== this.word) return; // another one was chosen meanwhile
    const found = inspection.targetWords[this.words.indexOf(word)];
    if (!found) return this.inspector.tell("The server did not say what this word read.");
    return this.inspector.show(inspection, found, this.view, this.layout.before);
  }

  /** What the server says of all reads; asked once, and again after a failure. */
  #inspection() {
    this.reading ??= this.#inspect().catch((error) => {
      this.reading = null;
      throw error;
    });
    return this.reading;
  }

  async #inspect() {
    const { sources, sentences } = this;
    const response = await post("inspect", { q: this.document.text, text: sentences, model: this.model.name });
    const inspection = prepared(await response.json(), sources, sentences);
    if (this.sources !== sources) return inspection; // another document is being translated meanwhile
    const zeros = make("strong", {}, percent(inspection.zero_fraction));
    this.parts.rule.replaceChildren(`${this.model.cross} · `, zeros, " exact zeros");
    return inspection;
  }
}

function sentencesIn(count) {
  return `${count} ${count === 1 ? "sentence" : "sentences"}`;
}
